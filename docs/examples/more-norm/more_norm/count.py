"""The command `more count`: how many lines a ledger has."""

from __future__ import annotations

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.store.target import locate
from more_cli.text import counted


def count(model: opt.Model = None, state: opt.StateFile = None, as_json: opt.Json = False) -> None:
    """Count the lines of the ledger."""
    output = Output(as_json=as_json)
    from more_cli.store.ledger import Ledger  # here, so that `more --help` does not wait for it

    lines = len(Ledger(locate(model, state).folder).entries)
    output.json("more.count/1", {"lines": lines})
    output.line(counted(lines, "line"))
