"""What the commands print with `--json`."""

from __future__ import annotations

from more_cli.outputs.base import Printed


class CountOutput(Printed, schema="more-norm.count/1", command="more count [MODEL] --json"):
    """The size of a ledger."""

    lines: int
    """lines of the ledger"""
