"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from more_cli.model.machine import Machine

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="[MODEL]", help="Checkpoint folder. [default: the model of the only `*.more` file in this folder]"
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Checkpoint folder in Hugging Face layout.")]
StateFile = Annotated[
    Path | None, typer.Option("--state", envvar="MORE_STATE", help="State file. [default: MODEL.more]")
]
RecipeName = Annotated[str | None, typer.Option("--recipe", help="Name of a shipped recipe, or a TOML file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the recipe; repeatable.")
]
ImageRoot = Annotated[
    Path | None, typer.Option(help="Folder that image paths start from. [default: the folder of the file]")
]
StrictPaths = Annotated[
    bool, typer.Option("--strict-paths", help="Refuse images outside the image root: absolute paths, `..`, symlinks.")
]
Device = Annotated[str, typer.Option(envvar="MORE_DEVICE", help="cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto for the checkpoint's.")]
DeviceMap = Annotated[
    str, typer.Option("--device-map", metavar="auto", help="auto: spread the model over devices, memory and disk.")
]
Memory = Annotated[
    float | None, typer.Option(min=0, metavar="GIB", help="Memory that may be used. [default: what is free]")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary, only errors and --json.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="More messages on stderr; -vv for all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Check everything, write nothing.")]


def machine(device: str, dtype: str, device_map: str, memory: float | None) -> Machine:
    """Return where the model runs, from these options."""
    from more_cli.model.machine import Machine

    return Machine(device, dtype, device_map, memory)
