"""`more-cli.1`: the manual page, from the help texts. `man more` stays the pager's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from generator.commands import COMMON, MACHINE, leaves, paragraphs, parts_of
from more_cli import __version__
from more_cli.cli.app import app
from more_cli.cli.failures import EXIT_CODES
from more_cli.cli.help import placeholder

_ABOUT = """\
Corrects vision-language models, and plain language models, from a stream of fixes.
MODEL is a checkpoint folder in Hugging Face layout.
The edits are in one file beside it, MODEL.more, the state.
MODEL.more.d/ holds the ledger and a copy of every image.
Results go to standard output, progress and messages to standard error.
With \\-\\-json standard output has one JSON object.

The program is also called more.
Called by that name with a file to show, or without a command while input is piped in, it starts the
next more on PATH, the pager."""
_FILES = {
    "MODEL.more": "the state: seeds, B and P of each edited weight",
    "MODEL.more.d/": "the ledger, one line per edit, and copies of images",
    "more.toml": "settings of a project: model, state, recipe, gates, anchors, device",
}


def manual_page() -> str:
    """Return the page in the macros of man(7)."""
    listed = list(leaves(typer.main.get_command(app), "more-cli"))
    edit = next(command for name, command in listed if name == "more-cli edit")
    shared = {_names(each): each.help or "" for each in edit.params if each.name in COMMON + MACHINE}
    lines = [
        '.\\" Written by docs/generate.py from the help texts: change those, then run `python docs/generate.py`.',
        f'.TH MORE-CLI 1 "" "more {__version__}" "User Commands"',
        ".SH NAME",
        "more-cli \\- correct vision-language models from a stream of fixes",
        ".SH SYNOPSIS",
        ".B more-cli\n.I COMMAND\n[OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        _ABOUT.replace("\n\n", "\n.PP\n"),
        ".SH COMMON OPTIONS",
        "Commands that load the model have the first four, most commands the others.",
        *_terms(shared),
        ".SH COMMANDS",
    ]
    for name, command in listed:
        lines += _command(name, command)
    lines += [".SH EXIT STATUS", *_terms({str(code): meaning for code, meaning in EXIT_CODES.items()})]
    lines += [".SH FILES", *_terms(_FILES)]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield f'.SS "{_plain(" ".join([name, "[OPTIONS]", *map(placeholder, arguments)]))}"'
    prose, examples = parts_of(command.help)
    for number, paragraph in enumerate(paragraphs(prose)):
        yield from ([".PP"] if number else [])
        yield _plain(paragraph)
    yield from _terms({placeholder(each): each.help or "" for each in arguments})
    options = [
        each for each in command.params if each.param_type_name == "option" and each.name not in COMMON + MACHINE
    ]
    yield from _terms({_names(each): each.help or "" for each in options})
    if examples:
        yield from (".PP", "Examples:", ".EX", *map(_plain, examples.splitlines()), ".EE")


def _names(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len) + list(option.secondary_opts))
    takes_value = not option.is_flag and not getattr(option, "count", False)
    return f"{names} {option.metavar}" if takes_value else names


def _terms(meanings: dict[str, str]) -> Iterator[str]:
    for term, meaning in meanings.items():
        yield from (".TP", f'.B "{_plain(term)}"', _plain(meaning))


def _plain(text: str) -> str:
    """Return text as roff prints it: no escapes, no macros, and hyphens that can be copied."""
    text = re.sub(r"`([^`]*)`", r"\1", " ".join(text.split()) if "\n" in text else text)
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text
