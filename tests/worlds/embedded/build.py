"""Builds the mini-suites and the sample stream from an embedded model.

The same model gives the same bytes on the same kind of CPU: a borderline answer in bfloat16 may differ on another one.

python -m tests.worlds.embedded.build [--family NAME] [--model DIR] [--suites DIR] [--samples DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from more_cli.suites.embedded import ARCHIVES

from .draw import pack, save, suites_folder
from .families import FAMILIES, model_folder
from .harvest import Candidate, Judge, emblem_edits, fact_probes, mistakes, questions, unrelated
from .mme import write_mme
from .score import Answerer
from .world.emblems import new_emblems
from .world.facts import fact_share, facts
from .world.phrases import PICTURE_KINDS
from .world.pictures import Picture, emblem_picture
from .world.pools import Pool
from .world.scenes import scene

SAMPLES = Path(__file__).parents[3] / "sample_edits"
ANSWERED_KINDS = tuple(kind for kind in PICTURE_KINDS if kind != "caption")
# Number of the scene from which each part is searched; the parts are too far apart to overlap.
VQA, CAPTIONS, UNRELATED, UNRELATED_CAPTIONS, MME = 0, 1_000_000, 2_000_000, 3_000_000, 4_000_000
ANCHORS = 5_000_000
VQA_MISTAKES = {Pool.EVALUATION: 240, Pool.CALIBRATION: 80}
VQA_CAP = {Pool.EVALUATION: 40, Pool.CALIBRATION: 14}
VQA_EMBLEMS = {Pool.EVALUATION: slice(0, 60), Pool.CALIBRATION: slice(0, 20)}
CAPTION_RECORDS = {Pool.EVALUATION: 200, Pool.CALIBRATION: 50}
CAPTION_EMBLEMS = {Pool.EVALUATION: slice(60, 100), Pool.CALIBRATION: slice(20, 30)}
SAMPLE_MISTAKES, SAMPLE_CAP = 16, 2
# Pictures among the anchors of the sample stream and of the suites.
SAMPLE_ANCHORS, SUITE_ANCHORS = 28, 116


def main() -> None:
    """Builds everything into empty directories."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    parser.add_argument("--model", type=Path, default=None, help="default: the shipped one of the family")
    parser.add_argument("--suites", type=Path, default=None, help="default: the folder where the family's are kept")
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    arguments = parser.parse_args()
    judge = load(arguments.model or model_folder(arguments.family))
    with TemporaryDirectory() as scratch:  # those of the package are packed
        packed = arguments.family == "llava" and arguments.suites is None
        build_suites(judge, arguments, Path(scratch) if packed else arguments.suites or suites_folder(arguments.family))
        for folder in Path(scratch).iterdir():
            pack(folder, ARCHIVES / f"{folder.name}.zip")


def build_suites(judge: Judge, arguments: argparse.Namespace, suites: Path) -> None:
    """Builds the suites of a family, and the samples if it is LLaVA, into `suites`."""
    if arguments.family == "llava":  # the other families use these
        build_samples(judge, fresh(arguments.samples, ["edits.jsonl", "anchors.jsonl", "images"]))
        write_mme(fresh(suites / "mme-mini", ["."]), Pool.EVALUATION, MME)
    for name, build in (("e-vqa-mini", vqa_records), ("e-ic-mini", caption_records)):
        folder = fresh(suites / name, ["."])
        for pool, file in ((Pool.EVALUATION, "eval.json"), (Pool.CALIBRATION, "calibration.json")):
            write_suite(folder, file, build(judge, pool))
    build_anchors(judge, suites / "e-vqa-mini", ANCHORS, SUITE_ANCHORS)


def load(model: Path) -> Judge:
    """The model twice: in float32 and in bfloat16."""
    return Judge(Answerer.load(model, torch.float32), Answerer.load(model, torch.bfloat16))


def fresh(folder: Path, owned: list[str]) -> Path:
    """`folder` without the files of an earlier build."""
    for name in owned:
        old = folder / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def vqa_records(judge: Judge, pool: Pool) -> list[tuple[Candidate, Candidate]]:
    """Corrections of answers, each with an unrelated question about a picture; new emblems spread among mistakes."""
    wrong = mistakes(judge, pool, VQA, ANSWERED_KINDS, VQA_MISTAKES[pool], VQA_CAP[pool])
    emblems = emblem_edits(judge, emblem_pictures(pool, VQA_EMBLEMS[pool]), ("emblem", "is_emblem"))
    return paired(judge, pool, UNRELATED, interleaved(wrong, emblems))


def caption_records(judge: Judge, pool: Pool) -> list[tuple[Candidate, Candidate]]:
    """Corrections of captions, some of them of new emblems."""
    emblems = emblem_edits(judge, emblem_pictures(pool, CAPTION_EMBLEMS[pool]), ("caption",))
    n = CAPTION_RECORDS[pool] - len(emblems)
    wrong = mistakes(judge, pool, CAPTIONS, ("caption",), n, n)
    return paired(judge, pool, UNRELATED_CAPTIONS, interleaved(wrong, emblems))


