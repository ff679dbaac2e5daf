"""Makes options of the command line from the records that a command takes (`more_cli/options.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import Field, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from more_cli.cli import completion
from more_cli.errors import UsageError
from more_cli.options import name_of, typed_fields


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose records are spread into one option per field; called, it gets the records whole."""
    hints = get_type_hints(function, include_extras=True)
    spread: list[inspect.Parameter] = []
    records: dict[str, type] = {}
    for parameter in inspect.signature(function).parameters.values():
        taken = hints[parameter.name]
        if is_dataclass(taken) and isinstance(taken, type):
            records[parameter.name] = taken
            spread += _options(taken)
        else:
            spread.append(parameter.replace(annotation=taken, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def run(**given: Any) -> None:
        for name, record in records.items():
            values = {each.name: _value(each, given.pop(each.name)) for each in typed_fields(record)}
            given[name] = record(**values)
        function(**given)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in spread}
    return run


def refuse_empty(option: str, given: Any) -> None:
    """Refuse a script's variable that is not set: taken as left out, it would choose something else without a word.

    Raises:
        UsageError: the value is an empty text.
    """
    if given == "":
        raise UsageError(f"`{option}` is empty", "give it a value, or leave it out")


def _options(record: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(record)
    for each in typed_fields(record):
        default = each.default or None if isinstance(each.default, tuple) else each.default
        annotation: Any = Annotated[_plain(hints[each.name]), _typer_option(each, hints[each.name])]
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typer_option(each: Field[Any], hint: Any) -> Any:
    typed = each.metadata["typed"]
    return typer.Option(
        *typed.names,
        help=typed.help,
        count=typed.repeats,
        metavar="|".join(get_args(hint)) if get_origin(hint) is Literal else typed.metavar,
        min=typed.least,
        envvar=typed.environment,
        autocompletion=getattr(completion, typed.complete) if typed.complete else None,
        rich_help_panel=typed.panel,
    )


def _plain(hint: Any) -> Any:
    """Return the type that Typer reads: it knows lists but no tuples of any length."""
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]] | None  # type: ignore[misc]
    return hint


def _value(each: Field[Any], given: Any) -> Any:
    if each.default is None:
        refuse_empty(name_of(each), given)
    return tuple(given or ()) if isinstance(each.default, tuple) else given
