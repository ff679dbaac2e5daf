"""`python -m more_lab.panel`: print a page of results, or the lines of results that runs leave."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from more_lab.panel import ablations, editors, long, models, regimes, retention, speed
from more_lab.panel.keep import ablation_lines, panel_lines, regime_lines, run_lines, single_lines

PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "EDITORS.md": editors.page,
    "RETENTION.md": retention.page,
    "RESULTS.md": speed.page,
    "LONG.md": long.page,
    "ABLATIONS.md": ablations.page,
    "PANEL.md": models.page,
}
SHOWN = PAGES | {"regimes": regimes.table}


def main(arguments: list[str] | None = None) -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m more_lab.panel", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", help="a page, or a table of one").add_argument("page", choices=SHOWN)
    panel = commands.add_parser("keep", help="lines of panel.jsonl: trials of a sweep over the panel's models")
    panel.add_argument("out", type=Path, help="folder of a finished sweep")
    panel.add_argument("--stream", required=True, help="such as mistakes")
    panel.add_argument("--half", required=True, choices=("dev", "held"))
    swept = commands.add_parser("keep-ablation", help="lines of ablations.jsonl: trials of a file of recipes/sweeps")
    swept.add_argument("out", type=Path, help="folder of a finished sweep")
    swept.add_argument("sweep", help="name of the file")
    runs = commands.add_parser("keep-runs", help="lines of editors.jsonl and the like: outputs of `more run --json`")
    runs.add_argument("files", nargs="+", metavar="[ROW=]FILE")
    single = commands.add_parser("keep-single", help="lines of single.jsonl: `more run --protocol single --json`")
    single.add_argument("files", nargs="+", metavar="FILE")
    regime = commands.add_parser("keep-regime", help="a line of anchors.jsonl: outputs of `more edit` and `more eval`")
    regime.add_argument("model", help="such as E1")
    regime.add_argument("anchors", choices=regimes.REGIMES)
    regime.add_argument("edited", type=Path, help="what `more edit --json` printed")
    regime.add_argument("scored", type=Path, help="what `more eval --json` printed")
    given = parser.parse_args(arguments)
    if given.command == "show":
        sys.stdout.write("".join(f"{line}\n" for line in SHOWN[given.page]()))
        return
    lines = {
        "keep": lambda: panel_lines(given.out, given.stream, given.half),
        "keep-ablation": lambda: ablation_lines(given.out, given.sweep),
        "keep-runs": lambda: run_lines(given.files),
        "keep-single": lambda: single_lines(given.files),
        "keep-regime": lambda: regime_lines(given.model, given.anchors, given.edited, given.scored),
    }[given.command]()
    sys.stdout.write("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
