"""`more ask`: one question to the base, to the edited model and to a merged checkpoint.

Every model scores every answer: so one sees not only what an edit changed, but how far the base was from it. Base and
edited model are one loaded model, its branches switched off and on, so a picture goes through the frozen part of its
vision tower once, however many questions are asked about it. A merged checkpoint has weights of its own and is loaded
beside it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import DataError, UsageError
from more_cli.files import StrPath
from more_cli.inputs.arguments import checked
from more_cli.inputs.images import ImageSource, pictures
from more_cli.inputs.turns import Turn
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.base import open_base
from more_cli.ops.card import PROVENANCE
from more_cli.ops.plan import recipe_for
from more_cli.ops.session import open_session
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import load_recipe
from more_cli.recipe.tables import Asking
from more_cli.store.state import State, load_meta
from more_cli.store.target import Target
from more_cli.text import check_strings

Voice = Literal["base", "edited", "merged"]
"""Who answers."""
ANSWER_TOKENS = 64
"""Longest answer, tokens, unless another limit is given."""


@dataclass(frozen=True)
class Said:
    """A greedy answer of one model."""

    text: str
    """It ends in `...` where it was cut off."""
    nll: Mapping[Voice, float]
    """Mean negative log-likelihood of this answer by each model, in nats per token, its end included."""


@dataclass(frozen=True)
class Answers:
    """What every model says to one question."""

    question: str
    images: tuple[ImageSource, ...]
    said: Mapping[Voice, Said]

    @property
    def base(self) -> str:
        """The base's answer."""
        return self.said["base"].text

    @property
    def edited(self) -> str | None:
        """The edited model's answer; None without a state."""
        return self.said["edited"].text if "edited" in self.said else None

    @property
    def merged(self) -> str | None:
        """The merged checkpoint's answer; None if none was asked."""
        return self.said["merged"].text if "merged" in self.said else None


class _Model(NamedTuple):
    """A loaded model, as one of its voices."""

    runtime: Runtime
    is_base: bool = False

    def speaking(self) -> AbstractContextManager[None]:
        return self.runtime.base() if self.is_base else nullcontext()


@dataclass
class Asker:
    """Loaded models that answer the same questions."""

    models: dict[Voice, _Model] = field(default_factory=dict)
    replayed: int = 0
    """Ledger lines that were applied because the sidecar lacks them."""
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Base and edited model are one, so threads that share an asker take turns."""

    @checked
    def ask(
        self,
        question: str,
        images: StrPath | Sequence[StrPath | ImageSource] = (),
        tokens: int = ANSWER_TOKENS,
        turns: Sequence[Turn] = (),
    ) -> Answers:
        """Return every model's greedy answer, of at most `tokens` tokens, and how likely each finds each answer.

        Images are paths, `data:` URIs, or what `pictures` returns; the first of them belong to the earlier turns.

        Raises:
            DataError: the question is empty or too long, an image cannot be used, or the model does not take so many.
            UsageError: the block of `asking` has ended, or an argument is of another kind or less than 1.
        """
        if tokens < 1:
            raise UsageError(f"an answer cannot have {tokens} tokens", "ask for at least 1")
        shown = pictures([images] if isinstance(images, str | os.PathLike) else images)
        query = Query(shown, _as_held(question), tuple(turns))
        with self._turn:
            return self._answers(query, tokens)

    def _answers(self, query: Query, tokens: int) -> Answers:
        if not self.models:
            raise UsageError("the block of `asking` has ended", "ask within it: `with model.asking() as asker: ...`")
        ids: dict[Voice, list[int]] = {}
        for voice, model in self.models.items():
            with model.speaking():
                (ids[voice],) = model.runtime.generate([query], tokens)
        nll = {voice: _nll(model, query, list(ids.values())) for voice, model in self.models.items()}
        said = {}
        for place, (voice, answer) in enumerate(ids.items()):
            text = self.models[voice].runtime.prompter.spoken(answer)
            said[voice] = Said(text, {by: values[place] for by, values in nll.items()})
        return Answers(query.question, query.images, said)


@contextmanager
def asking(
    target: Target,
    machine: Machine,
    *,
    merged: Path | None = None,
    progress: Progress = no_progress,
    runtime: Runtime | None = None,
) -> Iterator[Asker]:
    """Load the base, with its state if there is one, and a merged checkpoint if it is named.

    `runtime` is the base if it is loaded already.

    Raises:
        StateError: a folder is no checkpoint, or the state does not fit its base.
        UsageError: `merged` was not written by `more merge`.
    """
    if merged is not None and not (merged / PROVENANCE).is_file():
        raise UsageError(f"`{merged}` holds no `{PROVENANCE}`", "name a folder that `more merge` wrote")
    asker = Asker()
    with ExitStack() as stack:
        if target.sidecar.exists():
            session = open_session(target, machine, progress, runtime)
            asker.replayed = stack.enter_context(session.attached())
            asker.models = {"base": _Model(session.runtime, is_base=True), "edited": _Model(session.runtime)}
        else:
            loaded = runtime or load_base(target, machine, progress)
            stack.enter_context(loaded.attached([]))
            asker.models["base"] = _Model(loaded)
        if merged is not None:
            progress(0, None, "loading the merged model")
            other = load_runtime(open_checkpoint(merged), machine, **asked_as(target))
            stack.enter_context(other.attached([]))
            asker.models["merged"] = _Model(other)
        try:
            yield asker
        finally:
            asker.models = {}  # the edits are taken off now: "edited" would be the base


def load_base(
    target: Target,
    machine: Machine,
    progress: Progress = no_progress,
    recipe: str | None = None,
    settings: Sequence[str] = (),
) -> Runtime:
    """Load a checkpoint as its edits are asked; recipe and settings are those of a state that is still to come.

    Raises:
        StateError: not a checkpoint, or not the one that its state was made for.
        ResourceError: it does not fit into memory.
    """
    checkpoint = open_checkpoint(target.model)
    if target.sidecar.exists():
        checkpoint = open_base(target, State(load_meta(target.sidecar)))
    progress(0, None, "loading the model")
    return load_runtime(checkpoint, machine, **asked_as(target, recipe, settings))


def asked_as(target: Target, recipe: str | None = None, settings: Sequence[str] = ()) -> Asking:
    """Return how questions are asked, by the state's recipe or, without a state, by the recipe of a new one."""
    if target.sidecar.exists():
        return load_meta(target.sidecar).recipe.asking
    return load_recipe(recipe or recipe_for(open_checkpoint(target.model)), settings).asking


def _as_held(question: str) -> str:
    """Return a question as an edit line would hold it."""
    question = question.strip()
    if not question:
        raise DataError("the question is empty", "type one, in quotes")
    try:
        check_strings(question)
    except ValueError as error:
        raise DataError(f"the question's {error}", "leave it out") from None
    return question


def _nll(model: _Model, query: Query, answers: Sequence[Sequence[int]]) -> list[float]:
    """Return the mean negative log-likelihood of each answer, given as tokens, in nats per token."""
    runtime = model.runtime
    prompt = runtime.encode(query)
    samples = [prompt.followed_by(ids) for ids in answers]
    with model.speaking():
        return [float(value) for scored in runtime.score_all(samples) for value in scored.nll()]
