"""How the things of each world look: a look is an outline, a pattern and a topping, six, five and four of each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

OUTLINES, PATTERNS, TOPPINGS = 6, 5, 4
FINE = 2  # drawn at this scale and then made smaller, for smooth edges
Look = tuple[int, int, int]
Colour = tuple[int, int, int]
Point = tuple[float, float]


class Pen:
    """Draws around a centre, in units of a radius; y grows downwards."""

    def __init__(self, draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
        self._draw, self._x, self._y, self._radius = draw, x, y, radius

    def shape(self, points: list[Point], fill: Colour) -> None:
        """A filled polygon."""
        self._draw.polygon([self._at(point) for point in points], fill=fill)

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        """A filled circle."""
        left, top, right, bottom = *self._at((x - radius, y - radius)), *self._at((x + radius, y + radius))
        self._draw.ellipse([left, top, right, bottom], fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """A filled rectangle."""
        self.shape([(left, top), (right, top), (right, bottom), (left, bottom)], fill)

    def line(self, points: list[Point], width: float, fill: Colour) -> None:
        """A line of straight pieces."""
        self._draw.line([self._at(point) for point in points], fill=fill, width=max(1, round(width * self._radius)))

    def _at(self, point: Point) -> Point:
        return self._x + point[0] * self._radius, self._y + point[1] * self._radius


def _round(radius: Callable[[float], float], wide: float = 1.0, high: float = 1.0, n: int = 36) -> list[Point]:
    angles = [2 * math.pi * i / n for i in range(n)]
    return [(wide * radius(a) * math.cos(a), high * radius(a) * math.sin(a)) for a in angles]


def _darker(colour: Colour, by: float = 0.45) -> Colour:
    return int(colour[0] * by), int(colour[1] * by), int(colour[2] * by)


WHITE, BLACK, GREEN, YELLOW = (250, 250, 250), (20, 20, 20), (30, 130, 40), (245, 205, 60)


def fruit(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A fruit: its body, its skin, and what grows on it."""
    outline, pattern, topping = look
    bodies = [
        _round(lambda a: 0.8),
        _round(lambda a: 0.75 - 0.25 * math.sin(-a), 0.8, 1.0),
        _round(lambda a: 0.85, 1.15, 0.62),
        _round(lambda a: 0.72 + 0.2 * math.cos(3 * a + math.pi / 2)),
        _round(lambda a: min(0.95, 0.72 / max(abs(math.cos(a)), abs(math.sin(a))))),
        _round(lambda a: 0.7 + 0.22 * math.cos(5 * a + math.pi / 2)),
    ]
    if topping == 1:
        pen.shape([(0, -0.6), (0.3, -1.1), (0.85, -1.1), (0.5, -0.7)], GREEN)
    elif topping == 2:
        pen.box(-0.1, -1.2, 0.1, -0.5, (90, 60, 30))
    elif topping == 3:
        for x in (-0.5, 0.0, 0.5):
            pen.shape([(x - 0.28, -0.5), (x, -1.2), (x + 0.28, -0.5)], GREEN)
    pen.shape(bodies[outline], colour)
    dark = _darker(colour)
    if pattern == 1:
        for x, y in ((-0.35, -0.15), (0.35, -0.15), (0.0, 0.35)):
            pen.disc(x, y, 0.17, dark)
    elif pattern == 2:
        pen.box(-0.6, -0.12, 0.6, 0.16, dark)
    elif pattern == 3:
        pen.disc(0, 0, 0.42, WHITE)
        pen.disc(0, 0, 0.22, colour)
    elif pattern == 4:
        pen.box(-0.14, -0.55, 0.14, 0.6, WHITE)


