"""`cli.md`: every command with its arguments, options and exit codes, from the help texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from generator.markdown import cell, fence, page, table
from more_cli.cli.app import app
from more_cli.cli.failures import EXIT_CODES
from more_cli.cli.help import MANY, placeholder

_INTRO = """\
`more COMMAND --help` prints the same. MODEL is a checkpoint folder in Hugging Face layout. Results go to stdout,
progress and messages to stderr; with `--json` stdout has exactly one JSON object ([JSON outputs](json.md)).

`more` is also the name of the Unix pager. Called with a file to show, or without a command while input is piped in, it
starts the next `more` on PATH. `more-cli` and `python -m more_cli` always mean this tool."""

_COMPLETION = """\
## Shell completion

<!-- not run: changes the shell's own configuration -->
```bash
more --install-completion       # for the current shell: bash, zsh, fish or PowerShell
more --show-completion          # prints the script, to install it by hand
```

Open a new shell afterwards. Tab then completes commands and options, recipes, suites, editors, keys of `--set`, and ids
of edits."""


def commands_page() -> str:
    """Return the page of all commands."""
    group = typer.main.get_command(app)
    listed = list(leaves(group, "more"))
    summary = table(
        ("to", "command", "does"),
        [
            (_panel(group, name).lower(), f"[`{name}`](#{_anchor(name)})", paragraphs(command.help)[0])
            for name, command in listed
        ],
    )
    return page(
        "Commands",
        "the commands' help",
        _INTRO,
        summary,
        _exit_codes(),
        _options_of_all(listed),
        *[_section(name, command) for name, command in listed],
        _COMPLETION,
    )


def leaves(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that is no group, with its whole name."""
    for word in group.list_commands(None):
        command = group.commands[word]
        if hasattr(command, "commands"):
            yield from leaves(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def _panel(group: Any, name: str) -> str:
    """Return what one wants with a command."""
    return str(group.commands[name.split()[1]].rich_help_panel)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _exit_codes() -> str:
    return "## Exit codes\n\n" + table(("code", "when"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])


# Options that mean the same in every command: one table for all of them.
COMMON = ("as_json", "quiet", "verbose")
MACHINE = ("device", "dtype", "device_map", "memory")


def _options_of_all(listed: list[tuple[str, Any]]) -> str:
    command = next(command for name, command in listed if name == "more edit")
    rows = [_row(parameter) for parameter in command.params if parameter.name in COMMON + MACHINE]
    rows.append(("`-h`, `--help`", "", "Show the command's help."))
    return (
        "## Options that many commands have\n\n"
        "`--device`, `--dtype`, `--device-map` and `--memory` belong to commands that load the model.\n\n"
        + table(("option", "default", "meaning"), rows)
        + "\n\n`more --version` prints the version."
    )


def _section(name: str, command: Any) -> str:
    text, examples = parts_of(command.help)
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    own = [option for option in options if option.name not in COMMON + MACHINE]
    usage = " ".join([name, "[OPTIONS]", *map(placeholder, arguments)])
    shared = ", ".join(f"`{option.opts[0]}`" for option in options if option.name in COMMON + MACHINE)
    parts = [
        f"## `{name}` {{#{_anchor(name)}}}",
        text,
        fence("text", usage),
        table(("argument", "meaning"), [_argument(item) for item in arguments]),
        *_options(own, grouped=len(options) >= MANY),
        f"Also {shared}: see [above](#options-that-many-commands-have)." if shared else "",
        "Examples:\n\n" + fence("text", examples) if examples else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _options(options: list[Any], *, grouped: bool) -> Iterator[str]:
    """Yield a table of options; one for each group where the help has groups too."""
    groups: dict[str, list[Any]] = {}
    for option in options:
        groups.setdefault((grouped and option.rich_help_panel) or "", []).append(option)
    for name, members in groups.items():
        title = f"option ({name[0].lower()}{name[1:]})" if name else "option"
        yield table((title, "default", "meaning"), [_row(option) for option in members])


def paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a help text, each on one line."""
    return [" ".join(part.split()) for part in (text or "").split("\n\n")]


def parts_of(text: str | None) -> tuple[str, str]:
    """Return a help text's paragraphs and its examples."""
    prose, _, examples = (text or "").partition("\b\nExamples:\n")
    return "\n\n".join(filter(None, paragraphs(prose))), "\n".join(line.strip() for line in examples.splitlines())


def _argument(argument: Any) -> tuple[str, str]:
    text, _, default = (argument.help or "").partition(" [default: ")
    return f"`{placeholder(argument)}`", f"{text} Left out: {default.rstrip(']')}." if default else text


def _row(option: Any) -> tuple[str, str, str]:
    names = sorted(option.opts, key=len) + list(option.secondary_opts)
    left = ", ".join(f"`{name}`" for name in names)
    takes_value = not option.is_flag and not getattr(option, "count", False)
    if takes_value:
        left += f" `{option.metavar}`"
    text, _, said = (option.help or "").partition(" [default: ")
    notes = [cell(text)]
    if option.required:
        notes.append("Needed.")
    if option.envvar:
        notes.append(f"Environment: `{option.envvar}`.")
    default = _default(option) if takes_value or option.secondary_opts else ""
    return left, said.rstrip("]") or default, " ".join(notes)


def _default(option: Any) -> str:
    value = option.default
    if value in (None, "", [], ()) or callable(value) or option.required:
        return ""
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return f"`{names[0]}`"
    if isinstance(value, list | tuple):
        return ", ".join(f"`{getattr(item, 'value', item)}`" for item in value)
    return f"`{getattr(value, 'value', value)}`"
