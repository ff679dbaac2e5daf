"""The command `more count`: how many lines a ledger has."""

from __future__ import annotations

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.store.target import locate
from more_cli.text import counted


@command
def count(model: opt.Model = None, state: opt.StateFile = None, *, output: Output) -> None:
    """Count the lines of the ledger."""
    from more_cli.store.ledger import Ledger  # here, so that `more --help` does not wait for them
    from more_norm.outputs import CountOutput

    lines = len(Ledger(locate(model, state).folder).entries)
    output.json(CountOutput(lines=lines))
    output.line(counted(lines, "line"))
