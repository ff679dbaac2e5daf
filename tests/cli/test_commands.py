"""Commands of other packages: listed with the tool's, which keep their names, whatever a package does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from more_cli.cli import commands
from support.helpers import run
from support.packages import Packages, outsiders

COMMAND = '''
def hello(name: str = "you") -> None:
    """Greet somebody."""
    print(f"hello {name}")
'''


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Packages]:
    with outsiders(tmp_path) as found:
        yield found


def listed(heading: str) -> list[str]:
    """Return the lines below a heading of the help."""
    return run("--help").out.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()


def test_every_command_of_the_tool_is_where_its_name_says() -> None:
    assert all(callable(commands.load(name)) for name in commands.own_commands())


def test_a_command_of_a_package_runs_and_says_where_it_is_from(packages: Packages) -> None:
    packages.bring("greeter", COMMAND, commands={"greet": "greeter:hello"})
    assert listed("From greeter") == ["  greet  Greet somebody."]
    assert run("greet", "--name", "Ann").out == "hello Ann\n"
    assert "did you mean `greet`?" in run("gret").err


def test_a_group_of_commands_has_help_like_the_tools(packages: Packages) -> None:
    code = (
        "import typer\napp = typer.Typer(help='Greet many.')\n@app.command()\ndef all() -> None:\n    print('hello')\n"
    )
    code += "@app.command()\ndef some() -> None:\n    '''Greet some.'''\n"
    packages.bring("greeters", code, commands={"greet": "greeters:app"})
    assert listed("From greeters") == ["  greet  Greet many."]
    assert run("greet", "all").out == "hello\n"
    assert "some  Greet some." in run("greet", "--help").out


def test_the_tools_command_wins_over_a_packages(packages: Packages) -> None:
    packages.bring("taker", COMMAND, commands={"status": "taker:hello"})
    assert commands.names().count("status") == 1
    assert commands.load("status").__module__ == "more_cli.cli.status"
    assert commands.panel_of("status") == "Audit"
    assert "From taker" not in run("--help").out


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("hello = 3", "TypeError: 3 is not a callable object"),
        ("raise OSError('no licence\\nfound')", "OSError: no licence"),
    ],
)
def test_a_broken_command_is_one_line_and_all_others_are_listed(packages: Packages, code: str, problem: str) -> None:
    packages.bring("broken", code, commands={"greet": "broken:hello"})
    what = f"`greet` of package `broken` cannot be loaded: {problem}"
    assert " ".join(" ".join(listed("From broken")).split()) == f"greet {what}"
    assert listed("Audit")
    shown = run("greet", "llava/", "--json", "-x")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.splitlines() == [
        f"error: {what}",
        "hint: its entry point is `broken:hello`; MORE_DEBUG=1 shows the traceback",
    ]


def test_two_packages_with_one_command_are_refused_where_it_is_used(packages: Packages) -> None:
    packages.bring("first", COMMAND, commands={"greet": "first:hello"})
    packages.bring("second", COMMAND, commands={"greet": "second:hello"})
    what = "`first` and `second` both bring `greet` (more.commands)"
    assert run("greet").err == f"error: {what}\nhint: uninstall `second`, or rename it there\n"
    assert run("run", "--help").code == 0
    assert run("--help").code == 0
