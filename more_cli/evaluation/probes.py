"""Probes: the questions that score an edit and its locality, and one batched run over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from more_cli.editors.base import Editor
from more_cli.errors import DataError
from more_cli.evaluation import metrics
from more_cli.evaluation.names import Kind, Yardstick, groups, is_locality
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.model.batches import Encoded, Query
from more_cli.model.families import Family
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored

BATCH = 32
ANSWER_TOKENS = 32
"""Longest base answer that locality is measured on, in tokens."""
TRIED = 4
"""Gold answers of a batch that are tried first, as guesses of the model's greedy answers."""
SPARE_TOKENS = 8
"""A generated answer may be this many tokens longer than its target before it is cut off."""


@dataclass(frozen=True)
class Probe:
    """One question and, for edits and their variants, the target: the answer it should now have."""

    edit: str
    """Id of the edit that it scores."""
    kind: Kind
    query: Query
    target: str | None = None
    hop: int | None = None
    """Steps of reasoning from the edit (portability probes)."""
    gold: str | None = None
    """The suite's answer to a locality question; the base may give another one."""

    @property
    def is_locality(self) -> bool:
        """Whether it compares with the baseline."""
        return is_locality(self.kind)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that it counts in."""
        return groups(self.kind, self.hop)


@dataclass
class ProbeScore:
    """What one probe measured."""

    probe: Probe
    values: dict[str, float] = field(default_factory=dict)
    answer: str | None = ""
    """Greedy answer of the edited model, or under teacher forcing when nothing was generated; None if the model could
    not be asked."""
    base_answer: str = ""
    """Greedy answer of the baseline (locality probes)."""
    logits: Tensor | None = None
    """(K, vocabulary) at the target's positions, if they were asked for."""

    @property
    def holds(self) -> bool | None:
        """Whether the greedy answer is the target or, for locality, the baseline's; None if that was not measured."""
        value = self.values.get("loc_gen_same" if self.probe.is_locality else "gen_exact")
        return None if value is None else value == 1.0

    @property
    def expected(self) -> str:
        """The target or, for locality, the baseline's greedy answer."""
        return self.base_answer if self.probe.target is None else self.probe.target


@dataclass(frozen=True)
class Reference:
    """The baseline's answer to a locality probe."""

    tokens: tuple[int, ...]
    """Its greedy answer."""
    logits: Tensor
    """(K, vocabulary) at the positions that predict the answer that locality is measured on, on the CPU."""
    top: Tensor | None = None
    """(T, ranks) ids of its most likely tokens at every position of the sequence, if that is measured."""


References = Callable[[Sequence[Probe]], Sequence[Reference]]
"""Source of the baseline's answers: asked now, or cached."""


LONG_TEXT = 256
"""Bytes of question and target below which a probe is taken to fit the model's context."""


def may_not_fit(probe: Probe, family: Family) -> bool:
    """Return whether a model of this family might not take a probe, so that it must be encoded to know."""
    text, images = probe.query.question + (probe.target or ""), probe.query.images
    narrow = any(image.narrow for image in images)
    return narrow or len(text.encode()) >= LONG_TEXT or family.refuses(len(images), alone=True) is not None


def probes_of(edit: Edit) -> Iterator[Probe]:
    """Yield every probe of an edit: the edit itself, its variants, its portability and its locality questions."""
    yield Probe(edit.id, "rel", Query.of(edit), edit.target)
    for query in other_wordings(edit):
        yield Probe(edit.id, "gen_text", query, edit.target)
    for query in other_pictures(edit):
        yield Probe(edit.id, "gen_image", query, edit.target)
    for asked in edit.portability:
        yield Probe(edit.id, "portability", Query.of(asked), asked.answer, asked.hop)
    yield from locality_probes(edit.id, edit.locality)


def other_wordings(edit: Edit) -> list[Query]:
    """Return an edit's question in its other words, behind the same turns."""
    return [replace(Query.of(edit), question=question) for question in edit.rephrases]


def other_pictures(edit: Edit) -> list[Query]:
    """Return an edit's question about its other pictures, each in place of its own, behind the same turns."""
    return [replace(Query.of(edit), images=(*edit.before, image)) for image in edit.image_rephrases]


def locality_probes(edit: str, questions: Iterable[Question]) -> Iterator[Probe]:
    """Yield locality probes: `loc_image` for questions with an image, `loc_text` for those without."""
    for question in questions:
        kind: Kind = "loc_image" if question.images else "loc_text"
        yield Probe(edit, kind, Query.of(question), gold=question.answer)


