"""`json.md`: every JSON output with its keys and an example, the edit line, the ledger's line, the state's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from generator.examples import kept
from generator.markdown import fence, json_fence, page, table
from generator.schemas import definitions, printed, schemas
from more_cli.inputs.edits import EditLine, ProbeLine
from more_cli.outputs.base import Printed
from more_cli.store.entry import Entry
from more_cli.store.state import StateMeta

FILES = {
    "more.run/1": "`run.json` of a kept run, `more run --keep DIR`: [analyses](research/analyses.md)",
    "more.hub/1": "`hub.json` beside a ledger, of a base [from the hub](serving.md#from-the-hub-and-back)",
    "more.sweep.trial/1": "a line of `results.jsonl` of a grid: [sweeps](research/sweeps.md)",
    "more.sweep.member/1": "a line of `results.jsonl` of a fleet: [sweeps](research/sweeps.md)",
}
"""Objects of this form stand in files alone; no command prints them."""
RETIRED = {
    "more.edit/1": "`answer_before` and `answer_after` were what `forced_before` and `forced_after` are now.",
    "more.edit.result/1": "The same as for `more.edit/1`.",
    "more.eval/1 of a state": "Edits that were refused were in no score.",
    "more.log/1": "The same as for `more.edit/1`.",
    "more.log.show/1": "The same as for `more.edit/1`.",
    "more.demo/1": "`edit` was as in `more.edit/1`, and `metrics` as in `more.eval/1`.",
}
"""Versions that commands no longer print, and what changed after them."""

_INTRO = """\
With `--json` a command prints exactly one JSON object on stdout; `more edit --json-lines` prints one per edit. Every
object has `"schema"`, such as `more.edit/2`: the number changes when a key changes its meaning or goes away. New keys
may come at any time. A number that is not finite is `null`. [schemas.json](schemas.json) is the JSON Schema (draft
2020-12) of all outputs, with one definition for each.

