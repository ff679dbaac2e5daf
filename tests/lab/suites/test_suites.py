"""`suites`: a copy of a suite is found, checked and converted; yes/no answers are counted as in MME."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from more_cli.errors import DataError, StreamErrors
from more_cli.inputs.edits import read_edits, read_probes
from more_cli.suites.catalog import CATALOG, YesNoEntry
from more_cli.suites.load import EditSuite, YesNoSuite, load_suite
from more_cli.suites.yes_no import YesNoScore, parse_answer, score_category, totals
from support.helpers import Result, World, run
from support.paths import MMEDIT, NO_MMEDIT

LEAKS = {"shared_edit_images", "shared_image_probes", "shared_text_probes", "edited_then_probed", "probed_then_edited"}


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (number, 0, 0)).save(path)


def record(number: int, **fields: Any) -> dict[str, Any]:
    """Return a record of MMEdit with its own text and three images of its own."""
    return {
        "src": f"What is parked in street {number}?",
        "pred": "car",
        "rephrase": f"What stands in street {number}?",
        "alt": "tram",
        "image": f"val2014/{number}.png",
        "image_rephrase": f"val2014_image_rephrase/{number}.png",
        "loc": f"nq question: who painted ceiling {number}",
        "loc_ans": "A. Example",
        "m_loc": f"val2014/{number + 100}.png",
        "m_loc_q": "What is the bird standing on?",
        "m_loc_a": "fence",
    } | fields


def suite(root: Path, files: dict[str, Sequence[object] | str], images: str = "") -> Path:
    """Return a data root with these files of records, and every image they name."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        for item in () if isinstance(content, str) else content:
            for key in ("image", "image_rephrase", "m_loc") if isinstance(item, dict) else ():
                where = root / images / item[key]
                if not where.exists():
                    picture(where, len(list(root.rglob("*.png"))) + 1)
    return root


EVAL, TRAIN = "editing-data/vqa/vqa_eval.json", "editing-data/vqa/vqa_train.json"


def e_vqa(root: Path, evaluation: Sequence[object], calibration: Sequence[object] | None = None) -> Path:
    """Return a data root of E-VQA as published."""
    return suite(root, {EVAL: evaluation} | ({TRAIN: calibration} if calibration is not None else {}))


def found(result: Result) -> dict[tuple[str, str], int]:
    """Return the findings of a check, by name and pool."""
    return {(finding["name"], finding["pool"]): finding["count"] for finding in result.json["findings"]}


def check(root: Path, name: str = "e-vqa", *options: object) -> Result:
    return run("suites", "check", name, "--data-root", root, "--json", *options)


# --- suites in the package ---


def test_the_list_names_every_suite_and_what_is_embedded() -> None:
    listed = run("suites", "list")
    assert (listed.code, listed.err) == (0, "")
    assert [line.split()[0] for line in listed.out.splitlines()[1:-1]] == list(CATALOG)
    assert {"e-vqa", "e-ic", "vlkeb", "zsre", "counterfact", "mme"} < {*CATALOG}
    suites = run("suites", "list", "--json").json
    assert suites["schema"] == "more.suites.list/1"
    assert {entry["name"]: entry["embedded"] for entry in suites["suites"]}["vlkeb"] is None


@pytest.mark.parametrize(("name", "images"), [("e-vqa", 3172), ("e-ic", 2550), ("mme", 168)])
def test_an_embedded_suite_is_whole_and_says_that_it_is_not_the_real_one(name: str, images: int) -> None:
    result = run("suites", "check", name, "--json")
    assert result.code == 0
    assert result.err == f"note: no --data-root: using the embedded mini suite {name}-mini, not {name} itself\n"
    assert result.json["source"] == "embedded"
    assert result.json["images"] == {"named": images, "opened": images, "missing": [], "unreadable": []}
    assert not LEAKS & {name for name, _ in found(result)}


