"""Ids of models on the hub, and the folders of its cache; nothing here opens a connection."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""Folder of a repository in the hub's cache."""


class Pin(NamedTuple):
    """One commit of a repository on the hub."""

    repo: str
    """ORG/NAME."""
    commit: str
    """40 hexadecimal digits."""

    def __str__(self) -> str:
        """Return it as it is written in messages."""
        return f"{self.repo}@{self.commit}"


def is_hub_id(path: Path) -> bool:
    """Return whether a path that does not exist is written like an id on the hub, ORG/NAME."""
    return bool(HUB_ID.fullmatch(path.as_posix())) and not path.exists()


def cached_id(path: Path) -> str | None:
    """Return the id of the repository in whose folder of the hub's cache a path lies."""
    for part in path.resolve().parts:
        if found := _CACHED.fullmatch(part):
            return f"{found[1]}/{found[2]}"
    return None


def pin_of(path: Path) -> Pin | None:
    """Return which commit a snapshot folder of the hub's cache holds; None for any other folder."""
    folder = path.resolve()
    repo = cached_id(folder)
    if repo is None or folder.parent.name != "snapshots" or not COMMIT.fullmatch(folder.name):
        return None
    return Pin(repo, folder.name)


def snapshot_folder(pin: Pin) -> Path:
    """Return where the hub's cache keeps a commit, whether it is there or not."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE, f"models--{pin.repo.replace('/', '--')}", "snapshots", pin.commit)
