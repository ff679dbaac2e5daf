"""`schemas.json`: the JSON Schema of every output, from its type in `more_cli.outputs` or `more_lab.outputs`."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

import more_cli.outputs
import more_lab.outputs
from generator import examples
from more_cli.outputs.base import MEANINGS, Printed
from more_cli.outputs.edits import Again, Ended
from more_cli.recipe.settings import meanings

PACKAGES = (more_cli.outputs, more_lab.outputs)
"""Packages of modules that define outputs."""
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ABOUT = """\
One definition per output, by the value of its key `schema`. An output may have further keys: new ones may come at any \
time. The number after the slash changes when a key changes its meaning, or goes away."""


class _Described(GenerateJsonSchema):
    """Adds the meaning of every key, and leaves out titles and defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        found, model = super().model_schema(schema), schema["cls"]
        for name, meaning in _meanings(model).items():
            if name in model.model_fields:
                found["properties"][model.model_fields[name].alias or name]["description"] = meaning
        if issubclass(model, Ended):  # what many outputs say of their end comes last
            found["properties"] = dict(sorted(found["properties"].items(), key=lambda each: _shared_by(each[0])))
        return {key: value for key, value in found.items() if key != "title"}


def _meanings(model: type) -> dict[str, str]:
    """Return what the fields mean, also those of its bases and those like which it is, and keys of many outputs."""
    own = {name: text for base in reversed(model.__mro__) if _is_ours(base) for name, text in meanings(base).items()}
    like = getattr(model, "like", None)
    return (_meanings(like) if like else MEANINGS) | own


def _shared_by(name: str) -> int:
    """Return how many of the bases of outputs about applied edits have a key."""
    return sum(name in base.model_fields for base in (Again, Ended))


def _is_ours(base: type) -> bool:
    return issubclass(base, BaseModel) and base is not BaseModel


def printed() -> dict[str, type[Printed]]:
    """Return the type of every output by the value of its key `schema`."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    waiting, found = [Printed], {}
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            if model.__module__.startswith(tuple(package.__name__ for package in PACKAGES)):  # not those of a test
                found[model.version] = model
    return dict(sorted(found.items()))


def definitions(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of types and of all types in them, by the name of the class."""
    wanted = [(model, "serialization") for model in models]
    return models_json_schema(wanted, schema_generator=_Described)[1]["$defs"]  # type: ignore[arg-type]


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of all outputs; each says that further keys may come."""
    outputs = printed()
    parts = _open(definitions(*outputs.values()))
    found = {version: _output(model, parts.pop(model.__name__)) for version, model in outputs.items()}
    cases = [
        {
            "if": {"properties": {"schema": {"const": version}}},
            "then": {"$ref": "#/$defs/" + version.replace("/", "~1")},
        }
        for version in outputs
    ]
    return {
        "$schema": _DRAFT,
        "title": "JSON outputs of more",
        "description": _ABOUT,
        "type": "object",
        "required": ["schema"],
        "properties": {"schema": {"enum": list(outputs)}},
        "allOf": cases,
        "$defs": found | parts,
    }


def schemas_text() -> str:
    """Return the file."""
    return json.dumps(schemas(), ensure_ascii=False, indent=1) + "\n"


def _output(model: type[Printed], schema: dict[str, Any]) -> dict[str, Any]:
    found = examples.kept().get(model.version)
    return schema | {
        "description": f"{model.command}. {schema['description']}",
        "properties": {"schema": {"const": model.version}} | schema["properties"],
        "required": ["schema", *schema["required"]],
        **({"examples": [found]} if found else {}),
    }


def _open(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_open(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _open(item) for key, item in schema.items() if (key, item) != ("additionalProperties", False)}