def test_suites_are_listed_and_read_without_torch() -> None:
    code = (
        "import sys; from more_cli.cli.app import main; main(['suites', 'show', 'mme', '-q']);"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- edits: found, checked, opened one at a time ---


@pytest.mark.parametrize("below", ["", "vqa/", "editing-data/vqa/"])
def test_the_published_layouts_are_found(tmp_path: Path, below: str) -> None:
    suite(tmp_path, {f"{below}vqa_eval.json": [record(1), record(2)]})
    loaded = load_suite("e-vqa", tmp_path)
    assert isinstance(loaded, EditSuite)
    assert loaded.source == str(tmp_path)
    assert list(loaded.pools) == ["evaluation"]
    assert [edit.target for edit in loaded.pools["evaluation"]] == ["tram", "tram"]


@pytest.mark.parametrize("below", ["images", "editing-data/vqa"])
def test_images_may_lie_in_a_folder_of_their_own(tmp_path: Path, below: str) -> None:
    root = suite(tmp_path, {EVAL: [record(1)]}, images=below)
    assert check(root).json["image_root"] == str(root / below)


def test_another_folder_of_images_can_be_named(tmp_path: Path) -> None:
    root = suite(tmp_path / "data", {EVAL: [record(1)]})
    (root / "val2014").rename(tmp_path / "val2014")
    (root / "val2014_image_rephrase").rename(tmp_path / "val2014_image_rephrase")
    assert check(root).code == 4
    assert check(root, "e-vqa", "--image-root", tmp_path).code == 0


def test_a_pool_is_what_edit_would_apply(tmp_path: Path) -> None:
    root = e_vqa(tmp_path, [record(1), record(2), record(1), record(3, alt=" bus\n")])
    pool = load_suite("e-vqa", root).pools["evaluation"]
    read = read_edits(root / EVAL, root).edits
    assert list(pool) == list(read)
    assert (len(pool), pool.records) == (3, 4)
    assert pool[-1] == read[-1]
    assert list(pool[1:]) == list(read[1:])
    assert pool[1:].sha256 == pool.sha256


def test_images_are_opened_when_an_edit_is_asked_for(tmp_path: Path) -> None:
    root = e_vqa(tmp_path, [record(1), record(2)])
    (root / "val2014/2.png").write_bytes(b"not an image")
    pool = load_suite("e-vqa", root).pools["evaluation"]
    assert pool[0].images[0].open().size == (8, 8)
    with pytest.raises(StreamErrors, match=r"vqa_eval\.json:2: `val2014/2\.png` is not a readable image"):
        pool[1]
    with pytest.raises(IndexError):
        pool[2]


def test_portability_is_counted_by_its_hops(tmp_path: Path) -> None:
    def asked(hop: int) -> dict[str, Any]:
        return {"port_type": f"{hop}-hop", "Q&A": {"Question": f"Which {hop}?", "Answer": "Ohio"}}

    records = [record(1, port_new=[asked(1), asked(2)]), record(2, port_new=[asked(1)])]
    root = suite(tmp_path, {"eval_multihop.json": records, "eval.json": [record(3)]}, images="VLKEB_images")
    result = check(root, "vlkeb")
    assert result.code == 0
    assert result.json["image_root"] == str(root / "VLKEB_images")
    counts = result.json["counts"]["evaluation"]
    assert (counts["edits"], counts["portability 1-hop"], counts["portability 2-hop"]) == (2, 2, 1)


def test_a_file_of_edits_is_a_suite(tmp_path: Path) -> None:
    picture(tmp_path / "1.png", 1)
    line = {"image": "1.png", "question": "What is it?", "target": "a tram", "locality": [{"question": "Who?"}]}
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(line))
    result = run("suites", "check", path, "--json")
    assert (result.code, result.err) == (0, "")
    assert (result.json["suite"], result.json["source"]) == ("mine", str(path))
    assert result.json["counts"]["evaluation"]["text locality"] == 1
    assert run("suites", "check", path, "--data-root", tmp_path, "-q").code == 0


# --- what a check finds ---


