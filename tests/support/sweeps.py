"""Jobs without a model, for the tests of what runs jobs: worker processes import them from here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from more_cli.errors import StateError
from more_cli.progress import Progress


@dataclass(frozen=True)
class Note:
    """Writes down each of its starts with the process; the first `killed` of them end with that, all after a while."""

    key: str
    folder: Path
    killed: int = 0
    seconds: float = 0.0
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
        (self.folder / f"{self.key}.{self.starts}").write_text(str(os.getpid()))
        if self.starts <= self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        if self.key == "wrong":
            raise StateError("it is\nwrong")
        return {"key": self.key}, True

    def stands(self, values: Mapping[str, Any]) -> bool:
        return True
