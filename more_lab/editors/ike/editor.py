"""IKE (Zheng et al., 2023, arXiv:2305.12740): corrections as facts in the prompt; no weight changes.

A question that is similar enough to that of a stored fact is asked behind demonstrations and the fact; any other is
asked as it is. In the paper and in the published multimodal code every question, unrelated ones included, is given the
fact of its own record: that memory knows the answer to "which edit is this about?". Here the question finds the fact;
`ike:oracle` puts the last fact before every question, which is what they do where they score a record after its edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.base import EditContext, Editor, EditOutcome, EditRequest, FitData, Footprint
from more_cli.editors.outcome import edit_scores, outcome, refused, score_edit
from more_cli.editors.registry import EditorOptions, editor, entry_of, tries
from more_cli.errors import DataError
from more_cli.evaluation.probes import other_wordings
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.recipe.tables import Table
from more_lab.editors.attached import AttachedEditor
from more_lab.editors.ike.demonstrations import Bank, demonstration, packed, statement, unpacked
from more_lab.editors.ike.retrieval import Asked, Reader, asked_of, best_threshold, keys, similarities, text_alone

CHECKED = 300
"""Number of records, from the start of the pool, that centres and threshold are measured on; the bank holds all."""
FACTS = 100
"""Facts that are stored together while the threshold is chosen: more facts come nearer to an unrelated question."""
ICL = 0.8
"""Share of the questions that the base must answer with the new fact in its prompt to count as learning in context."""
ROOM = 64
"""Tokens of the model's context that are left for the answer."""
KEPT = 1024
"""Recent questions whose keys are kept."""
TIE = 1e-6
"""Similarities that differ by less are equal: the later fact counts."""


class IkeTuning(Table):
    """The numbers of IKE."""

    demonstrations: int = Field(default=2, ge=1, le=64)
    """Largest number of demonstrations before a fact; fewer if the context is short. The published code has 32."""
    depth: float = Field(default=0.66, gt=0, le=1)
    """Share of the text layers after which questions are compared."""
    reach: float = Field(default=0.5, gt=0, lt=1)
    """Weight of finding facts against leaving other questions alone when the threshold is chosen."""
    scope: Literal["retrieve", "oracle"] = "retrieve"
    """Which fact a question gets: the most similar one above the threshold, or always the last one."""
    empty_line: bool = False
    """Whether an empty line stands between examples, as published; the embedded models have learnt a line break."""


@dataclass(frozen=True)
class Fact:
    """A stored correction."""

    number: int
    """Of its edit."""
    question: str
    target: str
    shown: bool
    """Whether the question has images."""
    demonstrations: tuple[int, ...]
    """Indices in the bank, the most similar first."""


IKE = tries(demonstrations=(1, 3, 4), reach=(0.35, 0.65, 0.8), depth=(0.5, 0.8))