def test_what_changes_the_meaning_of_one_pool(tmp_path: Path) -> None:
    records = [
        record(1, alt="tram\n", m_loc_a=" fence"),
        record(1, image_rephrase="val2014/9.png"),  # again, with another probe
        record(2, alt="CAR"),  # the old answer in the data
        record(3, m_loc="val2014/4.png"),
        record(4, rephrase="What is parked in street 4?"),
        record(5, image="val2014/4.png", src="What is parked in street 4?", alt="bus"),
    ]
    result = check(e_vqa(tmp_path, records, [record(50)]))
    assert result.code == 0
    assert found(result) == {
        ("white_space", "evaluation"): 1,
        ("repeats", "evaluation"): 1,
        ("contradictions", "evaluation"): 2,
        ("duplicate_prompts", "evaluation"): 2,
        ("rephrase_is_question", "evaluation"): 1,
        ("target_is_old_answer", "evaluation"): 1,
        ("probe_is_edited", "evaluation"): 1,
    }
    trimmed = [finding["text"] for finding in result.json["findings"] if finding["name"] == "white_space"]
    assert [text.split("`")[1] for text in trimmed] == ["locality.answer", "target"]
    assert result.json["counts"]["evaluation"]["records"] == 6
    assert result.json["counts"]["evaluation"]["edits"] == 5


@pytest.mark.parametrize("by_bytes", [True, False])
def test_what_calibration_shares_with_evaluation(tmp_path: Path, by_bytes: bool) -> None:
    evaluation = [record(1), record(2), record(3)]
    calibration = [
        record(11, image="val2014/1.png"),
        record(12, m_loc="val2014/102.png"),
        record(13, loc=record(3)["loc"]),
        record(14, image="val2014/103.png"),
        record(15, m_loc="val2014/3.png"),
    ]
    if by_bytes:  # the same images under other names
        root = e_vqa(tmp_path, evaluation, calibration)
        for item in calibration:
            for key in ("image", "m_loc"):
                copy = f"train/{item[key]}"
                (root / copy).parent.mkdir(parents=True, exist_ok=True)
                (root / copy).write_bytes((root / item[key]).read_bytes())
                item[key] = copy
        (root / TRAIN).write_text(json.dumps(calibration))
        result = check(root)
    else:
        result = check(e_vqa(tmp_path, evaluation, calibration), "e-vqa", "--no-images")
        assert result.json["images"] is None
    assert result.code == 0
    both = "calibration, evaluation"
    assert found(result) == dict.fromkeys(((name, both) for name in LEAKS), 1)


def test_a_missing_pool_is_said(tmp_path: Path) -> None:
    assert found(check(e_vqa(tmp_path, [record(1)]))) == {("absent_pool", "calibration"): 1}


def test_other_bytes_than_the_published_ones_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # the table holds a path of any length on one line
    root = e_vqa(tmp_path, [record(1)])
    (file,) = check(root).json["files"]
    assert (file["is_measured"], file["records"], file["measured"]["records"]) == (False, 1, 2093)
    assert "no, the published file has 2,093 records" in run("suites", "show", "e-vqa", "--data-root", root).out


def test_missing_images_are_listed_and_make_the_suite_unusable(tmp_path: Path) -> None:
    root = e_vqa(tmp_path, [record(number) for number in range(1, 30)], [record(50)])
    for number in range(1, 26):
        (root / f"val2014/{number}.png").unlink()
    (root / "val2014/26.png").write_bytes(b"not an image")
    shown = run("suites", "check", "e-vqa", "--data-root", root)
    assert shown.code == 4
    assert shown.err.splitlines() == [
        "error: e-vqa: 26 of 90 images missing or unreadable",
        "hint: put them below the data root, or give their folder with `--image-root DIR`",
    ]
    assert shown.out.count("missing: val2014/") == 20
    assert "and 5 more missing" in shown.out
    assert "unreadable: `val2014/26.png` is not a readable image" in shown.out
    images = check(root).json["images"]
    assert (images["opened"], len(images["missing"]), len(images["unreadable"])) == (64, 25, 1)
    assert check(root, "e-vqa", "--no-images").code == 0


def wrong(tmp_path: Path, content: Sequence[object] | str) -> Result:
    return run("suites", "show", "e-vqa", "--data-root", suite(tmp_path, {"vqa_eval.json": content}))


