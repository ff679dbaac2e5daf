"""When Python searches for garbage: late, because what is imported and loaded at the start stays."""

from __future__ import annotations

import gc

FIRST = 1_000_000
"""Objects at the first search, more than torch, transformers and a model's modules make: about 600,000."""
LATER = 20_000
"""Objects from one search to the next."""


def search_late() -> None:
    """Search for the first time after `FIRST` new objects, from then on after every `LATER`.

    A search looks at every new object, so those of the imports alone cost a fifth of a second. Until the first one only
    objects in a circle of references wait to be freed, 24,000 small ones in `more ask`; all others are freed at once.
    """
    older = gc.get_threshold()[1:]

    def searched(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(searched)
            gc.set_threshold(LATER, *older)

    gc.callbacks.append(searched)
    gc.set_threshold(FIRST, *older)
