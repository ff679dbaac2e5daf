"""Trains an embedded model and writes a complete checkpoint directory.

    python -m tests.worlds.embedded.train --family llava --out DIR [--resume]

LLaVA starts from random weights: the stages named in STAGES teach its tower to see from dense labels, the lessons
there teach the whole model to answer. The other families start from a trained parent: they copy its weights where the
parts match, and the other parts learn the parent's image tokens and hidden states before the lessons.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)

from more_cli.demo.files import demo_model_dir

from .card import write_card
from .exam import marks, marks_line
from .families import FAMILIES, model_folder
from .family import Family
from .imitation import learn_to_answer_alike, learn_to_see_alike, learn_to_think_alike
from .llava import PATCHES, VISION_WIDTH
from .loop import Schedule
from .perception import Heads, learn_to_see
from .speech import (
    CLOSING,
    COMPARE,
    DRILL,
    FINISH,
    LED,
    POLISH,
    PRACTICE,
    SETTLE,
    SPEECH,
    STEADY,
    Learner,
    Lesson,
    Writer,
    learn_to_answer,
)

SEED = 20_260_412
CHECKED = 192  # scenes of a quick check
Stages = tuple[tuple[str | Lesson, Schedule], ...]
STAGES: dict[str, Stages] = {
    "llava": (
        ("perception", Schedule(1600, 1.5e-3)),
        ("reading", Schedule(700, 1.2e-3, 50)),
        (SPEECH, Schedule(1600, 1.5e-3, horizon=2600)),
        (PRACTICE, Schedule(1400, 1.2e-3, 100, horizon=3000)),
        (DRILL, Schedule(2400, 0.9e-3, 50)),
        (COMPARE, Schedule(1200, 1.0e-3, 50, horizon=2200)),
        ("matching", Schedule(400, 5e-4, 50)),
        (FINISH, Schedule(1800, 1.0e-3, 50)),
        (POLISH, Schedule(2000, 0.8e-3, 50)),
    ),
    "qwen2_vl": (
        ("seeing", Schedule(800, 2e-3, 100)),
        (LED, Schedule(500, 3e-4, 30)),
        (SETTLE, Schedule(400, 4e-4, 20)),
        (STEADY, Schedule(3000, 6e-4, 50)),
    ),
    "qwen3_vl": ((LED, Schedule(450, 4e-4, 30)), (SETTLE, Schedule(160, 4e-4, 10)), (STEADY, Schedule(3000, 7e-4, 50))),
    "blip2_opt": (
        ("seeing", Schedule(500, 1.5e-3, 100)),
        ("thinking", Schedule(1600, 1.5e-3, 100)),
        (LED, Schedule(1100, 1.0e-3, 60)),
        (STEADY, Schedule(3000, 7e-4, 50)),
        (CLOSING, Schedule(1000, 3e-4, 30)),
    ),
}


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    parser.add_argument("--out", type=Path, default=None, help="checkpoint directory; default: the shipped one")
    parser.add_argument(
        "--work", type=Path, default=Path("demo_training"), help="folder for the state that --resume needs"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--parent", type=Path, default=None, help="checkpoint to start from; default: the shipped one")
    parser.add_argument("--onward", action="store_true", help="train only the last stage, from the shipped checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the state in --work")
    parser.add_argument("--scenes", type=int, default=2000, help="scenes behind the model card's table")
    arguments = parser.parse_args()
    work = arguments.work / arguments.family
    if work.exists() and not arguments.resume:
        shutil.rmtree(work)
    train(arguments.family, arguments.out or model_folder(arguments.family), work, device(arguments.device), arguments)


def device(name: str) -> torch.device:
    """The device called `name`; "auto" means a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def train(name: str, out: Path, work: Path, where: torch.device, arguments: argparse.Namespace) -> None:
    """Runs all stages or, with `onward`, the last; then writes the checkpoint and its card."""
    torch.manual_seed(SEED)
    family = FAMILIES[name]
    if arguments.onward:
        tokenizer = AutoTokenizer.from_pretrained(model_folder(name))
        model, stages = trained(model_folder(name)).to(where), STAGES[name][-1:]
    else:
        tokenizer = kept_tokenizer(family, work / "tokenizer")
        model, stages = family.model(tokenizer).to(where), STAGES[name]
        if family.inherit is not None:
            family.inherit(model, trained(arguments.parent or model_folder(family.parent)).to(where))
    heads = None if family.parent else Heads(VISION_WIDTH, PATCHES).to(where)
    learner = Learner(model, family, heads)
    writer = Writer(family, tokenizer, model)
    llava = FAMILIES["llava"]
    if family.parent:
        teacher = trained(demo_model_dir()).to(where)
        like_teacher = Writer(llava, AutoTokenizer.from_pretrained(demo_model_dir()), teacher)

    def check(step: int) -> str:
        return f"after {step} steps: " + marks_line(
            marks(model, lambda data: learner.spoken(data)[0].last, writer, CHECKED)
        )

    for stage, schedule in stages:
        if isinstance(stage, Lesson) and stage.led:
            guide = Learner(teacher, llava, None)
            learn_to_answer_alike(stage, learner, writer, guide, like_teacher, schedule, work, check)
        elif isinstance(stage, Lesson):
            learn_to_answer(stage, learner, writer, schedule, work, check)
        elif stage == "seeing":
            learn_to_see_alike(model, family, teacher, llava, schedule, work)
        elif stage == "thinking":
            learn_to_think_alike(model, family, teacher, llava, like_teacher, LED, schedule, work)
        else:
            see = lambda drawn: family.see(model, drawn.to(where)).features  # noqa: E731
            learn_to_see(stage, model.model.vision_tower, heads, see, schedule, work)
    save(model, family.processor(tokenizer), out)
    write_card(out, name, arguments.scenes)


def trained(folder: Path) -> PreTrainedModel:
    """A checkpoint's model, as a student or as a teacher."""
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


def kept_tokenizer(family: Family, folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of this training, made once at its start, so that a resumed training has the same."""
    if not folder.exists():
        family.tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def save(model: PreTrainedModel, processor: ProcessorMixin, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the directory under another name and renames it, so that there is never a half-written one."""
    processor.tokenizer.backend_tokenizer.no_padding()  # or the last batch's padding would be saved
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.to("cpu", dtype).save_pretrained(part)
    processor.save_pretrained(part)
    for file in part.iterdir():
        file.chmod(0o644)
    shutil.rmtree(out, ignore_errors=True)
    part.replace(out)


if __name__ == "__main__":
    main()