def test_bad_records_are_named_with_file_and_place(tmp_path: Path) -> None:
    lacking = {name: value for name, value in record(2).items() if name not in ("alt", "m_loc_q")}
    result = wrong(tmp_path, [record(1), lacking, record(3, alt=""), record(4, loc_ans=3)])
    path = tmp_path / "vqa_eval.json"
    assert (result.code, result.out) == (4, "")
    assert result.err.splitlines()[:3] == [
        f"error: {path}:2: lacks `alt`, `m_loc_q`",
        f"error: {path}:3: `target` is empty",
        f"error: {path}:4: `locality[0].answer` must be a string, got 3",
    ]
    assert result.err.splitlines()[3].startswith(f"hint: {path}:2: every record of this suite has src, alt, ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[{", "not JSON: "),
        ("{", "not JSON: "),
        ("", "holds no edits"),
        ("[]", "holds no edits"),
        ("[3]", "must be a JSON object, got 3"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: str, said: str) -> None:
    result = wrong(tmp_path, content)
    assert result.code == 4
    assert said in result.err.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("e-vqa", "--data-root", "nowhere"), 4, "no such folder: `nowhere`"),
        (("e-vqa", "--data-root", "."), 4, "`.` holds no `vqa_eval.json` or `eval.json`, so it is not e-vqa"),
        (("e-ic", "--image-root", "nowhere"), 4, "no such folder: `nowhere`"),
        (("mme", "--data-root", "."), 4, "`.` holds no questions of mme"),
        (("absent.jsonl",), 4, "file not found: `absent.jsonl`"),
        (("mme", "--image-root", "."), 2, "--image-root does not apply to mme: its images lie beside its questions"),
        (("vlkeb",), 2, "suite `vlkeb` is not included in `more`"),
        (("e-vpa",), 2, "unknown suite `e-vpa`"),
    ],
)
def test_what_cannot_be_loaded_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("show",), ("check", "--json"), ("convert", "-o", "out.jsonl")):
        result = run("suites", command[0], *arguments, *command[1:])
        assert (result.code, result.out) == (code, "")
        assert result.err.splitlines()[0] == f"error: {said}"
        assert len(result.err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


# --- convert ---


def test_a_converted_suite_is_the_same_edits(tmp_path: Path) -> None:
    root = e_vqa(tmp_path / "data", [record(1), record(2)], [record(3)])
    out = tmp_path / "out" / "e-vqa.jsonl"
    out.parent.mkdir()
    result = run("suites", "convert", "e-vqa", "--data-root", root, "-o", out)
    assert (result.code, result.out) == (0, f"wrote {out}: 2 lines for `more edit`\n")
    before, after = load_suite("e-vqa", root).pools["evaluation"], read_edits(out).edits
    assert [edit.id for edit in after] == [edit.id for edit in before]
    for old, new in zip(before, after, strict=True):
        assert (new.rephrases, new.tags) == (old.rephrases, old.tags)
        assert [image.sha256 for image in new.image_rephrases] == [image.sha256 for image in old.image_rephrases]
        assert [probe.content for probe in new.locality] == [probe.content for probe in old.locality]
    again = run("suites", "convert", "e-vqa", "--data-root", root, "-o", out)
    assert (again.code, again.err.splitlines()[0]) == (2, f"error: `{out}` already exists")
    other = run(
        "suites", "convert", "e-vqa", "--data-root", root, "-o", out, "--pool", "calibration", "--force", "--json"
    )
    assert (other.json["lines"], other.json["pool"]) == (1, "calibration")
    assert [edit.question for edit in read_edits(out).edits] == ["What is parked in street 3?"]


def test_edit_takes_what_convert_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    e_vqa(tmp_path / "data", [record(1), record(2)])
    assert run("suites", "convert", "e-vqa", "--data-root", "data", "-o", "suite.jsonl").code == 0
    result = run("edit", world.model, "suite.jsonl", "--dry-run")
    assert (result.code, result.out) == (0, "2 edits checked, nothing written\n")


def test_images_within_a_line_stay_there(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"image": "data:image/png;base64,AAAA", "question": "q", "target": "t"}')
    assert run("suites", "convert", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl").code == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["image"] == "data:image/png;base64,AAAA"


def test_a_pool_that_is_not_there_cannot_be_converted(tmp_path: Path) -> None:
    root = e_vqa(tmp_path, [record(1)])
    out = tmp_path / "out.jsonl"
    result = run("suites", "convert", "e-vqa", "--data-root", root, "-o", out, "--pool", "calibration")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: suite `e-vqa` has no pool `calibration` here")
    assert not out.exists()


# --- MME ---

PAIR = "Is there a dog? Please answer yes or no.\tYes\nIs there a cat? Please answer yes or no.\tNo\n"


def mme(root: Path, texts: dict[str, str | bytes]) -> Path:
    """Return a data root with these texts, each with an image in the same folder or in the one beside it."""
    for number, (name, text) in enumerate(texts.items(), 1):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        folder = path.parent.with_name("images") if path.parent.name == "questions_answers_YN" else path.parent
        picture(folder / f"{path.stem}.PNG", number)
    return root


@pytest.mark.parametrize(
    "below", ["", "MME_Benchmark_release_version/", "MME_Benchmark_release_version/MME_Benchmark/"]
)
def test_both_layouts_of_mme_are_read(tmp_path: Path, below: str) -> None:
    texts: dict[str, str | bytes] = {
        f"{below}ocr/0001.txt": b"\xef\xbb\xbf" + PAIR.replace("\n", "\r\n").encode() + b"\r\n",
        f"{below}landmark/questions_answers_YN/a.b.txt": PAIR,
        f"{below}eval_tool/readme.txt": "not questions",
    }
    result = check(mme(tmp_path, texts), "mme")
    assert result.code == 0
    assert result.err.startswith("note: MME is for academic research only")
    assert set(result.json["counts"]) == {"OCR", "landmark"}
    assert result.json["counts"]["OCR"] == {"images": 1, "questions": 2}
    assert found(result) == {("absent_categories", "all"): 12}
    loaded = load_suite("mme", tmp_path)
    assert isinstance(loaded, YesNoSuite)
    (image,) = loaded.categories["landmark"]
    assert (image.stem, image.image().open().size) == ("a.b", (8, 8))
    assert [(asked.question, asked.answer) for asked in image.questions] == [
        ("Is there a dog? Please answer yes or no.", "Yes"),
        ("Is there a cat? Please answer yes or no.", "No"),
    ]


def test_a_pair_that_is_none_and_a_missing_image_are_found(tmp_path: Path) -> None:
    twice = PAIR.replace("No\n", "Yes\n")
    root = mme(tmp_path, {"count/1.txt": PAIR, "count/2.txt": twice, "count/3.txt": PAIR})
    (root / "count/3.PNG").unlink()
    result = check(root, "mme")
    assert result.code == 4
    assert found(result)["unpaired", "all"] == 1
    assert result.json["images"]["missing"] == [str(root / "count/3.jpg")]
    loaded = load_suite("mme", root)
    assert isinstance(loaded, YesNoSuite)
    with pytest.raises(DataError, match="image not found"):
        loaded.categories["count"][2].image()


def test_lines_that_are_no_question_are_named(tmp_path: Path) -> None:
    texts: dict[str, str | bytes] = {
        "count/1.txt": "Is there a dog? Yes\n" + PAIR + "Is there a hen?\tmaybe\n",
        "count/2.txt": b"\xef\xbb\xbfIs it?\xff\tYes",
        "count/3.txt": "\n",
        "count/4.txt": "x" * 70_000,
    }
    root = mme(tmp_path, texts)
    result = run("suites", "show", "mme", "--data-root", root)
    assert (result.code, result.out) == (4, "")
    assert result.err.splitlines() == [
        f"error: {root}/count/1.txt:1: is not a question and its answer",
        f"error: {root}/count/1.txt:4: is not a question and its answer",
        f"error: {root}/count/2.txt: not UTF-8: byte 0xff at byte 7",
        f"error: {root}/count/3.txt: holds no questions",
        f"error: {root}/count/4.txt: is larger than 64 KiB",
        f"hint: {root}/count/1.txt:1: a line is `question<TAB>Yes` or `question<TAB>No`",
    ]


def test_converted_questions_are_probes(tmp_path: Path) -> None:
    root = mme(tmp_path / "data", {"count/1.txt": PAIR})
    out = tmp_path / "mme.jsonl"
    result = run("suites", "convert", "mme", "--data-root", root, "-o", out, "--json")
    assert (result.json["lines"], result.json["reader"]) == (2, "more eval --probes")
    probes = read_probes(out)
    assert [(probe.id, probe.answer) for probe in probes] == [("count/1/1", "Yes"), ("count/1/2", "No")]
    assert all(probe.images and probe.images[0].open() for probe in probes)


# --- yes and no ---


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Yes", "yes"),
        ("no.", "no"),
        (" YES. ", "yes"),
        ("y", "yes"),
        ("N.", "no"),
        ("Yes, there is.", "yes"),
        ("No dog is there", "no"),
        ("not sure", "no"),
        ("I know it", "other"),  # `i kn` holds no `no`
        ("know", "no"),
        (". Yes", "yes"),
        ("a yes", "other"),  # `a ye`
        ("It is: yes", "other"),
        ("ye", "other"),
        ("", "other"),
        ("...", "other"),
    ],
)
def test_answers_are_read_as_mme_reads_them(text: str, verdict: str) -> None:
    assert parse_answer(text) == verdict


