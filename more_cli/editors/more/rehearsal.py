"""Rehearsal: which past edits are scored again with a new one, which anchors join a write, and encoded past edits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.draws import SEED, noise, pick
from more_cli.editors.past import Past
from more_cli.errors import DataError, StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime

CACHE_BYTES = 256 << 20
"""Largest number of bytes of past edits that are kept as tokens and pixels."""
CAP = 6.0
"""Logits: past edits with at least this margin are drawn as if all were equally sure."""
BONUS = 1.0
"""Logits by which a past edit counts as less sure for every round since it was last scored. In one round as many past
edits are drawn as there are."""


def draw(past: Past, now: int, turn: int, size: int, taken: Collection[int] = ()) -> list[int]:
    """Return the numbers of the `size` past edits most at risk of being forgotten, the least sure first.

    Risk is the last known margin, at most `CAP`, minus `BONUS` for every round (an edit's share of all draws) since
    the edit was last scored, plus noise in [0, 1) that depends on edit and draw only, so a replay draws the same.
    `now` is the number of the new edit, `turn` counts its draws; edits in `taken` are left out.
    """
    past = past.without(taken)
    if not past or size == 0:
        return []
    rounds = (now - past.at) * size / len(past)
    risk = np.minimum(past.margins, CAP) - BONUS * rounds
    risk = risk + noise((SEED, now, turn), len(past))
    chosen: list[int] = past.numbers[np.argsort(risk, kind="stable")[:size]].tolist()
    return chosen


def draw_anchors(anchors: Sequence[Anchor], size: int, *key: int) -> list[Anchor]:
    """Return `size` random anchors, all if there are fewer; the same key gives the same anchors."""
    return [anchors[i] for i in pick(len(anchors), size, SEED, *key)]


class EncodedEdits:
    """Past edits as tokens and pixels; the least recently used is dropped first."""

    def __init__(self, runtime: Runtime, *, ended: bool = True) -> None:
        self.runtime = runtime
        self.ended = ended
        """Whether the token that ends an answer is part of a target."""
        self._encoded: OrderedDict[int, Encoded] = OrderedDict()
        self._bytes = 0

    def put(self, number: int, request: EditRequest) -> None:
        """Encode an edit.

        Raises:
            DataError: the edit does not fit into the model's context, or an image cannot be read.
        """
        encoded = self.runtime.encode(request.query, request.target)
        encoded = encoded if self.ended else encoded.unended
        if number in self._encoded:
            self._bytes -= self._encoded.pop(number).bytes
        self._encoded[number] = encoded
        self._bytes += encoded.bytes
        while self._bytes > CACHE_BYTES and len(self._encoded) > 1:
            self._bytes -= self._encoded.popitem(last=False)[1].bytes

    def keep_only(self, past: Past) -> None:
        """Drop edits that no longer stand: they are never rehearsed again."""
        for number in np.setdiff1d(np.fromiter(self._encoded, np.int64), past.numbers).tolist():
            self._bytes -= self._encoded.pop(number).bytes

    def get(self, number: int, context: EditContext) -> Encoded:
        """Return an edit; a past edit that was dropped is fetched and encoded again.

        Raises:
            StateError: it cannot be fetched. The new edit is not the cause, so the run ends and does not refuse it.
        """
        if number not in self._encoded:
            request = context.recall(number)
            try:
                self.put(number, request)
            except DataError as error:
                hint = "restore the file, or start a new state without rehearsal: --set rehearsal.size=0"
                raise StateError(f"edit `{request.id}` cannot be rehearsed: {error.message}", hint) from None
        self._encoded.move_to_end(number)
        return self._encoded[number]
