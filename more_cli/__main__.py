"""`python -m more_cli`, `more-cli` and `more`, which shares its name with the Unix pager."""

from __future__ import annotations

import gc
import sys


def run() -> None:
    """Run one command and exit with its code."""
    from more_cli.cli.app import main
    from more_cli.system.threads import set_defaults

    set_defaults()
    # Importing torch makes half a million objects that stay: to search them for garbage every few hundred, and once
    # more when all is over, takes half a second.
    gc.set_threshold(20_000, *gc.get_threshold()[1:])
    code = main()
    gc.freeze()
    sys.exit(code)


def run_or_page() -> None:
    """Run one command, unless the pager of the same name was meant."""
    from more_cli.system.pager import hand_over

    hand_over(sys.argv[1:])
    run()


if __name__ == "__main__":
    run()
