"""Options that several commands share, each written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from more_cli.model.machine import Machine


class OnError(StrEnum):
    """What a bad line does to the rest of its file."""

    stop = "stop"
    skip = "skip"


class Consolidate(StrEnum):
    """Which edits are looked at once more after a stream."""

    off = "off"
    run = "run"
    all = "all"


class Rounding(StrEnum):
    """How a folded weight becomes the checkpoint's dtype."""

    nearest = "nearest"
    stochastic = "stochastic"


class Format(StrEnum):
    """What an export is."""

    peft = "peft"
    delta = "delta"


Model = Annotated[
    Path | None,
    typer.Argument(metavar="[MODEL]", help="Checkpoint folder; left out, the one the only `*.more` file here names."),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Checkpoint folder in Hugging Face layout.")]
StateFile = Annotated[
    Path | None, typer.Option("--state", envvar="MORE_STATE", help="The sidecar, when it is not MODEL.more.")
]
RecipeName = Annotated[str | None, typer.Option("--recipe", help="Shipped recipe by name, or a TOML file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the recipe; repeatable.")
]
ImageRoot = Annotated[Path | None, typer.Option(help="Where image paths start; by default the file's own folder.")]
StrictPaths = Annotated[
    bool, typer.Option("--strict-paths", help="Refuse images outside the image root: absolute paths, `..`, symlinks.")
]
Device = Annotated[str, typer.Option(envvar="MORE_DEVICE", help="cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto for the checkpoint's.")]
DeviceMap = Annotated[
    str, typer.Option("--device-map", metavar="auto", help="auto: spread the model over devices, memory and disk.")
]
Memory = Annotated[
    float | None, typer.Option(min=0, metavar="GIB", help="Memory that may be used; by default what is free.")
]
Estimate = Annotated[bool, typer.Option("--estimate", help="Add what editing takes in memory, part by part.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Length of a sequence, for --estimate.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary; errors and --json stay.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="More messages on stderr; -vv for all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Check everything, write nothing.")]


def machine(device: str, dtype: str, device_map: str, memory: float | None) -> Machine:
    """Return where the model runs, as these options say."""
    from more_cli.model.machine import Machine

    return Machine(device, dtype, device_map, memory)
