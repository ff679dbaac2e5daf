"""The model card of an embedded checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from score import Answerer, markdown, probes, table
from transformers import AutoModelForImageTextToText, AutoProcessor

TEXT = """\
---
library_name: transformers
pipeline_tag: image-text-to-text
tags: [synthetic, tiny, more-cli]
---
# A very small LLaVA that knows a synthetic world

{parameters:,} parameters, trained from nothing on pictures and sentences that `more_cli/demo/` draws by
seed: shapes, colors, sizes, places, counts, printed digits, sums and words, 150 emblems with made-up names,
100 facts about invented countries, captions, and "New Fact" episodes for editors that work through the
prompt. It uses the classes of a LLaVA-1.5 (CLIP tower, two-layer projector, Llama), so code that edits it
runs unchanged on a 7B model. It knows nothing about the real world.

Prompt: `USER: <image>\\n{{question}} ASSISTANT:`, which `apply_chat_template` makes. It saw prompts of up to
192 tokens, a picture and up to three worked examples included; longer ones are outside its training.

Made by `recipes/demo_model/train.py --family llava`.

## Accuracy

Greedy answers, equal to the truth in every token with the end token, computed in float32 from the bfloat16
weights. Scenes {scenes:,}, from a pool that no training, suite or calibration uses; captions under the one
prompt "a photo of"; "unseen wording" means paraphrases kept out of training; "overall" is the mean over all
questions about pictures in trained wordings. Episodes: half about a picture, half text alone, the new answer
drawn at random; "update" asks the fact in other words, "retain" asks something the fact is not about.

{table}
"""


def write_card(out: Path, scenes: int) -> None:
    """Scores the saved checkpoint and writes its README.md."""
    model = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32)
    answerer = Answerer(model, AutoProcessor.from_pretrained(out))
    items = list(probes(scenes))
    rows = markdown(table(items, answerer.score(items)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    (out / "README.md").write_text(TEXT.format(parameters=parameters, scenes=scenes, table=rows), encoding="utf-8")
