"""MODEL as an id on the hub, for the commands that have `--fetch`."""

from __future__ import annotations

from pathlib import Path

from more_cli.checkpoint.hub import is_hub_id
from more_cli.cli.output import Output
from more_cli.errors import UsageError
from more_cli.options import HubOptions


def fetched(output: Output, model: Path | None, state: Path | None, hub: HubOptions) -> tuple[Path | None, Path | None]:
    """Return model and state as they are used: of an id on the hub, the downloaded folder and its state's file.

    Raises:
        UsageError: `--revision` without anything to download.
        HubError: it cannot be downloaded.
    """
    wanted = hub.fetch and model is not None and is_hub_id(model)
    if hub.revision is not None and not wanted:
        what = f"`{model}` is a folder" if hub.fetch and model is not None else "`--revision` needs `--fetch`"
        raise UsageError(f"{what}: nothing is downloaded", "type: MODEL as OWNER/NAME, with --fetch --revision NAME")
    if not wanted or model is None:
        return model, state
    from more_cli.ops.hub import fetch

    with output.progress() as progress:
        progress(0, None, f"downloading {model.as_posix()}")
        target = fetch(model.as_posix(), hub.revision, state)
    output.note(f"note: {model.as_posix()} is {target.model}")
    return target.model, target.sidecar
