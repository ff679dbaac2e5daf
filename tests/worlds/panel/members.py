"""The models of the panel, one row of a table each, what they are shown, and how they answer."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ..embedded.perception import as_input
from .worlds import Scene, World, world_named


@dataclass(frozen=True)
class Member:
    """One model."""

    name: str
    half: str
    """"development", "held-out", or "fresh": held out too, and made when the constants had been chosen."""
    world: str
    seed: int
    text: str
    """The text model's `model_type`: llama (RMS norm, no bias), qwen2 (and biases of attention), starcoder2 and opt
    (layer norm and biases everywhere)."""
    tower: str
    """clip or siglip, in a LLaVA; qwen2_vl, in a Qwen2-VL; qformer, behind a ViT in a BLIP-2."""
    tied: bool
    side: int
    patch: int
    """Pixels; `side // patch` squared is the number of image tokens, in a Qwen2-VL four times that number."""
    width: int
    layers: int
    vision_width: int
    vision_layers: int
    """That are used: LLaVA leaves the last one out."""
    heads: int
    precision: str
    """On disk."""
    opening: str = "USER: "
    asking: str = " ASSISTANT:"
    steps: int = 1800
    horizon: int = 0
    """Step at which the learning rate would reach its end; 0 means `steps`. A weak base stops long before."""
    pictures: int = 10
    """A batch."""
    rate: float = 1.5e-3
    room: int = 150
    """Tokens of a training row besides the image's."""

    @property
    def tokens(self) -> int:
        """Image tokens."""
        return (self.side // self.token_side) ** 2

    @property
    def token_side(self) -> int:
        """Pixels per side of what one image token shows."""
        return self.patch * (2 if self.tower == "qwen2_vl" else 1)

    @property
    def of_world(self) -> World:
        """Its world."""
        return world_named(self.world)

    @property
    def ffn(self) -> int:
        """Width inside a text layer's feed-forward part: a gated one has three matrices, the other has two."""
        return self.width * (4 if self.text in ("starcoder2", "opt") else 3)


MEMBERS = {
    name: Member(name=name, **row)
    for name, row in tomllib.loads(Path(__file__).with_name("members.toml").read_text(encoding="utf-8")).items()
}


def pixels(member: Member, scenes: list[Scene], variants: list[int]) -> Tensor:
    """Pictures as input of the tower: [B, 3, side, side] in [-1, 1]."""
    draw = member.of_world.draw
    return as_input([np.asarray(draw(scene, n, member.side)) for scene, n in zip(scenes, variants, strict=True)])