def run_probes(
    runtime: Runtime,
    editor: Editor,
    probes: Sequence[Probe],
    *,
    generate: bool = True,
    keep_logits: bool = False,
    references: References | None = None,
    yardstick: Yardstick = Yardstick(),  # noqa: B008 (frozen)
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProbeScore]:
    """Score probes in batches on the model as it is now; the editor must be attached.

    Without `generate` only teacher-forced metrics are measured; `keep_logits` keeps the logits of the target positions.
    `references` returns the answers of the yardstick's baseline; without it the base is asked.
    """
    scores: list[ProbeScore] = []
    for group in batches(probes):
        if group[0].is_locality:
            before = references(group) if references else ask_base(runtime, group, yardstick)
            scores += _locality(runtime, editor, group, before, yardstick)
        else:
            scores += _targets(runtime, editor, group, generate, keep_logits)
        on_progress(len(scores), len(probes))
    order = {id(probe): number for number, probe in enumerate(probes)}
    return sorted(scores, key=lambda score: order[id(score.probe)])


def batches(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    """Yield batches, locality and other probes apart, and by number of images: sequences differ much in length."""
    sorts: dict[tuple[bool, int], list[Probe]] = {}
    for probe in probes:
        sorts.setdefault((probe.is_locality, len(probe.query.images)), []).append(probe)
    for alike in sorts.values():
        for start in range(0, len(alike), BATCH):
            yield alike[start : start + BATCH]


def _targets(runtime: Runtime, editor: Editor, probes: Sequence[Probe], generate: bool, keep: bool) -> list[ProbeScore]:
    queries = [probe.query for probe in probes]
    encoded = [runtime.encode(query, probe.target) for query, probe in zip(queries, probes, strict=True)]
    parts = list(runtime.score_all(encoded))
    values = [row for part in parts for row in _rows(metrics.of_targets(part))]
    answers = [answer for part in parts for answer in _forced_answers(runtime, part)]
    if generate:
        longest = max(len(sequence.target) for sequence in encoded)
        tokens = _greedy(runtime, queries, encoded, parts, longest + SPARE_TOKENS)
        # Not what a longer target of the batch left room for: an edit's score is not its neighbours'.
        tokens = [ids[: len(one.target) + SPARE_TOKENS] for ids, one in zip(tokens, encoded, strict=True)]
        answers = [runtime.prompter.text(ids) for ids in tokens]
        for row, probe, answer, ids in zip(values, probes, answers, tokens, strict=True):
            stops = bool(ids) and ids[-1] in runtime.prompter.stops
            # As it was encoded: with a control token as text, an answer can never equal the target as it was written.
            row |= metrics.of_generated(answer, runtime.prompter.inert(probe.target or ""), stops=stops)
    scores = [ProbeScore(*found) for found in zip(probes, values, answers, strict=True)]
    if keep:
        rows = [row[mask] for part in parts for row, mask in zip(part.logits, part.mask, strict=True)]
        for score, row in zip(scores, rows, strict=True):
            score.logits = row.float().cpu()
    return scores


def ask_base(runtime: Runtime, probes: Sequence[Probe], yardstick: Yardstick) -> list[Reference]:
    """Return the untouched base's answers to locality probes."""
    with runtime.base():
        return ask(runtime, [probe.query for probe in probes], probes, yardstick)


def ask(
    runtime: Runtime,
    queries: Sequence[Query],
    probes: Sequence[Probe],
    yardstick: Yardstick,
    answers: Sequence[Sequence[int]] | None = None,
) -> list[Reference]:
    """Return the answers of the model as it is now to locality probes, asked as `queries`.

    Logits are those on the gold answers if the yardstick wants these, else on `answers`, given as tokens, or on the
    model's own: a model often would not say the gold answer.
    """
    if yardstick.prefix == "gold":
        # Published code has no end token in its answers.
        encoded = [runtime.encode(q, probe.gold).unended for q, probe in zip(queries, probes, strict=True)]
        tokens: Sequence[Sequence[int]] = runtime.generate(queries, ANSWER_TOKENS)
        return _references(runtime, encoded, list(runtime.score_all(encoded)), tokens, yardstick)
    if answers is None:
        return _ask_for_own(runtime, queries, probes, yardstick)
    numbered = dict(zip(range(len(queries)), answers, strict=True))
    return list(_ask_on(runtime, queries, numbered, yardstick).values())


def _ask_on(
    runtime: Runtime, queries: Sequence[Query], answers: Mapping[int, Sequence[int]], yardstick: Yardstick
) -> dict[int, Reference]:
    """Return the model's greedy answers to the questions whose index has one of these `answers`, with logits on it."""
    asked = [queries[place] for place in answers]
    encoded = [runtime.encode(query).followed_by(ids) for query, ids in zip(asked, answers.values(), strict=True)]
    parts = list(runtime.score_all(encoded))
    tokens = _greedy(runtime, asked, encoded, parts, ANSWER_TOKENS)
    return dict(zip(answers, _references(runtime, encoded, parts, tokens, yardstick), strict=True))


def _ask_for_own(
    runtime: Runtime, queries: Sequence[Query], probes: Sequence[Probe], yardstick: Yardstick
) -> list[Reference]:
    """Return the model's greedy answers, with logits on these answers.

    If the greedy answer is the gold one, a single pass both checks and scores it. All that is returned comes from one
    batch, so that another model's answers to the same questions differ by the model alone.
    """
    golds = _golds(runtime, queries, probes) if runtime.picks_most_likely else {}
    found = _ask_on_golds(runtime, queries, golds, yardstick)
    own: dict[int, Sequence[int]] = {place: reference.tokens for place, reference in found.items()}
    if len(own) == len(queries) and own == golds:
        return list(found.values())
    if unknown := [place for place in range(len(queries)) if place not in own]:
        answers = runtime.generate([queries[place] for place in unknown], ANSWER_TOKENS)
        own |= dict(zip(unknown, answers, strict=True))
    tokens = [own[place] for place in range(len(queries))]
    encoded = [runtime.encode(query).followed_by(ids) for query, ids in zip(queries, tokens, strict=True)]
    return _references(runtime, encoded, list(runtime.score_all(encoded)), tokens, yardstick)


def _ask_on_golds(
    runtime: Runtime, queries: Sequence[Query], golds: Mapping[int, Sequence[int]], yardstick: Yardstick
) -> dict[int, Reference]:
    """Ask a few questions that have gold answers, and all if at least half of these are the model's own answers."""
    few = dict(islice(golds.items(), TRIED))
    found = _ask_on(runtime, queries, few, yardstick)
    right = sum(found[place].tokens == gold for place, gold in few.items())
    if len(few) == len(golds) or 2 * right < len(few):
        return found
    return _ask_on(runtime, queries, golds, yardstick)


def _golds(runtime: Runtime, queries: Sequence[Query], probes: Sequence[Probe]) -> dict[int, tuple[int, ...]]:
    """Return the gold answers that a model may generate token by token, by their index."""
    golds = {}
    for place, (query, probe) in enumerate(zip(queries, probes, strict=True)):
        with suppress(DataError):  # too long together with the question
            whole = runtime.encode(query, probe.gold)
            if 0 < len(whole.target) <= ANSWER_TOKENS:
                golds[place] = tuple(whole.target_ids)
    return golds


def _references(
    runtime: Runtime,
    encoded: Sequence[Encoded],
    parts: Sequence[Scored],
    tokens: Sequence[Sequence[int]],
    yardstick: Yardstick,
) -> list[Reference]:
    rows = [row[mask] for part in parts for row, mask in zip(part.logits, part.mask, strict=True)]
    tops = [runtime.top_tokens(sequence, metrics.RANKS) if yardstick.everywhere else None for sequence in encoded]
    return [Reference(tuple(ids), row.cpu(), top) for ids, row, top in zip(tokens, rows, tops, strict=True)]


def _greedy(
    runtime: Runtime, queries: Sequence[Query], encoded: Sequence[Encoded], parts: Sequence[Scored], longest: int
) -> list[list[int]]:
    """Return greedy answers of at most `longest` tokens, given the scores of one candidate answer per question.

    A candidate whose every token was the most likely one is the greedy answer, and is not generated again.
    """
    greedy = runtime.picks_most_likely
    right = [greedy and bool(value) for part in parts for value in part.all_right()]
    missing = [query for query, known in zip(queries, right, strict=True) if not known]
    generated = iter(runtime.generate(missing, longest) if missing else [])
    return [sequence.target_ids if known else next(generated) for sequence, known in zip(encoded, right, strict=True)]


def _locality(
    runtime: Runtime, editor: Editor, probes: Sequence[Probe], before: Sequence[Reference], yardstick: Yardstick
) -> list[ProbeScore]:
    """Compare with the baseline on the same answer."""
    after = before
    if not editor.is_base:  # the base's answers are known, and would differ slightly in other batches
        queries = [probe.query for probe in probes]
        after = ask(runtime, queries, probes, yardstick, [reference.tokens for reference in before])
    return [_compared(runtime, *found) for found in zip(probes, after, before, strict=True)]


def _compared(runtime: Runtime, probe: Probe, after: Reference, before: Reference) -> ProbeScore:
    answer, base_answer = (runtime.prompter.text(said.tokens) for said in (after, before))
    (values,) = _rows(metrics.of_answers(_as_scored(after), _as_scored(before)))
    values |= metrics.of_texts(answer, base_answer)
    if after.top is not None and before.top is not None:
        values |= metrics.of_everywhere(after.top, before.top)
    return ProbeScore(probe, values, answer, base_answer)


def _as_scored(said: Reference) -> Scored:
    """Return a model's answer as a batch of one in which every position counts."""
    mask = torch.ones(1, len(said.logits), dtype=torch.bool)
    return Scored(said.logits[None], torch.zeros_like(mask, dtype=torch.long), mask)


def _rows(columns: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return the values of each probe by name."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _forced_answers(runtime: Runtime, scored: Scored) -> list[str]:
    return [runtime.prompter.text(row[mask]) for row, mask in zip(scored.predicted(), scored.mask, strict=True)]
