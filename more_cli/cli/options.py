"""Arguments that many commands share: model and state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from more_cli.options import STATE

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint folder. [default: that of more.toml, or the model of the only `*.more` file in this folder]",
    ),
]
ModelFolder = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Checkpoint folder in Hugging Face layout. May be left out with a more.toml."),
]
Signers = Annotated[
    Path | None,
    typer.Option(
        "--signers",
        metavar="FILE",
        envvar="MORE_SIGNERS",
        help="File that says who may sign: names and public SSH keys, written as in git's gpg.ssh.allowedSignersFile.",
    ),
]
StateFile = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="STATE",
        envvar="MORE_STATE",
        help="State file, or a state's name. "
        "[default: that of more.toml, else the one that `more switch` chose, else MODEL.more]",
        rich_help_panel=STATE,
    ),
]
