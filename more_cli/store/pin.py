"""Which commit on the hub the base of a state is: `hub.json` in the state's folder, for a base of the hub's cache.

The state itself names its base by hashes alone, so its bytes do not depend on where the base came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from more_cli.checkpoint.hub import COMMIT, HUB_ID, Pin
from more_cli.files import disk_errors, replacing
from more_cli.text import canonical_json, strict_json

PIN = "hub.json"
SCHEMA = "more.hub/1"


def write_pin(folder: Path, pin: Pin | None) -> None:
    """Write down which commit the base is, if it is one.

    Raises:
        StateError, ResourceError: as `disk_errors`.
    """
    if pin is None:
        return
    with disk_errors(folder), replacing(folder / PIN) as scratch:
        scratch.write_text(f"{canonical_json({'schema': SCHEMA, **pin._asdict()})}\n", encoding="utf-8")


def read_pin(folder: Path) -> Pin | None:
    """Return which commit the base is; None where that is not written down, or cannot be read."""
    if not (folder / PIN).is_file():  # a pipe of this name would never end
        return None
    try:
        values: Any = strict_json((folder / PIN).read_text(encoding="utf-8"))
        pin = Pin(str(values["repo"]), str(values["commit"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pin if HUB_ID.fullmatch(pin.repo) and COMMIT.fullmatch(pin.commit) else None
