"""`python -m more_cli`, `more-cli` and `more`, which shares its name with the Unix pager."""

from __future__ import annotations

import sys


def run() -> None:
    """Run one command and exit with its code."""
    from more_cli.cli.app import main

    sys.exit(main())


def run_or_page() -> None:
    """Run one command, unless the pager of the same name was meant."""
    from more_cli.pager import hand_over

    hand_over(sys.argv[1:])
    run()


if __name__ == "__main__":
    run()
