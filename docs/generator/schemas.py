"""`schemas.json`: the JSON Schema of every output, from the rows of `keys.toml`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

KEYS = tomllib.loads((Path(__file__).with_name("keys.toml")).read_text(encoding="utf-8"))

REFERENCE = re.compile(r"@(\w+)")
"""A shared object in a type."""
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ABOUT = """\
One definition per output, by the value of its key `schema`. An output may have further keys: new ones may come at any \
time. The number after the slash changes when a key changes its meaning, or goes away."""
_WORDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "list": {"type": "array"},
    "any": {},
}


class Row(NamedTuple):
    """A row of `keys.toml`."""

    type: str
    meaning: str
    optional: bool
    """Whether the key can be missing."""


def row(text: str) -> Row:
    """Read `TYPE | MEANING`, or `optional TYPE | MEANING`."""
    words, bar, meaning = text.partition(" | ")
    if not bar:
        raise ValueError(f"keys.toml: `{text}` is not `TYPE | MEANING`")
    return Row(words.removeprefix("optional "), meaning, words.startswith("optional "))


def rows_of(entry: Mapping[str, Any]) -> dict[str, Row]:
    """Return the rows of an object by path, with those of the shared objects that it names."""
    rows: dict[str, Row] = {}
    for name in entry.get("shared", ()):
        rows |= rows_of(KEYS["shared"][name])
    return rows | {path: row(text) for path, text in entry.get("keys", {}).items()}


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of all outputs."""
    outputs = {name: _output(name, entry) for name, entry in KEYS["schemas"].items()}
    versions = dict.fromkeys(map(version_of, outputs))
    cases = [
        {"if": {"properties": {"schema": {"const": version}}}, "then": _any_of(variants(version))}
        for version in versions
    ]
    return {
        "$schema": _DRAFT,
        "title": "JSON outputs of more",
        "description": _ABOUT,
        "type": "object",
        "required": ["schema"],
        "properties": {"schema": {"enum": list(versions)}},
        "allOf": cases,
        "$defs": outputs | {name: _object(rows_of(KEYS["shared"][name])) for name in referred()},
    }


def version_of(name: str) -> str:
    """Return what an output has as its `schema`: `more.eval/2` for `more.eval/2 of a suite`."""
    return name.partition(" ")[0]


def variants(version: str) -> list[str]:
    """Return the names of the outputs that have this `schema`."""
    return [name for name in KEYS["schemas"] if version_of(name) == version]


def schemas_text() -> str:
    """Return the file."""
    return json.dumps(schemas(), ensure_ascii=False, indent=1) + "\n"


def _any_of(names: list[str]) -> dict[str, Any]:
    found = [{"$ref": reference(name)} for name in names]
    return found[0] if len(found) == 1 else {"anyOf": found}


def reference(name: str) -> str:
    """Return how a schema refers to an output or a shared object."""
    return "#/$defs/" + name.replace("/", "~1").replace(" ", "%20")


def _output(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    found = _object(rows_of(entry))
    about = ". ".join(filter(None, (entry["command"], entry.get("about", ""))))
    properties = {"schema": {"const": version_of(name)}} | found["properties"]
    return {"description": about} | found | {"properties": properties, "required": ["schema", *found["required"]]}


def _object(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the schema of an object: `key.below` is a key of an object in it, `key[].below` of the items of a list."""
    properties: dict[str, Any] = {}
    required = []
    for key in dict.fromkeys(re.split(r"\.|\[", path)[0] for path in rows):
        items, below = _below(f"{key}[].", rows), _below(f"{key}.", rows)
        own = rows.get(key, Row("list" if items else "object", "", False))
        properties[key] = type_schema(own.type) | ({"description": own.meaning} if own.meaning else {})
        if items:
            properties[key]["items"] = _object(items)
        if below:
            properties[key] = _object(below) | properties[key]
        if not own.optional:
            required.append(key)
    return {"type": "object", "properties": properties, "required": required}


def _below(start: str, rows: Mapping[str, Row]) -> dict[str, Row]:
    return {path.removeprefix(start): found for path, found in rows.items() if path.startswith(start)}


def type_schema(words: str) -> dict[str, Any]:
    """Return the schema of a type as `keys.toml` spells it, such as `list of text or null`."""
    terms = [_term(term) for term in words.split(" or ")]
    if len(terms) == 1:
        return terms[0]
    if all(term.keys() == {"type"} for term in terms):
        return {"type": [term["type"] for term in terms]}
    return {"anyOf": terms}


def _term(words: str) -> dict[str, Any]:
    if words.startswith("list of "):
        return {"type": "array", "items": _term(words.removeprefix("list of "))}
    if words.startswith("map of "):
        return {"type": "object", "additionalProperties": _term(words.removeprefix("map of "))}
    if words.startswith("@") and words[1:] in KEYS["shared"]:
        return {"$ref": reference(words[1:])}
    if words not in _WORDS:
        raise ValueError(f"keys.toml: no type `{words}`")
    return dict(_WORDS[words])


def referred() -> list[str]:
    """Return the names of the shared objects that stand as a value somewhere."""
    entries = [*KEYS["schemas"].values(), *KEYS["shared"].values()]
    types = " ".join(found.type for entry in entries for found in rows_of(entry).values())
    found = set(REFERENCE.findall(types))
    return [name for name in KEYS["shared"] if name in found]
