"""What an output lacks, has too much or has in another form than its type says."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from more_cli.outputs.base import Printed
from more_cli.text import finite


def differences(printed: Printed) -> list[str]:
    """Return how the text that a command prints differs from the type that it was made of."""
    return differences_of(type(printed), json.loads(json.dumps(finite(printed.values()))))


def differences_of(model: type[Printed], value: dict[str, Any]) -> list[str]:
    """Return how a value differs from the type of an output: readers must allow further keys, the tests do not."""
    value = dict(value)
    wrong = [] if value.pop("schema") == model.version else [f"its schema is not {model.version}"]
    found = _validator(model).iter_errors(value)
    return wrong + [f"{model.version}: {error.json_path}: {error.message[:200]}" for error in found]


@cache
def _validator(model: type[Printed]) -> Draft202012Validator:
    return Draft202012Validator(model.model_json_schema(mode="serialization"))
