"""`python -m more_cli`, `more-cli` and `more`, which shares its name with the Unix pager."""

from __future__ import annotations

import sys


def run() -> None:
    """Run one command and exit with its code."""
    from more_cli.cli.app import main
    from more_cli.system.environment import open_streams, set_defaults
    from more_cli.system.memory import leave_garbage, search_late

    open_streams()
    set_defaults()
    search_late()
    code = main()
    leave_garbage()
    sys.exit(code)


def run_or_page() -> None:
    """Run one command, unless the pager of the same name was meant."""
    from more_cli.system.pager import hand_over

    def commands() -> list[str]:
        from more_cli.cli.commands import names

        return names()

    hand_over(sys.argv[1:], commands)
    run()


if __name__ == "__main__":
    run()
