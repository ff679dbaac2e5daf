"""What a later run need not find out again: kept in the user's cache folder, and safe to delete at any time."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from more_cli.errors import MoreError
from more_cli.files import replacing, sha256_bytes

_SETTLED = 2.0
"""Seconds: on the coarsest file system a file that changes twice within them keeps the times of the first change."""


def default_cache() -> Path:
    """Return where caches lie by the XDG rule."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "more"


@dataclass(frozen=True)
class KnownHash:
    """The SHA-256 of a large file as it is now, known from an earlier run if nothing has touched it since."""

    file: Path
    identity: str

    @classmethod
    def of(cls, file: Path) -> KnownHash:
        """Look at a file, before it is read.

        Raises:
            OSError: there is none.
        """
        return cls(file, _identity(file))

    @property
    def sha256(self) -> str | None:
        """64 hex digits, or None: not known."""
        with suppress(OSError, ValueError, RuntimeError):  # such as no home to have a cache in
            noted = self._note.read_text(encoding="ascii")
            return noted if re.fullmatch(r"[0-9a-f]{64}", noted) else None
        return None

    def keep(self, sha256: str) -> None:
        """Note what the file was found to hash to, unless it was changed since it was looked at, or shortly before."""
        with suppress(OSError, RuntimeError, MoreError):  # then the next run reads it again
            changed = max(self.file.stat().st_mtime, self.file.stat().st_ctime)
            if _identity(self.file) == self.identity and time.time() - changed > _SETTLED:
                self._note.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self._note) as scratch:
                    scratch.write_text(sha256, encoding="ascii")

    @property
    def _note(self) -> Path:
        return default_cache() / "sha256" / self.identity


def _identity(file: Path) -> str:
    """Return another name for each file, and for the same one once it was written to, replaced or linked."""
    status = file.stat()
    place = os.path.realpath(file), status.st_dev, status.st_ino
    return sha256_bytes(repr((*place, status.st_size, status.st_mtime_ns, status.st_ctime_ns)).encode())
