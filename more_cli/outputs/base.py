"""What the types of JSON outputs have in common.

The string below a field is the meaning of its key, or else what `MEANINGS` says: docs/json.md and docs/schemas.json are
made from these types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

LEFT_OUT: Any = None
"""Default of a key that can be missing."""
MEANINGS = {
    "asked": "edits that were asked for: neither reverted nor superseded",
    "failed": "those of them that do not stand",
    "gates": "one per `--gate`",
    "model": "path of the checkpoint",
    "replayed": "ledger lines that the state did not have yet and that were applied first",
    "reproduce": "what is needed to get the same numbers again",
    "state": "path of the state",
    "wall_seconds": "time of the command in seconds",
}
"""What a key means wherever no string is below it."""
FilePath = Annotated[Path, WithJsonSchema({"type": "string"})]
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""Printed as it is: 1 does not become 1.0."""


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


Seconds = Annotated[float, AfterValidator(_rounded)]


class Part(BaseModel):
    """An object in an output."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        from_attributes=True,
        populate_by_name=True,
        protected_namespaces=(),
        defer_build=True,
    )
    like: ClassVar[type | None] = None
    """A class whose strings below fields say what the fields here mean that have none of their own."""

    def __init_subclass__(cls, *, like: type | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.like = like or cls.like

    @classmethod
    def of(cls, source: object, /, **values: Any) -> Self:
        """Make it of values and, for its other keys, of the attributes that an object has."""
        attributes = {name: getattr(source, name) for name in cls.model_fields.keys() - values if hasattr(source, name)}
        return cls.model_validate(attributes | values)


class Printed(Part):
    """An object that a command prints: `class GcOutput(Printed, schema="more.gc/1", command="more gc --json")`."""

    version: ClassVar[str]
    """The value of its key `schema`."""
    command: ClassVar[str]
    """What prints it."""
    example: ClassVar[str]
    """Its name among the commands of docs/generator/examples.py."""

    def __init_subclass__(cls, *, schema: str = "", command: str = "", example: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        if schema:  # what several outputs have in common has none
            cls.version, cls.command = schema, command
            cls.example = example or schema.removeprefix("more.").partition("/")[0]

    def values(self) -> dict[str, Any]:
        """Return what is printed; keys that were left out are missing."""
        return {"schema": self.version} | self.model_dump(mode="json", by_alias=True, exclude_unset=True)