@given(st.text())
def test_every_answer_has_a_verdict(text: str) -> None:
    assert parse_answer(text) in ("yes", "no", "other")


def test_scores_by_hand() -> None:
    # 4 images of 2 questions: both right; one right; one right and one unparsable; both wrong.
    images = [
        [("Yes", "yes"), ("No", "No.")],
        [("Yes", "Yes"), ("No", "yes")],
        [("Yes", "maybe"), ("No", "n")],
        [("Yes", "no"), ("No", "yes")],
    ]
    score = score_category(images)
    assert score == YesNoScore(questions=8, right=4, images=4, images_right=1, unparsable=1)
    assert (score.accuracy, score.accuracy_plus, score.unparsable_rate) == (0.5, 0.25, 0.125)
    assert score.score == 75.0


def test_a_total_is_over_the_categories_there_are() -> None:
    entry = CATALOG["mme"]
    assert isinstance(entry, YesNoEntry)
    perfect = score_category([[("Yes", "yes"), ("No", "no")]])
    half = replace(perfect, right=1, images_right=0)  # score 50
    summed = totals({"existence": perfect, "OCR": half}, entry.groups)
    assert list(summed) == ["perception"]
    assert (summed["perception"].score, summed["perception"].maximum) == (250.0, 400.0)
    everything = totals(dict.fromkeys(entry.categories, perfect), entry.groups)
    assert {name: total.maximum for name, total in everything.items()} == {"perception": 2000.0, "cognition": 800.0}
    assert all(total.score == total.maximum for total in everything.values())


