"""Where the suite and the model of a run come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.cli.output import Output
from more_cli.errors import StateError, UsageError
from more_cli.options import FileOptions
from more_cli.store.names import sidecar_path
from more_cli.store.project import settings_for
from more_cli.store.target import Target, locate, states_here

if TYPE_CHECKING:
    from more_cli.suites.load import Suite


def loaded_suite(output: Output, name: str, data_root: Path | None, images: FileOptions) -> Suite:
    """Load a suite of the catalog, or a file of edits, and show its notices.

    Raises:
        UsageError: unknown suite.
        DataError: a file of it is missing or bad.
    """
    from more_cli.suites.load import load_suite

    suite = load_suite(name, data_root, images.image_root, strict_paths=images.strict_paths)
    for notice in suite.notices:
        output.note(f"note: {notice}")
    return suite


def embedded_target(output: Output, model: Path | None, state: Path | None) -> Target | None:
    """Return the embedded demo model if nothing names another one, and say so on stderr; else None."""
    if model is not None or state is not None or states_here() or {"model", "state"} & settings_for().keys():
        return None
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL given and no `*.more` file here; using the embedded demo model")
    return Target(demo_model_dir(), sidecar_path(demo_model_dir()))


def suite_target(
    output: Output, suite: Suite, model: Path | None, state: Path | None, *, usage: str = "more eval MODEL --suite NAME"
) -> Target:
    """Return model and state of a run on a suite, and say on stderr what was chosen for what was not named.

    Without a model it is the one of the state or of the only `*.more` file here; with no such file, the embedded demo
    model. Only a suite of questions uses the state. `usage` shows how the command takes its model.

    Raises:
        UsageError: several `*.more` files are here, or the only one does not lie beside its model.
        StateError: a state was named and there is none.
    """
    from more_cli.suites.load import YesNoSuite

    if embedded := embedded_target(output, model, state):
        return embedded
    hint = f"name the checkpoint folder: {usage}"
    try:
        target = locate(model, state)
    except UsageError as error:
        raise UsageError(error.message, hint) from None
    if model is None and not target.model.is_dir():
        raise UsageError(f"no model named, and `{target.sidecar}` has no folder `{target.model}` beside it", hint)
    has_state = target.sidecar.exists()
    if state is not None and not has_state:
        raise StateError(f"no state at `{state}`", "name an existing `.more` file, or leave --state out")
    if not isinstance(suite, YesNoSuite):
        if model is None or state is not None:
            given = "no MODEL given; " if model is None else ""
            output.note(f"note: {given}using `{target.model}`, without the edits of its state")
        return target
    if target.model.is_dir():
        which = f"and its state `{target.sidecar}`" if has_state else f"alone: it has no state `{target.sidecar}`"
        output.note(f"note: asking `{target.model}` {which}")
    return target
