"""Trains an embedded model from nothing and writes a complete checkpoint directory.

    python recipes/demo_model/train.py --family llava --out DIR [--resume]

The stages named in STAGES teach the vision tower to see from dense labels; the lessons there teach the whole
model to answer.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from card import write_card
from families import FAMILIES, PATCHES, VISION_WIDTH, Family
from loop import Schedule
from perception import Heads, learn_to_see
from score import Answerer, markdown, probes, table
from speech import COMPARE, DRILL, FINISH, POLISH, PRACTICE, SPEECH, Learner, Lesson, Writer, learn_to_answer
from transformers import (
    AutoTokenizer,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from more_cli.demo.files import demo_model_dir

SEED = 20_260_412
STAGES: tuple[tuple[str | Lesson, Schedule], ...] = (
    ("perception", Schedule(1600, 1.5e-3)),
    ("reading", Schedule(700, 1.2e-3, 50)),
    (SPEECH, Schedule(1600, 1.5e-3, horizon=2600)),
    (PRACTICE, Schedule(1400, 1.2e-3, 100, horizon=3000)),
    (DRILL, Schedule(2400, 0.9e-3, 50)),
    (COMPARE, Schedule(1200, 1.0e-3, 50, horizon=2200)),
    ("matching", Schedule(400, 5e-4, 50)),
    (FINISH, Schedule(1800, 1.0e-3, 50)),
    (POLISH, Schedule(2000, 0.8e-3, 50)),
)


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    parser.add_argument("--out", type=Path, default=None, help="checkpoint directory; default: inside the package")
    parser.add_argument("--work", type=Path, default=Path("demo_training"), help="where resumable state is kept")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --work")
    parser.add_argument("--scenes", type=int, default=2000, help="scenes behind the model card's table")
    arguments = parser.parse_args()
    work = arguments.work / arguments.family
    if work.exists() and not arguments.resume:
        shutil.rmtree(work)
    train(arguments.family, arguments.out or demo_model_dir(), work, device(arguments.device), arguments)


def device(name: str) -> torch.device:
    """The device called `name`, or the best there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def train(name: str, out: Path, work: Path, where: torch.device, arguments: argparse.Namespace) -> None:
    """Both stages, then the checkpoint and its card."""
    torch.manual_seed(SEED)
    family = FAMILIES[name]
    tokenizer = kept_tokenizer(family, work / "tokenizer")
    processor = family.processor(tokenizer)
    model = family.model(tokenizer).to(where)
    heads = Heads(VISION_WIDTH, PATCHES).to(where)
    learner = Learner(model, family, heads)
    writer = Writer(family, tokenizer, PATCHES**2, model.config.image_token_id)
    answerer = Answerer(model, processor)
    quick = [item for item in probes(150) if not item.group.startswith("fact") and "unseen" not in item.group]

    def check(step: int) -> str:
        rows = markdown(table(quick, answerer.score(quick)))
        model.train()
        return f"answers after {step} steps\n{rows}"

    tower = model.model.vision_tower
    for stage, schedule in STAGES:
        if isinstance(stage, Lesson):
            learn_to_answer(stage, learner, writer, schedule, work, check)
        else:
            learn_to_see(stage, tower, heads, lambda drawn: family.see(model, drawn.to(where)), schedule, work)
    save(model, processor, out)
    write_card(out, arguments.scenes)


def kept_tokenizer(family: Family, folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of this training, made at its start: a resumed one must not get another."""
    if not folder.exists():
        family.tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, out: Path) -> None:
    """Writes the directory beside its final place first, so that a half-written one is never seen."""
    processor.tokenizer.backend_tokenizer.no_padding()  # or the last batch's padding would be saved
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.to("cpu", torch.bfloat16).save_pretrained(part)
    processor.save_pretrained(part)
    for file in part.iterdir():
        file.chmod(0o644)
    shutil.rmtree(out, ignore_errors=True)
    part.replace(out)


if __name__ == "__main__":
    main()
