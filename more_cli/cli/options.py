"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion

if TYPE_CHECKING:
    from more_cli.model.machine import Machine

STATE = "State"
REPORT = "Report and gates"
SUITE = "A suite"
RECIPE = "Recipe"
FILES = "Images"
MACHINE = "Where it runs"
OUTPUT = "Output"
"""Headings of the options that several commands share, in a command with many options."""

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL", help="Checkpoint folder. [default: the model of the only `*.more` file in this folder]"
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Checkpoint folder in Hugging Face layout.")]
StateFile = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        envvar="MORE_STATE",
        help="State file. [default: MODEL.more]",
        rich_help_panel=STATE,
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME|FILE",
        help="A recipe from `more recipes list`, or a TOML file.",
        autocompletion=completion.recipes,
        rich_help_panel=RECIPE,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one value of the recipe (`more recipes show`); repeatable.",
        autocompletion=completion.settings,
        rich_help_panel=RECIPE,
    ),
]
ImageRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder that image paths start from. [default: the folder of the file]",
        rich_help_panel=FILES,
    ),
]
StrictPaths = Annotated[
    bool,
    typer.Option(
        "--strict-paths",
        help="Refuse images outside the image root: absolute paths, `..`, symlinks.",
        rich_help_panel=FILES,
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="NAME", envvar="MORE_DEVICE", help="cpu, cuda, cuda:1, mps.", rich_help_panel=MACHINE),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="float32, bfloat16, float16, or auto for the checkpoint's.", rich_help_panel=MACHINE
    ),
]
Attention = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="sdpa, eager, flash (needs flash-attn), or auto for sdpa.", rich_help_panel=MACHINE
    ),
]
DeviceMap = Annotated[
    str,
    typer.Option(
        "--device-map",
        metavar="auto",
        help="auto: spread the model over devices, memory and disk.",
        rich_help_panel=MACHINE,
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="GIB", help="Memory that may be used. [default: what is free]", rich_help_panel=MACHINE
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress and no summary, only errors and --json.", rich_help_panel=OUTPUT),
]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="More messages on stderr; -vv for all.", rich_help_panel=OUTPUT),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Check everything, write nothing.", rich_help_panel=OUTPUT)
]


def machine(device: str, dtype: str, device_map: str, memory: float | None, attention: str) -> Machine:
    """Return where the model runs, from these options."""
    from more_cli.model.machine import Machine

    return Machine(device, dtype, device_map, memory, attention)
