"""`python -m more_cli`, `more` and `more-cli`."""

from __future__ import annotations

import sys


def run() -> None:
    """Run one command and exit with its code."""
    from more_cli.cli.app import main

    sys.exit(main())


if __name__ == "__main__":
    run()