@editor("ike", tries=IKE)
class IkeEditor(AttachedEditor[Reader]):
    """Puts the nearest stored fact before a question, with demonstrations of what a fact means."""

    capabilities = frozenset({"fit"})
    grows: ClassVar[bool] = True
    tuning: IkeTuning

    def __init__(self, tuning: IkeTuning) -> None:
        self.tuning = tuning
        self._facts: list[Fact] = []
        self._keys: list[Tensor] = []
        self._bank: Bank | None = None
        self._centres = torch.empty(0)
        self._threshold = 1.0
        self._key = lru_cache(KEPT)(self._read_key)

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Rewrite the questions that the model is asked; the model itself is left as it is."""
        try:
            with self.working_on(runtime, Reader(runtime, self.tuning.depth)), runtime.attached([], self):
                yield
        finally:
            self._key.cache_clear()

    @property
    def bank(self) -> Bank:
        """The demonstrations that `fit` made."""
        assert self._bank is not None, "fit the editor first"
        return self._bank

    def fit(self, data: FitData) -> dict[str, Any]:
        """Make the demonstrations, choose the threshold, and check that the base learns in context."""
        runtime, reader = self.working
        data.progress(0, 3, "demonstrations")
        self._bank = Bank.of(runtime, data.edits)
        data.progress(1, 3, "threshold")
        records = data.edits[:CHECKED]
        shown, bare = asked_of(records, True), asked_of(records, False)
        alone = list(text_alone(records, CHECKED))
        if runtime.prompter.family.refuses(0, alone=True):
            bare, alone = Asked(False), []
        self._centres = _centres(reader, alone, shown.own)
        found = [similarities(part, reader, self._centres, FACTS) for part in (bare, shown)]
        inside, outside = (torch.cat(parts) for parts in zip(*found, strict=True))
        threshold = best_threshold(inside, outside, self.tuning.reach)
        # As it is stored: a threshold in float32 after loading must not differ from the one before.
        self._threshold = float(torch.tensor(threshold.value))
        data.progress(2, 3, "in context")
        return {
            "demonstrations": len(self._bank.texts),
            "demonstrations by": "mean input embedding",
            "questions by": f"mean states after text layer {reader.layer} of {reader.layers}",
            "threshold": round(self._threshold, 4),
            "own fact found": round(threshold.found, 4),
            "others left alone": round(threshold.left_alone, 4),
        } | self._in_context(data)

    def _in_context(self, data: FitData) -> dict[str, str]:
        """Return how many unseen facts the base repeats from its prompt, each given to its own questions."""
        own, reworded = list[bool](), list[bool]()
        for edit in data.held_out:
            fact = self._fact(EditRequest.of(edit), 0)
            for query, scores in [(Query.of(edit), own), *((other, reworded) for other in other_wordings(edit)[:1])]:
                asked = self._behind(fact, query)
                scores.append(asked is not None and self._answers(asked, edit.target))
        counts = {"in context": own, "in context, reworded": reworded}
        facts = {name: _of(scores) for name, scores in counts.items() if scores}
        if sum(own + reworded) < ICL * len(own + reworded):
            also = f" and {_of(reworded)} reworded ones" if reworded else ""
            facts["obstacle"] = (
                f"the base does not learn in context: with the fact in its prompt it answers {_of(own)} questions{also}"
            )
        return facts

    def _answers(self, query: Query, target: str) -> bool:
        runtime = self.runtime
        with runtime.base():
            (score,) = edit_scores(runtime.score(runtime.batch([runtime.encode(query, target)])))
        return score.right

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Store a correction as a fact; facts that it contradicts are gone from the past, and from the memory."""
        runtime = self.runtime
        self._keep([fact.number in context.past for fact in self._facts])
        first = score_edit(runtime, runtime.encode(request.query, request.target))
        fact = self._fact(request, context.number)
        if problem := self._refuses(fact, request):
            return refused(first, problem, passes=1, cost=1 / 3)
        self._facts.append(fact)
        self._keys.append(self._key(request.query))
        last = score_edit(runtime, runtime.encode(request.query, request.target))
        return outcome(runtime, first, last, writes=1, passes=3, cost=1.0)

    def _fact(self, request: EditRequest, number: int) -> Fact:
        question, target = request.query.question, request.target
        own = demonstration(question, target, question, target)
        nearest = self.bank.nearest(self.runtime, own, self.tuning.demonstrations)
        return Fact(number, question, target, bool(request.query.images), tuple(nearest))

    def _refuses(self, fact: Fact, request: EditRequest) -> str:
        """Return why a fact cannot be stored, or nothing."""
        asked = self._behind(fact, request.query)
        if asked is None:
            return "the fact and its question are longer than the model's context"
        try:
            with self.runtime.base():
                self.runtime.encode(asked, request.target)
        except DataError as error:
            return error.message
        return ""

    def _keep(self, standing: list[bool]) -> None:
        self._facts = [fact for fact, stands in zip(self._facts, standing, strict=True) if stands]
        self._keys = [key for key, stands in zip(self._keys, standing, strict=True) if stands]

    def rewrite(self, query: Query) -> Query:
        """Return the question after the fact that it finds; unchanged if it finds no fact, or the fact does not fit."""
        fact = self.found(query)
        return query if fact is None else self._behind(fact, query) or query

    def found(self, query: Query) -> Fact | None:
        """Return the most similar fact, if it is similar enough; one without images is for questions without."""
        if self.tuning.scope == "oracle":
            return self._facts[-1] if self._facts else None
        rows = [row for row, fact in enumerate(self._facts) if fact.shown == bool(query.images)]
        if not rows:
            return None
        similar = torch.stack([self._keys[row] for row in rows]) @ self._key(query)
        best = float(similar.max())
        if best < self._threshold:
            return None
        return self._facts[rows[int((similar >= best - TIE).nonzero()[-1])]]

    def _read_key(self, query: Query) -> Tensor:
        """Return the key of a question, (2 d,)."""
        return keys(self.working[1].read([query]), self._centres, bool(query.images))[0]

    def _behind(self, fact: Fact, query: Query) -> Query | None:
        """Return a question behind a fact, with as many of its demonstrations as fit; None if not even the fact does.

        The fact itself comes twice, first as a demonstration with its own question, as in the published code.
        """
        own = demonstration(fact.question, fact.target, fact.question, fact.target)
        asked = statement(fact.question, fact.target, query.question)
        between = "\n\n" if self.tuning.empty_line else "\n"
        for count in range(len(fact.demonstrations), -1, -1):
            shown = [str(self.bank.texts[index]) for index in fact.demonstrations[:count]]
            whole = replace(query, question=between.join([*shown, own, asked]))
            if self._fits(whole):
                return whole
        return None

    def _fits(self, query: Query) -> bool:
        runtime = self.runtime
        context = runtime.prompter.max_length
        if context is None:
            return True
        try:
            with runtime.base():
                return len(runtime.encode(query).input_ids) + ROOM <= context
        except DataError:
            return False

    def footprint(self) -> Footprint:
        """Return the bytes of bank and centres, and of the facts; nothing is trained."""
        fixed, growing = (sum(tensor.nbytes for tensor in kept.values()) for kept in (self.fitted(), self.state_dict()))
        return Footprint(fixed, growing, 0)

    def fitted(self) -> dict[str, Tensor]:
        """Return the bank, the centres and the threshold."""
        if self._bank is None:
            return {}
        return self._bank.tensors() | {"centres": self._centres, "threshold": torch.tensor(self._threshold)}

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._bank, self._centres = Bank.load(tensors), tensors["centres"]
        self._threshold = float(tensors["threshold"])

    def reset(self) -> None:
        assert self._attached is None, "detach the editor first"
        self._facts, self._keys = [], []

    def state_dict(self) -> dict[str, Tensor]:
        """Return the facts, as JSON in bytes, and their keys, (t, 2 d)."""
        if not self._facts:
            return {}
        return {"facts": packed([asdict(fact) for fact in self._facts]), "keys": torch.stack(self._keys)}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        values: list[Any] = unpacked(tensors["facts"]) if tensors else []
        self._facts = [Fact(**value | {"demonstrations": tuple(value["demonstrations"])}) for value in values]
        self._keys = list(tensors["keys"]) if tensors else []


@editor("ike:oracle", tries=IKE)
def oracle(options: EditorOptions) -> Editor:
    """Make IKE with a memory that knows the fact of a question: the last one."""
    return entry_of("ike").make(options.with_settings("scope=oracle"))


def _centres(reader: Reader, alone: list[Query], shown: list[Query]) -> Tensor:
    """Return the mean readings (2, 2, d) of questions without images and with; zeros where there are none."""
    found = [reader.read(queries).mean(dim=0) if queries else None for queries in (alone, shown)]
    known = next(mean for mean in found if mean is not None)
    return torch.stack([torch.zeros_like(known) if mean is None else mean for mean in found])


def _of(scores: list[bool]) -> str:
    return f"{sum(scores)} of {len(scores)}"
