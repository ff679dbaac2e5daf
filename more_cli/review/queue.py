"""The queue of `more review --queue`: mistakes to correct, one after the other, and which of them are done."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from more_cli.errors import DataError
from more_cli.files import add_line, disk_errors
from more_cli.inputs.images import ImageCache
from more_cli.inputs.ratings import Mistake, Ratings
from more_cli.inputs.turns import shown_in
from more_cli.review.drafts import Draft, Talk
from more_cli.review.pictures import Pictures
from more_cli.store.target import Target
from more_cli.text import canonical_json

What = Literal["applied", "skipped"]


def done_file(target: Target) -> Path:
    """Return the file beside a state that says which mistakes are done: a line for each."""
    return target.sidecar.with_name(f"{target.sidecar.name}.queue")


class Queue:
    """Mistakes in the order of their file, and what became of each; used by several threads."""

    def __init__(self, ratings: Ratings, target: Target, pictures: Pictures) -> None:
        """Read which mistakes an earlier session has done.

        Raises:
            StateError: the file that says so cannot be read.
        """
        self.ratings = ratings
        self._images = ImageCache(ratings.path.parent)
        self._pictures = pictures
        self._path = done_file(target)
        self._lock = threading.Lock()
        self.done: dict[str, What] = {}
        self._torn = False
        with disk_errors(self._path), suppress(FileNotFoundError):
            text = self._path.read_text(encoding="utf-8", errors="replace")
            self._torn = not text.endswith("\n")
            for line in text.splitlines():
                with suppress(ValueError, RecursionError):  # a line that a crash cut off: its mistake comes again
                    self._note(json.loads(line))

    @property
    def open(self) -> list[Mistake]:
        """The mistakes that are neither applied nor skipped."""
        return [mistake for mistake in self.ratings.mistakes if mistake.key not in self.done]

    @property
    def applied(self) -> set[str]:
        """Keys of the mistakes that are corrected."""
        return {key for key, what in self.done.items() if what == "applied"}

    def find(self, key: str) -> Mistake | None:
        """Return the mistake of a key; None if there is none."""
        return next((mistake for mistake in self.ratings.mistakes if mistake.key == key), None)

    def finish(self, key: str, what: What) -> None:
        """Remember what became of a mistake; it is on disk when this returns.

        Raises:
            StateError, ResourceError: the file cannot be written.
        """
        line, start = {"key": key, "what": what}, "\n" if self._torn else ""
        with self._lock:
            add_line(self._path, f"{start}{canonical_json(line)}\n".encode())
            self._torn = False
            self._note(line)

    def _note(self, line: object) -> None:
        if isinstance(line, Mapping) and line.get("what") in ("applied", "skipped"):
            self.done[str(line.get("key"))] = line["what"]

    def draft(self, mistake: Mistake) -> Draft:
        """Return a correction of a mistake, its pictures among the uploads; one that cannot be had is a problem."""
        digests, problems = list[str](), list[str]()
        for spelled in mistake.images:
            try:
                digests.append(self._pictures.add(self._images.locate(spelled).read(), spelled))
            except DataError as error:
                problems.append(error.message)
        draft = Draft(mistake.question, mistake.target, queued=mistake.key)
        if problems:
            return replace(draft, problems={"image": problems})
        earlier = shown_in(mistake.turns)
        before, own = tuple(digests[:earlier]), digests[earlier:]
        if len(own) > 1:
            text = f"the question has {len(own)} pictures, and this form one: the others are left out"
            draft = replace(draft, problems={"image": [text]})
        return replace(draft, talk=Talk(mistake.turns, before), picture=own[0] if own else "")