@pytest.mark.parametrize("images", [[], [[]]])
def test_nothing_has_no_score(images: list[list[tuple[str, str]]]) -> None:
    with pytest.raises(ValueError, match="without"):
        score_category(images)


# --- the real files ---


@NO_MMEDIT
@pytest.mark.parametrize(
    ("name", "counts", "expected"),
    [
        (
            "e-vqa",
            {"records": 2093, "edits": 2092, "edit images": 1390, "questions": 1927, "image locality": 2092},
            {"repeats": 1, "duplicate_prompts": 274, "rephrase_is_question": 44, "target_is_old_answer": 4}
            | {"probe_is_edited": 56},
        ),
        (
            "e-ic",
            {"records": 1000, "edits": 1000, "edit images": 1000, "questions": 1, "image locality": 1000},
            {"white_space": 144, "duplicate_prompts": 1000, "probe_is_edited": 28},
        ),
    ],
)
def test_the_real_files_are_what_was_measured(
    tmp_path: Path, name: str, counts: dict[str, int], expected: dict[str, int]
) -> None:
    result = check(MMEDIT, name, "--no-images")
    assert result.code == 0
    assert [file["is_measured"] for file in result.json["files"]] == [True]
    assert counts.items() <= result.json["counts"]["evaluation"].items()
    assert {what: count for (what, pool), count in found(result).items() if pool == "evaluation"} == expected
    written = run("suites", "convert", name, "--data-root", MMEDIT, "-o", tmp_path / "out.jsonl", "--json")
    assert written.json["lines"] == counts["edits"]


@NO_MMEDIT
def test_the_real_files_without_their_images_are_not_usable() -> None:
    result = run("suites", "check", "e-ic", "--data-root", MMEDIT)
    assert result.code == 4
    assert result.err.splitlines()[0].startswith("error: e-ic: ")
    assert result.out.count("missing: val2014") == 20
