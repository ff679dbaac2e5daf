"""Values of `more.toml` for options that were not typed, and where each setting in force comes from.

The order is: what was typed, the environment, `more.toml`, and for the state the choice of `more switch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from more_cli.checkpoint.folder import CONFIG
from more_cli.cli.words import names_model
from more_cli.errors import MoreError
from more_cli.options import NamedFile
from more_cli.store.names import current_file, name_of
from more_cli.store.project import KEYS, Setting, Settings, blamed_on, settings_for
from more_cli.store.target import locate

Origin = Literal["flag", "environment", "file", "switch", "default"]
_HELP = {"--help", "-h"}


def with_model(parameters: Sequence[Any], args: list[str]) -> list[str]:
    """Return the words of a command that needs MODEL, with the one of `more.toml` in front if none of them is one."""
    needed = any(each.name == "model" and each.required for each in parameters)
    if not needed or _HELP.intersection(args) or any(_is_checkpoint(word) for word in args):
        return args
    project = settings_for()
    return [str(project["model"].value), *args] if "model" in project else args


def _is_checkpoint(word: str) -> bool:
    return os.path.isfile(os.path.join(word, CONFIG)) or (not word.startswith("-") and os.path.exists(f"{word}.more"))


def fill(ctx: Any) -> None:
    """Put the device and the gates of `more.toml` in place of options that were not given.

    Raises:
        UsageError: a file is bad, or a gate in it.
    """
    for key in ("device", "gates"):
        if key in ctx.params and _source(ctx, key) == "default" and not _excluded(key, ctx):
            found = settings_for(_model_of(ctx)).get(key)
            if found is not None:
                ctx.params[key] = _checked(key, found)


def _excluded(key: str, ctx: Any) -> bool:
    """Return whether something else was asked for: gates are about a state's edits, a map of devices is no device."""
    others = ("suite", "probes") if key == "gates" else ("device_map",)
    return any(ctx.params.get(other) for other in others) or (key == "gates" and ctx.info_name != "eval")


def _checked(key: str, found: Setting) -> Any:
    """Return a value after checking that it can be used."""
    with blamed_on(found):
        if key == "device":
            from more_cli.model.machine import Machine

            Machine(device=found.value)
            return found.value
        from more_cli.evaluation.gates import parse_gate

        for text in found.value:
            parse_gate(text)
        return list(found.value)


def _model_of(ctx: Any) -> Path | None:
    """Return the checkpoint among the words of a command."""
    words = [ctx.params.get("model"), *(ctx.params.get("words") or ())]
    return next((Path(word) for word in words if word is not None and names_model(str(word))), None)


def _source(ctx: Any, name: str) -> Origin:
    """Return where the value of an option comes from, as far as the command line knows."""
    found = getattr(ctx.get_parameter_source(name), "name", "DEFAULT")
    names: dict[str, Origin] = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment"}
    return names.get(found, "default")


def was_typed(ctx: Any, name: str) -> bool:
    """Return whether an option stands on the command line: its value may also be of the environment."""
    return _source(ctx, name) == "flag"


def recipe_of(project: Settings) -> str | None:
    """Return the recipe of `more.toml`.

    Raises:
        UsageError: there is none of this name, or its file is bad.
    """
    if (found := project.get("recipe")) is None:
        return None
    from more_cli.recipe.files import load_recipe

    with blamed_on(found):
        load_recipe(found.value)
    return str(found.value)


def anchors_named(project: Settings) -> NamedFile | None:
    """Return the anchors file of `more.toml`, and where it is named.

    Raises:
        DataError: there is no such file.
    """
    if (found := project.get("anchors")) is None:
        return None
    from more_cli.inputs.records import not_found

    path: Path = found.value
    if not path.exists():
        with blamed_on(found):
            raise not_found(path)
    return NamedFile(path, found.place)


@dataclass(frozen=True)
class InForce:
    """A setting and where it comes from."""

    key: str
    value: str | list[str] | None
    """None for what is chosen later."""
    origin: Origin
    place: str
    """The option, the variable, or the file with the line; empty for a default."""


def in_force(ctx: Any) -> Iterator[InForce]:
    """Yield every setting as the command with this context sees it.

    Raises:
        UsageError: a file is bad.
    """
    project, params = settings_for(_model_of(ctx)), ctx.params
    for key in KEYS:
        typed = _source(ctx, key) if key in params else "default"
        if typed != "default":
            yield InForce(key, str(params[key]), typed, _typed_as(ctx, key, typed))
        elif found := project.get(key):
            value = found.value
            yield InForce(key, list(value) if key == "gates" else str(value), "file", found.place)
        else:
            yield _default(key, params)


def _typed_as(ctx: Any, key: str, origin: Origin) -> str:
    parameter = next(each for each in ctx.command.params if each.name == key)
    if origin == "environment":
        return str(parameter.envvar)
    return str(parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar)


def _default(key: str, params: dict[str, Any]) -> InForce:
    """Return a setting that nothing was said about."""
    if key in ("model", "state"):
        with suppress(MoreError):
            target = locate(params["model"], params["state"])
            file = current_file(target.model)
            if key == "model":
                return InForce(key, str(target.model), "default", "")
            chosen = file.exists() and name_of(target.model, target.sidecar) is not None
            return InForce(key, str(target.sidecar), "switch" if chosen else "default", str(file) if chosen else "")
        return InForce(key, None, "default", "")
    value: str | list[str] | None = {"device": "cpu", "gates": []}.get(key)  # type: ignore[assignment]
    return InForce(key, value, "default", "")