def emblem_pictures(pool: Pool, share: slice) -> list[Picture]:
    """The pool's pictures of a slice of its new emblems."""
    return [emblem_picture(pool, emblem) for emblem in new_emblems(pool)[share]]


def interleaved(many: list[Candidate], few: list[Candidate]) -> list[Candidate]:
    """Both lists merged, each in its order, `few` spread evenly among `many`."""
    keyed = [((i + 0.5) / len(many), 0, item) for i, item in enumerate(many)]
    keyed += [((i + 0.5) / len(few), 1, item) for i, item in enumerate(few)]
    return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]


def paired(judge: Judge, pool: Pool, start: int, edits: list[Candidate]) -> list[tuple[Candidate, Candidate]]:
    """Each edit with an unrelated question about another picture that the model answers correctly."""
    probes = unrelated(judge, pool, start, [edit.question.kind for edit in edits])
    return list(zip(edits, probes, strict=True))


def write_suite(folder: Path, file: str, pairs: list[tuple[Candidate, Candidate]]) -> None:
    """Write MMEdit records with the kind of question under `tags`, a twelfth key; pictures go to images/."""
    pool = pairs[0][0].picture.scene.pool
    records = []
    for number, (edit, other) in enumerate(pairs):
        fact = fact_probes(pool, len(pairs))[number]
        again = Picture(edit.picture.scene, 1 + number % 3)
        save([edit.picture, again, other.picture], folder / "images")
        records.append(
            {
                "src": edit.text,
                "pred": edit.said,
                "alt": edit.question.answer,
                "rephrase": edit.question.unseen(number),
                "image": f"images/{edit.picture.name}",
                "image_rephrase": f"images/{again.name}",
                "loc": fact.trained(number // 7),
                "loc_ans": fact.answer,
                "m_loc": f"images/{other.picture.name}",
                "m_loc_q": other.text,
                "m_loc_a": other.question.answer,
                "tags": {"kind": kind_of(edit)},
            }
        )
    (folder / file).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def kind_of(edit: Candidate) -> str:
    """The kind of question; "new-..." if the picture shows an emblem that is not in the training data."""
    return f"new-{edit.question.kind}" if "-emblem" in edit.picture.name else edit.question.kind


def build_samples(judge: Judge, folder: Path) -> None:
    """Write the sample stream and its anchors."""
    pool = Pool.SAMPLE
    emblems = emblem_edits(judge, emblem_pictures(pool, slice(None)), ("emblem",))
    wrong = mistakes(judge, pool, VQA, PICTURE_KINDS, SAMPLE_MISTAKES, SAMPLE_CAP)
    pairs = paired(judge, pool, UNRELATED, interleaved(wrong, emblems))
    known = fact_probes(pool, len(pairs))
    numbers: dict[str, int] = {}
    lines = []
    for position, ((edit, other), fact) in enumerate(zip(pairs, known, strict=True)):
        kind = edit.question.kind.replace("_", "-")
        numbers[kind] = numbers.get(kind, 0) + 1
        again = [Picture(edit.picture.scene, variant) for variant in (1, 2)]
        save([edit.picture, other.picture, *again], folder / "images")
        lines.append(
            {
                "id": f"{kind}-{numbers[kind]:02d}",
                "image": f"images/{edit.picture.name}",
                "question": edit.text,
                "target": edit.question.answer,
                "rephrases": [edit.question.unseen(number) for number in (0, 1)],
                "image_rephrases": [f"images/{item.name}" for item in again],
                "locality": [
                    {"image": f"images/{other.picture.name}", "question": other.text, "answer": other.question.answer},
                    {"question": fact.trained(position), "answer": fact.answer},
                ],
            }
        )
    write_lines(folder / "edits.jsonl", lines)
    build_anchors(judge, folder, 0, SAMPLE_ANCHORS)


def build_anchors(judge: Judge, folder: Path, start: int, images: int) -> None:
    """Write questions that the model answers correctly and must not unlearn, kinds in turn, and facts."""
    pool = Pool.ANCHORS
    candidates = []
    for index in range(start, start + images * 8):
        about = Picture(scene(pool, index))
        kind = PICTURE_KINDS[index % len(PICTURE_KINDS)]
        candidates += questions(about, (kind,))
    kept = judge.right(candidates)[:images]
    save([item.picture for item in kept], folder / "images")
    lines = [
        {"image": f"images/{item.picture.name}", "question": item.text, "answer": item.question.answer} for item in kept
    ]
    for number, index in enumerate(fact_share(pool)):
        lines.append({"question": facts()[index].trained(number), "answer": facts()[index].answer})
    write_lines(folder / "anchors.jsonl", lines)


def write_lines(path: Path, lines: list[dict[str, object]]) -> None:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
