"""`json.md`: every JSON output with its keys and an example, the edit line, the ledger's line, the state's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from generator.examples import FILE
from generator.markdown import fence, json_fence, page, table
from generator.schemas import KEYS, REFERENCE, Row, referred, rows_of

_INTRO = """\
With `--json` a command prints exactly one JSON object on stdout; `more edit --json-lines` prints one per edit. Every
object has `"schema"`, such as `more.edit/2`: the number changes when a key changes its meaning or goes away. New keys
may come at any time. A number that is not finite is `null`. [schemas.json](schemas.json) is the JSON Schema (draft
2020-12) of all outputs, with one definition for each.

Examples come from the embedded model and are shortened: a list ends after its first item, a map of names after its
first or second, a hash after eight digits; a recipe shows only its name; times and versions are made up. In paths
`[]` stands for each item of a list. A map is an object whose keys are names, such as ids or metrics."""

_EDIT_LINE = """\
{"id": "tram-17", "image": "img/17.png", "question": "What is parked beside the fountain?", "target": "tram", \
"rephrases": ["What stands beside the fountain?"], "image_rephrases": ["img/17-night.png"], \
"locality": [{"image": "img/3.png", "question": "What is on the table?"}], \
"portability": [{"question": "Does it run on rails?", "answer": "yes", "hop": 1}], "tags": {"ticket": "A-17"}}"""

_PROBE_LINE = '{"image": "img/3.png", "question": "What is on the table?", "answer": "a cup"}'


def json_page() -> str:
    """Return the page of JSON outputs and files."""
    schemas = KEYS["schemas"]
    return page(
        "JSON outputs and the edit line",
        "docs/generator/keys.toml and docs/generator/examples.json",
        _INTRO,
        "## The edit line\n\nAn edits file has one JSON object per line.",
        table(("key", "value", "example", "meaning"), _spelled("edit_line")),
        fence("json", _EDIT_LINE),
        "### The line of an anchors or probes file",
        table(("key", "value", "example", "meaning"), _spelled("probe_line")),
        fence("json", _PROBE_LINE),
        "## Outputs of the commands",
        table(
            ("schema", "command"),
            [(f"[`{name}`](#{_anchor(name)})", f"`{entry['command']}`") for name, entry in schemas.items()],
        ),
        *[_schema(name, entry) for name, entry in schemas.items()],
        "## Objects that several outputs share",
        *[_shared(name) for name in referred()],
        _shared("ledger", "##"),
        json_fence(_ledger_line()),
        _shared("state", "##"),
        "## Schemas of other files",
        "Only files hold these.",
        table(("schema", "where"), [(f"`{name}`", text) for name, text in KEYS["files"].items()]),
        "## Earlier versions of schemas",
        "Commands no longer print these.",
        table(("schema", "what changed after it"), [(f"`{name}`", text) for name, text in KEYS["retired"].items()]),
    )


def _spelled(name: str) -> list[tuple[str, str, str, str]]:
    return [(f"`{key}`", *row) for key, row in KEYS[name].items()]


def _anchor(name: str) -> str:
    """Return the anchor of a title, or of a schema without its version: links to it stay."""
    name = re.sub(r"/\d+|'", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def example(name: str) -> dict[str, Any]:
    """Return the committed example of an output."""
    value: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    return value


def _schema(name: str, entry: Mapping[str, Any]) -> str:
    return "\n\n".join(
        part
        for part in (
            f"### `{name}` {{#{_anchor(name)}}}",
            f"`{entry['command']}`",
            entry.get("about", ""),
            _keys(entry),
            json_fence(example(entry["example"])),
        )
        if part
    )


def _keys(entry: Mapping[str, Any]) -> str:
    rows = [(f"`{path}`", _type(row), row.meaning) for path, row in rows_of(entry).items()]
    return table(("key", "type", "meaning"), rows)


def _type(row: Row) -> str:
    """Return a type in words; the shared objects in it are links."""
    words = REFERENCE.sub(lambda found: _link(KEYS["shared"][found[1]]["title"]), row.type)
    return f"{words}; can be missing" if row.optional else words


def _link(title: str) -> str:
    return f"[{re.sub('^(a|an|the) ', '', title.lower())}](#{_anchor(title)})"


def _shared(name: str, level: str = "###") -> str:
    entry = KEYS["shared"][name]
    return f"{level} {entry['title']} {{#{_anchor(entry['title'])}}}\n\n{entry['about']}\n\n{_keys(entry)}"


def _ledger_line() -> dict[str, Any]:
    edit = example("log.show")["edit"]
    return {key: edit[key] for key in rows_of(KEYS["shared"]["ledger"])}
