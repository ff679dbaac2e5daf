"""Jobs without a model, for the tests of what runs jobs: worker processes import them from here."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from more_cli.errors import StateError
from more_cli.progress import Progress


@dataclass(frozen=True)
class Note:
    """Writes down each of its starts; the first `killed` of them end with the process."""

    key: str
    folder: Path
    killed: int = 0
    problem: str = ""
    threads: int = 1
    group: str = "notes"

    @property
    def label(self) -> str:
        return f"note {self.key}"

    @property
    def starts(self) -> int:
        return len(list(self.folder.glob(f"{self.key}.*")))

    def run(self, progress: Progress) -> tuple[dict[str, Any], bool]:
        (self.folder / f"{self.key}.{self.starts}").touch()
        if self.starts <= self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.key == "wrong":
            raise StateError("it is\nwrong")
        return {"key": self.key}, True
