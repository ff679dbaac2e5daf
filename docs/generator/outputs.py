"""`json.md`: every JSON output with its keys and an example, the edit line, the ledger's line, the state's metadata."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generator.examples import FILE
from generator.markdown import fence, json_fence, page, table

KEYS = tomllib.loads((Path(__file__).with_name("keys.toml")).read_text(encoding="utf-8"))

_INTRO = """\
With `--json` a command prints exactly one JSON object on stdout; `more edit --json-lines` prints one per edit. Every
object has `"schema"`, such as `more.edit/1`: the number changes when a key changes its meaning or goes away. New keys
may come at any time. A number that is not finite is `null`.

Examples come from the embedded model and are shortened: a list ends after its first item, a map of names after its
first or second, a hash after eight digits; a recipe shows only its name; times and versions are made up. In paths
`[]` stands for each item of a list, `<name>` for each key of a map."""

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
        *[_shared(name, entry) for name, entry in KEYS["shared"].items()],
        "## A ledger line",
        "`MODEL.more.d/ledger.jsonl` has one JSON object per line and is only ever appended to. `more log` reads it.",
        table(("key", "meaning"), [(f"`{key}`", text) for key, text in KEYS["ledger"].items()]),
        json_fence(_ledger_line()),
        "## The state's metadata",
        "`MODEL.more` is one safetensors file with the tensors `<site>.B` (float32) and `<site>.P` (float64). Its "
        "metadata has one key, `more`, with canonical JSON. It has no times, paths or versions, so the same edits "
        "give the same bytes.",
        table(("key", "meaning"), [(f"`{key}`", text) for key, text in KEYS["state"].items()]),
    )


def _spelled(name: str) -> list[tuple[str, str, str, str]]:
    return [(f"`{key}`", *row) for key, row in KEYS[name].items()]


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def example(name: str) -> dict[str, Any]:
    """Return the committed example of an output."""
    value: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    return value


def _schema(name: str, entry: Mapping[str, Any]) -> str:
    shared = [f"[{KEYS['shared'][item]['title'].lower()}](#{_title_anchor(item)})" for item in entry.get("shared", ())]
    parts = [
        f"### `{name}` {{#{_anchor(name)}}}",
        f"`{entry['command']}`",
        entry.get("about", ""),
        f"The keys of {' and of '.join(shared)}, and:" if shared else "",
        table(("key", "meaning"), [(f"`{path}`", _meaning(text)) for path, text in entry["keys"].items()]),
        json_fence(example(entry["example"])),
    ]
    return "\n\n".join(part for part in parts if part)


def _meaning(text: str) -> str:
    if not text.startswith("@"):
        return text
    return f"[{KEYS['shared'][text[1:]]['title'].lower()}](#{_title_anchor(text[1:])})"


def _title_anchor(name: str) -> str:
    return _anchor(KEYS["shared"][name]["title"])


def _shared(name: str, entry: Mapping[str, Any]) -> str:
    rows = [(f"`{path}`", _meaning(text)) for path, text in entry["keys"].items()]
    return f"### {entry['title']} {{#{_title_anchor(name)}}}\n\n{entry['about']}\n\n{table(('key', 'meaning'), rows)}"


def _ledger_line() -> dict[str, Any]:
    edit = example("log.show")["edit"]
    return {key: edit[key] for key in KEYS["ledger"]}


def unknown_keys(schema: str, value: Mapping[str, Any]) -> list[str]:
    """Return the paths of an output that the page does not explain."""
    entry = KEYS["schemas"][schema]
    rows: dict[str, str] = dict(entry["keys"])
    for name in entry.get("shared", ()):
        rows |= KEYS["shared"][name]["keys"]
    return [path for path in _unknown(value, "", rows) if path != "schema"]


def _unknown(value: Any, path: str, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths below `path` that no row explains; what has no rows below it is explained as a whole."""
    meaning = rows.get(path, "")
    if meaning.startswith("@"):
        if isinstance(value, Mapping):
            yield from (f"{path}.{name}" for name in _unknown(value, "", KEYS["shared"][meaning[1:]]["keys"]))
        return
    if path and not any(row.startswith((f"{path}.", f"{path}[]")) for row in rows):
        if not meaning:
            yield path
        return
    if isinstance(value, list):
        for item in value:
            yield from _unknown(item, f"{path}[]", rows)
    elif isinstance(value, Mapping):
        prefix = f"{path}." if path else ""
        named = next((row for row in rows if re.match(re.escape(prefix) + r"<\w+>", row)), None)
        for key, item in value.items():
            place = f"<{named[len(prefix) + 1 :].partition('>')[0]}>" if named else key
            yield from _unknown(item, prefix + place, rows)
    elif not meaning:
        yield path