def ship(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A ship: its hull, its rig, and the code on its side."""
    outline, pattern, topping = look
    hulls: list[list[Point]] = [
        [(-1, 0.15), (1, 0.15), (1, 0.8), (-1, 0.8)],
        [(-1, 0.15), (1, 0.15), (0.5, 0.85), (-0.5, 0.85)],
        [(-1.1, 0.15), (0.9, 0.15), (0.9, 0.8), (-0.4, 0.8)],
        [(-1, -0.15), (-0.6, 0.2), (0.6, 0.2), (1, -0.15), (0.7, 0.85), (-0.7, 0.85)],
        [(-1, -0.2), (-0.2, -0.2), (-0.2, 0.2), (1, 0.2), (0.8, 0.8), (-0.8, 0.8)],
        [(-1, 0.2), (0, 0.55), (1, 0.2), (0.8, 0.85), (-0.8, 0.85)],
    ]
    dark = (70, 50, 40)
    if pattern in (0, 1, 3):
        pen.box(-0.07, -1, 0.07, 0.3, dark)
    if pattern == 1:
        pen.shape([(0.12, -1), (0.12, 0.05), (0.85, 0.05)], WHITE)
    elif pattern == 2:
        for x in (-0.45, 0.45):
            pen.shape([(x, -0.95), (x - 0.4, 0.05), (x + 0.4, 0.05)], WHITE)
    elif pattern == 3:
        pen.box(-0.6, -0.85, 0.6, -0.1, WHITE)
    elif pattern == 4:
        for x in (-0.4, 0.3):
            pen.box(x - 0.17, -0.8, x + 0.17, 0.3, dark)
            pen.box(x - 0.17, -0.8, x + 0.17, -0.5, (200, 60, 40))
    pen.shape(hulls[outline], colour)
    codes: list[tuple[Colour, ...]] = [(), (WHITE, WHITE, WHITE), (YELLOW, BLACK, YELLOW), (BLACK, WHITE, BLACK)]
    for x, code in zip((-0.45, 0.0, 0.45), codes[topping], strict=False):
        pen.box(x - 0.17, 0.35, x + 0.17, 0.7, code)


def sign(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A road sign: its board, its symbol, and its frame."""
    outline, pattern, topping = look
    boards: list[list[Point]] = [
        _round(lambda a: 0.9),
        [(0, -1), (1, 0.75), (-1, 0.75)],
        [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
        [(0, -1.05), (1.05, 0), (0, 1.05), (-1.05, 0)],
        _round(lambda a: 0.98, n=6),
        [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.1), (0, 1.05), (-0.85, 0.1)],
    ]
    if topping == 1:
        pen.shape([(1.25 * x, 1.25 * y) for x, y in boards[outline]], BLACK)
    elif topping == 2:
        pen.box(-0.16, 0.5, 0.16, 1.5, (110, 110, 110))
    elif topping == 3:
        for x in (-1, 1):
            pen.disc(x, -0.85, 0.28, YELLOW)
    pen.shape(boards[outline], colour)
    if pattern == 0:
        pen.box(-0.5, -0.12, 0.5, 0.2, WHITE)
    elif pattern == 1:
        pen.line([(-0.38, -0.35), (0.38, 0.45)], 0.24, WHITE)
        pen.line([(0.38, -0.35), (-0.38, 0.45)], 0.24, WHITE)
    elif pattern == 2:
        pen.shape([(0, -0.5), (0.42, 0.05), (-0.42, 0.05)], WHITE)
        pen.box(-0.13, 0, 0.13, 0.5, WHITE)
    elif pattern == 3:
        pen.disc(0, 0.05, 0.42, WHITE)
        pen.disc(0, 0.05, 0.2, colour)
    else:
        pen.box(-0.42, -0.35, -0.14, 0.5, WHITE)
        pen.box(0.14, -0.35, 0.42, 0.5, WHITE)


def flower(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A flower with `value` petals: the petals' form, its middle, and its leaves."""
    outline, pattern, topping = look
    if topping:
        pen.box(-0.09, 0.3, 0.09, 1.3, GREEN)
    if topping in (1, 2):
        pen.shape([(0, 1.2), (-0.9, 1.15), (-0.7, 0.7)], GREEN)
    if topping == 2:
        pen.shape([(0, 1.2), (0.9, 1.15), (0.7, 0.7)], GREEN)
    elif topping == 3:
        pen.shape([(-0.5, 0.95), (0.5, 0.95), (0.3, 1.4), (-0.3, 1.4)], (150, 80, 40))
    petals: list[list[Point]] = [  # each points to the right
        [(0.55 + 0.42 * math.cos(a / 6 * math.pi), 0.42 * math.sin(a / 6 * math.pi)) for a in range(12)],
        [(0.05, -0.1), (0.45, -0.38), (1.05, 0), (0.45, 0.38), (0.05, 0.1)],
        [(0, -0.16), (1.05, -0.16), (1.05, 0.16), (0, 0.16)],
        [(0, 0), (0.95, -0.5), (0.7, 0), (0.95, 0.5)],
        [(0, 0), (0.9, -0.42), (0.9, 0.42)],
        [(0.2, -0.35), (0.8, -0.35), (0.8, 0.35), (0.2, 0.35)],
    ]
    for number in range(value):
        angle = 2 * math.pi * number / value - math.pi / 2
        c, s = math.cos(angle), math.sin(angle)
        pen.shape([(x * c - y * s, x * s + y * c) for x, y in petals[outline]], colour)
    if pattern == 3:
        pen.box(-0.28, -0.28, 0.28, 0.28, BLACK)
    else:
        pen.disc(0, 0, 0.34, (YELLOW, BLACK, BLACK, BLACK, WHITE)[pattern])
    if pattern == 2:
        pen.disc(0, 0, 0.19, YELLOW)


def fish(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A fish: its body, its markings, and its fins; it swims to the left."""
    outline, pattern, topping = look
    bodies: list[list[Point]] = [
        _round(lambda a: 0.78, 1.05, 0.62),
        _round(lambda a: 0.8, 0.8, 1.05),
        [(-1, 0), (-0.2, -0.6), (0.65, -0.35), (0.65, 0.35), (-0.2, 0.6)],
        [(-0.95, -0.3), (0.7, -0.3), (0.7, 0.3), (-0.95, 0.3)],
        [(-0.9, -0.5), (0.2, -0.8), (0.7, 0), (0.2, 0.8), (-0.9, 0.5), (-0.45, 0)],
        [(-1, 0.3), (-0.7, -0.35), (0.1, -0.85), (0.7, -0.1), (0.7, 0.3)],
    ]
    dark = _darker(colour)
    if topping == 0:
        pen.shape([(0.5, 0), (1.15, -0.5), (1.15, 0.5)], dark)
    elif topping == 1:
        pen.box(0.6, -0.55, 0.85, 0.55, dark)
        pen.shape([(-0.3, -0.5), (0.2, -1.15), (0.5, -0.4)], dark)
    elif topping == 2:
        pen.shape([(0.5, 0), (1.2, -0.75), (0.9, 0), (1.2, 0.75)], dark)
        pen.shape([(-0.2, 0.4), (0.3, 1.15), (0.4, 0.3)], dark)
    else:
        pen.disc(0.85, 0, 0.34, dark)
        for x in (-0.35, 0.0, 0.35):
            pen.shape([(x - 0.16, -0.4), (x, -1.1), (x + 0.16, -0.4)], dark)
    pen.shape(bodies[outline], colour)
    if pattern == 1:
        for x in (-0.15, 0.3):
            pen.box(x - 0.1, -0.4, x + 0.1, 0.4, WHITE)
    elif pattern == 2:
        pen.box(-0.3, -0.12, 0.6, 0.16, BLACK)
    elif pattern == 3:
        for x, y in ((-0.1, -0.25), (0.3, -0.1), (0.05, 0.25)):
            pen.disc(x, y, 0.14, BLACK)
    elif pattern == 4:
        pen.shape([(-0.2, -0.35), (0.45, 0), (-0.2, 0.35)], WHITE)
    pen.disc(-0.55, -0.05, 0.17, WHITE)
    pen.disc(-0.57, -0.05, 0.09, BLACK)


def mask(pen: Pen, look: Look, colour: Colour, value: int) -> None:
    """A carnival mask: its face, its eyes with its mouth, and what it wears."""
    outline, pattern, topping = look
    faces: list[list[Point]] = [
        _round(lambda a: 0.82, 0.85, 1.0),
        [(-0.75, -0.75), (0.75, -0.75), (0.75, 0.35), (0.35, 0.85), (-0.35, 0.85), (-0.75, 0.35)],
        [(-0.9, -0.55), (0.9, -0.55), (0, 1)],
        [(-0.95, -0.3), (-0.5, -0.75), (0.5, -0.75), (0.95, -0.3), (0.6, 0.3), (-0.6, 0.3)],
        _round(lambda a: 0.74 + 0.16 * math.cos(4 * a)),
        [(-0.45, -0.8), (0.45, -0.8), (0.9, 0.8), (-0.9, 0.8)],
    ]
    dark = _darker(colour)
    if topping == 1:
        for x in (-1, 1):
            pen.shape([(0.25 * x, -0.55), (0.8 * x, -0.45), (0.8 * x, -1.25)], dark)
    elif topping == 2:
        pen.box(-0.75, -0.95, 0.75, -0.7, BLACK)
        pen.box(-0.42, -1.3, 0.42, -0.8, BLACK)
    elif topping == 3:
        for x in (-0.95, 0.95):
            pen.disc(x, -0.1, 0.27, dark)
    pen.shape(faces[outline], colour)
    if pattern in (0, 1, 4):
        for x in (-0.32, 0.32):
            pen.disc(x, -0.2, 0.2, WHITE if pattern else BLACK)
    if pattern == 0:
        pen.box(-0.3, 0.22, 0.3, 0.36, BLACK)
    elif pattern == 1:
        for x in (-0.32, 0.32):
            pen.disc(x, -0.2, 0.1, BLACK)
        pen.disc(0, 0.3, 0.14, BLACK)
    elif pattern == 2:
        pen.box(-0.55, -0.36, 0.55, -0.04, BLACK)
        pen.shape([(-0.25, 0.2), (0.25, 0.2), (0, 0.5)], WHITE)
    elif pattern == 3:
        pen.disc(0, -0.2, 0.3, WHITE)
        pen.disc(0, -0.2, 0.15, BLACK)
    else:
        pen.shape([(-0.14, -0.15), (0.14, -0.15), (0, 0.55)], (240, 140, 40))


def picture(
    side: int, ground: Colour, noise: np.ndarray, paint: Callable[[ImageDraw.ImageDraw, int], None]
) -> Image.Image:
    """What `paint` draws, at `FINE` times the scale, on a ground with noise [side, side] added."""
    large = Image.new("RGB", (side * FINE, side * FINE), ground)
    paint(ImageDraw.Draw(large), FINE)
    small = np.asarray(large.reduce(FINE), dtype=np.int16) + noise[:, :, None]
    return Image.fromarray(np.clip(small, 0, 255).astype(np.uint8))
