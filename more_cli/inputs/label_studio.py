"""Tasks of Label Studio's JSON export (and JSON-MIN, whose tasks are plain rows).

It reads a labelling configuration whose controls are named after the fields of an edit line, such as

    <View>
      <Image name="picture" value="$image"/>
      <Text name="asked" value="$question"/>
      <TextArea name="target" toName="picture"/>
      <TextArea name="rephrases" toName="picture" maxSubmissions="5"/>
    </View>

Controls of another name are mapped like columns (`--column target=answer`). Text areas and choices give their text; the
values of other controls are kept in `tags` as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from more_cli.errors import DataError

FORM = "a Label Studio export"
_LOCAL, _UPLOADED = "/data/local-files/", "/data/upload/"
"""How Label Studio spells a file of its local storage, and one that was uploaded to it."""


def is_task(record: Mapping[str, Any]) -> bool:
    """Return whether a record is a task with its annotations."""
    return isinstance(record.get("data"), Mapping) and isinstance(record.get("annotations"), list)


def task_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task as a row: its data, what was annotated by control, and the ids of task and annotation as tags.

    Raises:
        DataError: there is no annotation, or several that differ.
    """
    given = [found for found in record["annotations"] if isinstance(found, Mapping) and not found.get("was_cancelled")]
    results = [_result(found) for found in given]
    if not results:
        raise DataError("the task has no annotation", "label it, or leave it out with --skip-bad")
    if any(result != results[0] for result in results):
        raise DataError(f"the task has {len(results)} annotations that differ", "keep the one that is right")
    ids = {"label_studio": {"task": record.get("id"), "annotation": given[0].get("id")}}
    data = _local(record["data"])
    tags = data["tags"] if isinstance(data.get("tags"), Mapping) else {}
    return {**data, **results[0], "tags": {**tags, **ids}}


def min_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task of the JSON-MIN export as a row, and a row of any other origin unchanged."""
    if "annotation_id" not in record:
        return dict(record)
    return {name: _texts(value) for name, value in _local(record).items()}


def _local(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose paths inside Label Studio are below its folder of files: that folder is the image root."""
    return {name: _local_path(value) for name, value in row.items()}


def _texts(value: Any) -> Any:
    """Return what was annotated: JSON-MIN spells several texts or choices as an object with their list."""
    inner = next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else None
    return inner if isinstance(inner, list) and value.keys() <= {"text", "choices"} else value


def _local_path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith(_LOCAL):
        return next(iter(parse_qs(urlsplit(value).query).get("d", [])), value)
    return value.removeprefix("/data/") if value.startswith(_UPLOADED) else value


def _result(annotation: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in annotation.get("result") or []:
        if isinstance(item, Mapping) and item.get("type") == "relation":
            continue  # joins two regions, and has no value of its own
        value = item.get("value") if isinstance(item, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(item.get("from_name"), str):
            raise DataError("a result of the task has no control or no value", "export the task again as JSON")
        texts = value.get("text", value.get("choices"))
        found.setdefault(item["from_name"], []).extend(texts if isinstance(texts, list) else [texts or dict(value)])
    return {name: items[0] if len(items) == 1 else items for name, items in found.items()}
