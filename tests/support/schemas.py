"""What an output lacks, has too much or has in another type than `docs/schemas.json` says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from generator.schemas import reference, schemas, variants


def differences(value: Mapping[str, Any]) -> list[str]:
    """Return how an output differs from the published schema, in which it must also have a row for every key."""
    version = str(value.get("schema"))
    found = [_differences(name, value) for name in variants(version)]
    return min(found, key=len) if found else [f"{version}: no such schema in docs/generator/keys.toml"]


def _differences(name: str, value: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {error.json_path}: {error.message[:200]}" for error in _validator(name).iter_errors(value)]


@cache
def _validator(name: str) -> Draft202012Validator:
    """Return the published schema, closed: readers must allow further keys, the tests do not."""
    return Draft202012Validator({"$ref": reference(name), "$defs": _closed(schemas()["$defs"])})


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(item) for key, item in schema.items()}
    return closed | {"additionalProperties": False} if isinstance(schema.get("required"), list) else closed
