"""Pictures of scenes: 84x84 RGB, few colours, so that a PNG takes one or two kilobytes.

Shapes are sampled from inequalities on a 4x4 subpixel grid, not rasterised by a library, so that the
pixels are the same on every machine.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from .emblems import CELLS, emblems
from .glyphs import bitmap
from .pools import Dice, Purpose
from .scenes import SHAPES, Scene, Thing

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Canvas = npt.NDArray[np.int16]

SIDE = 84  # pixels
CELL = 28  # pixels of a place
SAMPLES = 4  # subpixels a side
LEVELS = 4  # steps of coverage at an edge; more would cost bytes
TEXT_SCALE = 3
EMBLEM_CELL = 8  # pixels

RGB = np.array(
    [
        (214, 40, 40),
        (244, 132, 20),
        (240, 205, 30),
        (40, 150, 60),
        (40, 90, 215),
        (130, 50, 165),
        (245, 130, 185),
        (35, 35, 40),
    ],
    dtype=np.int16,
)
PAPERS = np.array(
    [(250, 250, 248), (236, 240, 246), (246, 238, 226), (232, 244, 232), (240, 232, 244), (226, 228, 230)],
    dtype=np.int16,
)
INKS = np.array([(70, 60, 55), (50, 70, 90), (60, 80, 60)], dtype=np.int16)
BACKGROUNDS = ("plain", "stripes", "dots", "checks", "halves")
RADII = ((13, 14, 15), (23, 24, 25))  # half pixels, per size
TILTS = (-8, 0, 8)  # degrees


def _star(u: Floats, v: Floats) -> Mask:
    angle = np.arctan2(u, -v) % (2 * math.pi / 5) - math.pi / 5
    tip, notch = 1.08, 0.46
    # The edge from a tip to a notch is a straight line: radius(angle) follows from the sine rule.
    reach = tip * notch * math.sin(math.pi / 5)
    a = math.pi / 5 - np.abs(angle)
    edge = reach / (tip * np.sin(a) + notch * np.sin(math.pi / 5 - a))
    return np.hypot(u, v) < edge


def _heart(u: Floats, v: Floats) -> Mask:
    lobes = np.hypot(np.abs(u) - 0.48, v + 0.38) < 0.54
    point = (np.abs(u) * 1.02 + v < 0.98) & (v > -0.42)
    return lobes | (point & (np.abs(u) < 0.98))


def _arrow(u: Floats, v: Floats) -> Mask:
    head = (v > -1.0) & (v < 0.05) & (np.abs(u) < (v + 1.0) * 0.92)
    return head | ((np.abs(u) < 0.3) & (v >= 0.0) & (v < 1.0))


INSIDE: dict[str, Callable[[Floats, Floats], Mask]] = {
    "circle": lambda u, v: np.hypot(u, v) < 0.98,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) < 0.86,
    "triangle": lambda u, v: (v < 0.8) & (np.abs(u) < (v + 0.98) * 0.56),
    "diamond": lambda u, v: np.abs(u) * 1.3 + np.abs(v) < 1.05,
    "star": _star,
    "cross": lambda u, v: (np.minimum(np.abs(u), np.abs(v)) < 0.3) & (np.maximum(np.abs(u), np.abs(v)) < 0.98),
    "ring": lambda u, v: (np.hypot(u, v) < 1.0) & (np.hypot(u, v) > 0.58),
    "heart": _heart,
    "moon": lambda u, v: (np.hypot(u, v) < 1.0) & (np.hypot(u - 0.5, v) > 0.78),
    "arrow": _arrow,
    "hourglass": lambda u, v: (np.abs(v) < 0.94) & (np.abs(u) < np.abs(v) * 0.86 + 0.1),
    "frame": lambda u, v: (np.maximum(np.abs(u), np.abs(v)) < 0.92) & (np.maximum(np.abs(u), np.abs(v)) > 0.52),
}


@cache
def sprite(shape: int, radius: int, tilt: int) -> npt.NDArray[np.int16]:
    """Coverage of a shape in [0, LEVELS], shape [28, 28, 1]; `radius` in half pixels, `tilt` in degrees."""
    steps = (np.arange(CELL * SAMPLES) + 0.5) / SAMPLES - CELL / 2
    y, x = np.meshgrid(steps, steps, indexing="ij")
    cosine, sine = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    u, v = (x * cosine + y * sine) * 2 / radius, (y * cosine - x * sine) * 2 / radius
    hits = INSIDE[SHAPES[shape]](u, v).reshape(CELL, SAMPLES, CELL, SAMPLES).sum(axis=(1, 3))
    coverage: npt.NDArray[np.int16] = ((hits * LEVELS + SAMPLES**2 // 2) // SAMPLES**2).astype(np.int16)[:, :, None]
    return coverage


@cache
def emblem_sprite(index: int) -> npt.NDArray[np.int16]:
    """An emblem on its plate, shape [48, 48, 3] RGB."""
    emblem = emblems()[index]
    side = CELLS * EMBLEM_CELL + 8
    plate = np.full((side, side, 3), 252, dtype=np.int16)
    ink = RGB[emblem.colour]
    for edge in (slice(0, 2), slice(-2, None)):
        plate[edge] = ink
        plate[:, edge] = ink
    for row in range(CELLS):
        for column in range(CELLS):
            if emblem.cell(row, column):
                y, x = 4 + row * EMBLEM_CELL, 4 + column * EMBLEM_CELL
                plate[y : y + EMBLEM_CELL, x : x + EMBLEM_CELL] = ink
    return plate


def draw(scene: Scene, variant: int = 0) -> npt.NDArray[np.uint8]:
    """The scene drawn, shape [84, 84, 3] RGB; another `variant` has other offsets, tilts, shades and paper."""
    dice = Dice(Purpose.PICTURE, scene.pool, scene.index, variant)
    canvas = _background(dice)
    for thing in scene.things:
        _draw_thing(canvas, thing, dice)
    if scene.text:
        _draw_text(canvas, scene.text, scene.row, dice)
    if scene.emblem >= 0:
        _draw_emblem(canvas, scene.emblem, scene.corner, dice)
    _speckle(canvas, dice)
    return canvas.astype(np.uint8)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """`pixels`, shape [84, 84, 3], as a PNG with a palette sorted by colour."""
    flat = pixels.reshape(-1, 3).astype(np.int64)
    codes, inverse = np.unique(flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2], return_inverse=True)
    if len(codes) > 256:
        raise ValueError(f"{len(codes)} colours do not fit a palette")
    image = Image.fromarray(inverse.reshape(pixels.shape[:2]).astype(np.uint8), mode="P")
    image.putpalette(b"".join(int(code).to_bytes(3, "big") for code in codes))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _background(dice: Dice) -> Canvas:
    paper = PAPERS[dice.below(len(PAPERS))]
    canvas = np.empty((SIDE, SIDE, 3), dtype=np.int16)
    canvas[:] = paper
    kind, pitch, phase = dice.pick(BACKGROUNDS), dice.pick((6, 7, 10)), dice.below(6)
    darker = paper - 9
    steps = (np.arange(SIDE) + phase) // pitch % 2 == 0
    if kind == "stripes":
        canvas[:, steps] = darker
    elif kind == "checks":
        canvas[steps[:, None] ^ steps[None, :]] = darker
    elif kind == "dots":
        spots = (np.arange(SIDE) + phase) % pitch < 2
        canvas[spots[:, None] & spots[None, :]] = darker
    elif kind == "halves":
        canvas[SIDE // 2 + phase * 3 - 9 :] = darker
    return canvas


def _draw_thing(canvas: Canvas, thing: Thing, dice: Dice) -> None:
    radius = dice.pick(RADII[thing.size])
    alpha = sprite(thing.shape, radius, dice.pick(TILTS))
    slack = min(3, CELL // 2 - (radius + 1) // 2)  # a large thing stays inside its place
    top = thing.place // 3 * CELL + dice.between(-slack, slack)
    left = thing.place % 3 * CELL + dice.between(-slack, slack)
    colour = RGB[thing.colour] + dice.pick((-10, 0, 10))
    y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + CELL, SIDE), min(left + CELL, SIDE)
    window = canvas[y0:y1, x0:x1]
    part = alpha[y0 - top : y1 - top, x0 - left : x1 - left]
    window += (colour - window) * part // LEVELS


def _draw_text(canvas: Canvas, text: str, row: int, dice: Dice) -> None:
    letters = bitmap(text, TEXT_SCALE)
    height, width = letters.shape
    top = row * CELL + (CELL - height) // 2 + dice.between(-2, 2)
    left = (SIDE - width) // 2 + dice.between(-5, 5)
    canvas[top : top + height, left : left + width][letters] = INKS[dice.below(len(INKS))]


def _draw_emblem(canvas: Canvas, index: int, corner: int, dice: Dice) -> None:
    plate = emblem_sprite(index)
    side = len(plate)
    slack = 2 * CELL - side
    top = (0 if corner < 3 else CELL) + dice.between(0, slack)
    left = (0 if corner % 3 == 0 else CELL) + dice.between(0, slack)
    canvas[top : top + side, left : left + side] = plate


def _speckle(canvas: Canvas, dice: Dice) -> None:
    """Shifts up to 120 random pixels by a grey step."""
    words = dice.words(dice.below(4) * 40)
    y, x = (words >> np.uint64(8)) % SIDE, (words >> np.uint64(32)) % SIDE
    canvas[y, x] = np.clip(canvas[y, x] + dice.pick((-20, 20)), 0, 255)
