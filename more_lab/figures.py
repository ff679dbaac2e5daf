"""Figures by matplotlib (extra `plots`) that look alike; the same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.files import disk_errors, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]
"""Draws into an empty figure."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow: on white it is too faint."""
STAMPS = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
"""Formats, each with the metadata that would differ between two runs."""


def save_figure(path: Path, size: tuple[float, float], draw: Draw) -> None:
    """Draw a figure of this size, in inches, and write it in the format of the path's suffix.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    style = {
        "axes.prop_cycle": cycler("color", PALETTE),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": path.stem,  # the same names of parts every time
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        suffix = path.suffix.lower()
        with disk_errors(path), replacing(path) as scratch:
            figure.savefig(scratch, format=suffix[1:], dpi=110, metadata={STAMPS[suffix]: None})
