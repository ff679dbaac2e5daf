"""The model card of an embedded checkpoint: python -m tests.worlds.embedded.card DIR --family NAME."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import torch

from .families import FAMILIES
from .score import Answerer, markdown, probes, table

HEAD = """\
---
library_name: transformers
pipeline_tag: image-text-to-text
tags: [synthetic, tiny, more-vlm]
---
# A very small {title} that knows a synthetic world

"""
ABOUT = """{parameters:,} parameters, {origin} on pictures and sentences that `tests/worlds/embedded/world/` draws by
seed: shapes, colors, sizes, places, counts, printed digits, sums and words, 150 emblems with made-up names, 100 facts
about invented countries, captions, and "New Fact" episodes for editors that work through the prompt. It uses the
classes of {classes}, so code that edits it runs unchanged on a 7B model. It knows nothing about the real world."""
PROMPT = """Prompt: `{prompt}`, {made}. It saw prompts of up to 192 tokens, a picture and up to three worked examples
included; longer ones are outside its training."""
MADE = "Made by `tests/worlds/embedded/train.py --family {family}`."
ACCURACY = """Greedy answers, equal to the truth in every token with the end token, computed in float32 from the
bfloat16 weights. Scenes {scenes:,}, from a pool that no training, suite or calibration uses; captions under the one
prompt "a photo of"; "unseen wording" means paraphrases kept out of training; "overall" is the mean over all questions
about pictures in trained wordings. Episodes: half about a picture, half text alone, the new answer drawn at random;
"update" asks the fact in other words, "retain" asks something the fact is not about."""
TEMPLATE = "which `apply_chat_template` makes"
NO_TEMPLATE = """whose first two parts the processor adds; there is no chat template. This class takes no prompt without
a picture, so facts and text-only episodes are asked of its language model alone"""
FROM_NOTHING = "trained from nothing"
FROM_PARENT = "started from the weights of the small {parent} of the same world and trained for minutes"


def write_card(out: Path, name: str, scenes: int) -> None:
    """Scores the saved checkpoint of the family called `name` and writes its README.md."""
    answerer, items = Answerer.load(out, torch.float32), list(probes(scenes))
    rows = markdown(table(items, answerer.score(items)))
    parameters = sum(parameter.numel() for parameter in answerer.model.parameters())
    made = TEMPLATE if (out / "chat_template.jinja").exists() else NO_TEMPLATE
    (out / "README.md").write_text(card(name, parameters, made, scenes, rows), encoding="utf-8")


def card(name: str, parameters: int, made: str, scenes: int, rows: str) -> str:
    """The card's text around the table."""
    family = FAMILIES[name]
    origin = FROM_PARENT.format(parent=FAMILIES[family.parent].title) if family.parent else FROM_NOTHING
    prompt = family.prompt.rendered("{question}", "<image>").replace("\n", "\\n")
    parts = [
        ABOUT.format(parameters=parameters, origin=origin, classes=family.classes),
        PROMPT.format(prompt=prompt, made=made),
        MADE.format(family=name),
        "## Accuracy",
        ACCURACY.format(scenes=scenes),
    ]
    filled = [textwrap.fill(part, 110, break_long_words=False, break_on_hyphens=False) for part in parts]
    return HEAD.format(title=family.title) + "\n\n".join([*filled, rows]) + "\n"


def main() -> None:
    """Writes the card of a checkpoint directory again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--family", choices=sorted(FAMILIES), required=True)
    parser.add_argument("--scenes", type=int, default=2000)
    arguments = parser.parse_args()
    write_card(arguments.model, arguments.family, arguments.scenes)


if __name__ == "__main__":
    main()