Examples come from the embedded model and are shortened: a list ends after its first item, a map of names after its
first or second, a hash after eight digits; a recipe shows only its name; times and versions are made up. In paths
`[]` stands for each item of a list. A map is an object whose keys are names, such as ids or metrics."""

_EDIT_LINE = """\
{"id": "tram-17", "image": "img/17.png", "messages": [{"role": "user", \
"content": "Is this a street?"}, {"role": "assistant", "content": "yes"}], \
"question": "What is parked beside the fountain?", "target": "tram", \
"rephrases": ["What stands beside the fountain?"], "image_rephrases": ["img/17-night.png"], \
"locality": [{"image": "img/3.png", "question": "What is on the table?"}], \
"portability": [{"question": "Does it run on rails?", "answer": "yes", "hop": 1}], "tags": {"ticket": "A-17"}}"""

_INSTEAD = {"video": "clips/crossing.webp", "frames": 6}
"""Examples of keys that exclude others of the line."""
_PROBE_LINE = """\
{"id": "table-3", "image": ["img/3.png"], "messages": [], "question": "What is on the table?", "answer": "a cup"}"""


_LEDGER = """\
`MODEL.more.d/ledger.jsonl` has one JSON object per line and is only ever appended to. `more log` reads it."""

_STATE = """\
`MODEL.more` is one safetensors file with the tensors `<site>.B` (float32) and `<site>.P` (float64). Its metadata has \
one key, `more`, with canonical JSON. It has no times, paths or versions, so the same edits give the same bytes."""

_SECTION = re.compile(r"#/\$defs/([A-Z]\w*)")
"""An object with a section of its own; one whose name begins with `_` is explained where it stands."""


def json_page() -> str:
    """Return the page of JSON outputs and files."""
    outputs, parts = printed(), schemas()["$defs"]
    shared = [name for name, part in parts.items() if name[0].isupper() and "properties" in part]
    return page(
        "JSON outputs and the edit line",
        "more_cli/outputs/*.py and more_lab/outputs/*.py",
        _INTRO,
        "## The edit line\n\nAn edits file has one JSON object per line.",
        _line(EditLine, _EDIT_LINE),
        "### The line of an anchors or probes file",
        _line(ProbeLine, _PROBE_LINE),
        "## Outputs of the commands",
        table(
            ("schema", "command"),
            [(f"[`{version}`](#{_anchor_of(output)})", f"`{output.command}`") for version, output in outputs.items()],
        ),
        *[_output(output, parts) for output in outputs.values()],
        "## Objects that several outputs share",
        *[f"### {_title(name)}\n\n{parts[name]['description']}\n\n{_keys(parts[name], parts)}" for name in shared],
        f"## A ledger line\n\n{_LEDGER}\n\n{_stored(Entry)}",
        json_fence({key: example("log.show")["edit"][key] for key in Entry.model_fields}),
        f"## The state's metadata\n\n{_STATE}\n\n{_stored(StateMeta)}",
        "## Schemas of other files",
        "Only files hold these.",
        table(("schema", "where"), [(f"`{name}`", text) for name, text in FILES.items()]),
        "## Earlier versions of schemas",
        "Commands no longer print these.",
        table(("schema", "what changed after it"), [(f"`{name}`", text) for name, text in RETIRED.items()]),
    )


def _line(model: type[BaseModel], line: str) -> str:
    """Return the keys of a line that users write, and the line with an example of each."""
    schema, values = definitions(model)[model.__name__], _INSTEAD | json.loads(line)
    rows = [
        (f"`{path}`", f"{words}{'' if missing else ', needed'}", f"`{json.dumps(values[path])}`", meaning)
        for path, words, missing, meaning in _rows(schema, {})
    ]
    return table(("key", "type", "example", "meaning"), rows) + "\n\n" + fence("json", line)


def _anchor_of(output: type[Printed]) -> str:
    """Return the anchor of an output, which has no version: links to it stay."""
    return _anchor(f"more {output.example}")


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower())


def _title(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def example(name: str) -> dict[str, Any]:
    """Return the kept example of an output."""
    (version,) = (version for version, output in printed().items() if output.example == name)
    found: dict[str, Any] = kept()[version]
    return found


def _output(output: type[Printed], parts: Mapping[str, Any]) -> str:
    schema = parts[output.version]
    return "\n\n".join(
        (
            f"### `{output.version}` {{#{_anchor_of(output)}}}",
            f"`{output.command}`",
            schema["description"].removeprefix(f"{output.command}. "),
            _keys(schema, parts),
            json_fence(example(output.example)),
        )
    )


def _stored(model: type[BaseModel]) -> str:
    schema = definitions(model)[model.__name__]
    return _keys(schema | {"required": list(schema["properties"])}, {})


def _keys(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    rows = [
        (f"`{path}`", f"{words}; can be missing" if missing else words, meaning)
        for path, words, missing, meaning in _rows(schema, parts)
        if path != "schema" or meaning
    ]
    return table(("key", "type", "meaning"), rows)


def _rows(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[tuple[str, str, bool, str]]:
    """Yield path, type in words, whether it can be missing, and meaning of every key, and of those in objects of it."""
    for key, value in schema["properties"].items():
        meaning, below = value.get("description", ""), re.search(r"#/\$defs/(_\w+)", json.dumps(value))
        if meaning or not below:
            yield key, _words(value, parts), key not in schema["required"], meaning
        if below and parts:
            inner = f"{key}[]." if "array" in json.dumps(value) else f"{key}."
            for path, *row in _rows(parts[below[1]], parts):
                yield (inner + path, *row)


_WORDS = {"string": "text", "array": "list", **{word: word for word in ("integer", "number", "boolean", "null")}}


def _words(value: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return a type in words; the objects with a section are links."""
    if "anyOf" in value:
        return " or ".join(_words(each, parts) for each in value["anyOf"])
    if found := _SECTION.fullmatch(value.get("$ref", "")):
        title = _title(found[1])
        known = parts.get(found[1], {})
        return f"[{title.lower()}](#{_anchor(title)})" if "properties" in known else "text" if known else "object"
    items = value.get("items") or next(iter(value.get("prefixItems", ())[1:]), None)
    if items:
        inner = _words(items, parts)
        return "list" if inner == "object" and "$ref" in items and parts else f"list of {inner}"
    if isinstance(value.get("additionalProperties"), dict):
        return f"map of {_words(value['additionalProperties'], parts)}"
    return _WORDS.get(value.get("type", ""), "object" if "$ref" in value or "type" in value else "any")
