"""Functions of the Python interface: their arguments are checked against the annotations, as Typer checks those of the
command line, and what goes wrong in them is an error for users."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from more_cli.errors import UsageError
from more_cli.files import as_user_error
from more_cli.recipe.settings import in_words
from more_cli.text import shorten

Taken = ParamSpec("Taken")
Returned = TypeVar("Returned")
_NUMBERS = {int: Integral, float: Real}
"""Kinds of numbers that stand for those of Python: those of numpy are of them too."""


def checked(function: Callable[Taken, Returned]) -> Callable[Taken, Returned]:
    """Let a function refuse an argument that is none of what its annotation says, and fail as a command does."""

    @wraps(function)
    def call(*args: Taken.args, **kwargs: Taken.kwargs) -> Returned:
        signature, hints = inspect.signature(function), get_type_hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            kind = signature.parameters[name].kind
            if name in hints and kind is not inspect.Parameter.VAR_KEYWORD:
                for each in value if kind is inspect.Parameter.VAR_POSITIONAL else (value,):
                    require(name, each, hints[name])
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if (known := as_user_error(error)) is None or known is error:
                raise
            raise known from error

    return call


def require(name: str, value: object, hint: Any) -> None:
    """Refuse a value that is none of what a type hint says; of an iterable, items are not looked at.

    Raises:
        UsageError: it is none.
    """
    if not _fits(value, hint):
        raise UsageError(f"`{name}` is {shorten(' '.join(repr(value).split()))}", f"it takes {in_words(hint)}")


def _fits(value: object, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is Literal:
        return value in inner
    if kind in (Sequence, tuple):
        return isinstance(value, kind) and all(isinstance(value, str) or _fits(each, inner[0]) for each in value)
    kind = _NUMBERS.get(hint, kind or hint)
    return kind is Any or isinstance(value, kind)
