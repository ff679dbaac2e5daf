"""Probes: the questions that score an edit and its locality, and one batched run over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from more_cli.editors.base import Editor
from more_cli.edits import Edit
from more_cli.edits import Probe as Question
from more_cli.evaluation import metrics
from more_cli.evaluation.names import Kind, is_locality
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime, Scored

BATCH = 16
ANSWER_TOKENS = 32
"""Longest base answer that locality is measured on, in tokens."""
SPARE_TOKENS = 8
"""A generated answer may be this many tokens longer than its target before it is cut off."""


@dataclass(frozen=True)
class Probe:
    """One question with, for edits and their variants, the answer it should now have."""

    edit: str
    """Id of the edit that it scores."""
    kind: Kind
    query: Query
    target: str | None = None

    @property
    def is_locality(self) -> bool:
        """Whether the base's behaviour is what it should show."""
        return is_locality(self.kind)


@dataclass
class ProbeScore:
    """What one probe measured."""

    probe: Probe
    values: dict[str, float] = field(default_factory=dict)
    answer: str = ""
    """Greedy answer of the edited model, or under teacher forcing when nothing was generated."""
    base_answer: str = ""
    """Greedy answer of the base (locality probes)."""
    logits: Tensor | None = None
    """(K, vocabulary) at the target's positions, when they were to be kept."""

    @property
    def holds(self) -> bool:
        """Whether the greedy answer is the target."""
        return self.values.get("gen_exact") == 1.0


@dataclass(frozen=True)
class Reference:
    """What the untouched base says to a locality probe."""

    tokens: tuple[int, ...]
    """Its greedy answer."""
    logits: Tensor
    """(K, vocabulary) at the positions that predict it, as the model gave them, on the CPU."""


References = Callable[[Sequence[Probe]], Sequence[Reference]]
"""Where what the base says comes from: asked there and then, or kept from an earlier time."""


def probes_of(edit: Edit) -> Iterator[Probe]:
    """Yield every probe of an edit: the edit itself, its rephrases, its image variants, its locality questions."""
    yield Probe(edit.id, "rel", Query(edit.images, edit.question), edit.target)
    for question in edit.rephrases:
        yield Probe(edit.id, "gen_text", Query(edit.images, question), edit.target)
    for image in edit.image_rephrases:
        yield Probe(edit.id, "gen_image", Query((image,), edit.question), edit.target)
    yield from locality_probes(edit.id, edit.locality)


def locality_probes(edit: str, questions: Iterable[Question]) -> Iterator[Probe]:
    """Yield locality probes, told apart by whether they show an image."""
    for question in questions:
        images = (question.image,) if question.image else ()
        yield Probe(edit, "loc_image" if images else "loc_text", Query(images, question.question))


def run_probes(
    runtime: Runtime,
    editor: Editor,
    probes: Sequence[Probe],
    *,
    generate: bool = True,
    keep_logits: bool = False,
    references: References | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProbeScore]:
    """Score probes in batches on the model as it is now; the editor must be attached.

    Without `generate` only teacher-forced metrics are measured; `keep_logits` keeps those of the target positions.
    Without `references` the base is asked again.
    """
    scores: list[ProbeScore] = []
    for group in _batches(probes):
        if group[0].is_locality:
            before = references(group) if references else ask_base(runtime, group)
            scores += _locality(runtime, editor, group, before)
        else:
            scores += _targets(runtime, editor, group, generate, keep_logits)
        on_progress(len(scores), len(probes))
    order = {id(probe): number for number, probe in enumerate(probes)}
    return sorted(scores, key=lambda score: order[id(score.probe)])


def _batches(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    """Yield groups of one sort, with and without image apart: their sequences differ much in length."""
    groups: dict[tuple[bool, int], list[Probe]] = {}
    for probe in probes:
        groups.setdefault((probe.is_locality, len(probe.query.images)), []).append(probe)
    for group in groups.values():
        for start in range(0, len(group), BATCH):
            yield group[start : start + BATCH]


def _targets(runtime: Runtime, editor: Editor, probes: Sequence[Probe], generate: bool, keep: bool) -> list[ProbeScore]:
    queries = [_routed(editor, probe) for probe in probes]
    encoded = [runtime.encode(query, probe.target) for query, probe in zip(queries, probes, strict=True)]
    parts = _scored(runtime, encoded)
    values = {
        "tf_exact": [value for part in parts for value in metrics.tf_exact(part)],
        "tf_token_acc": [value for part in parts for value in metrics.tf_token_acc(part)],
        "target_nll": [value for part in parts for value in metrics.target_nll(part)],
    }
    answers = [answer for part in parts for answer in _forced_answers(runtime, part)]
    if generate:
        longest = max(len(sequence.target) for sequence in encoded)
        tokens = runtime.generate(queries, longest + SPARE_TOKENS)
        answers = [runtime.prompter.text(ids) for ids in tokens]
        same = [
            metrics.normalise(answer) == metrics.normalise(probe.target or "")
            for answer, probe in zip(answers, probes, strict=True)
        ]
        values["gen_exact"] = list(map(float, same))
        values["gen_stops"] = [float(bool(ids) and ids[-1] in runtime.prompter.stops) for ids in tokens]
    scores = _scores(probes, values, answers, [""] * len(probes))
    if keep:
        rows = [row[mask] for part in parts for row, mask in zip(part.logits, part.mask, strict=True)]
        for score, row in zip(scores, rows, strict=True):
            score.logits = row.float().cpu()
    return scores


def ask_base(runtime: Runtime, probes: Sequence[Probe]) -> list[Reference]:
    """Return what the untouched base says: its own answer, since the gold one is often nothing it would say."""
    with runtime.base():
        tokens = runtime.generate([probe.query for probe in probes], ANSWER_TOKENS)
        encoded = [runtime.encode(probe.query).followed_by(ids) for probe, ids in zip(probes, tokens, strict=True)]
        rows = [
            row[mask] for part in _scored(runtime, encoded) for row, mask in zip(part.logits, part.mask, strict=True)
        ]
    return [Reference(tuple(ids), row.cpu()) for ids, row in zip(tokens, rows, strict=True)]


def _locality(
    runtime: Runtime, editor: Editor, probes: Sequence[Probe], references: Sequence[Reference]
) -> list[ProbeScore]:
    """Compare with the base on the base's own answer."""
    pairs: list[tuple[Scored, Scored]] = []
    queries = [_routed(editor, probe) for probe in probes]
    before = [runtime.prompter.text(list(reference.tokens)) for reference in references]
    encoded = [
        runtime.encode(probe.query).followed_by(reference.tokens)
        for probe, reference in zip(probes, references, strict=True)
    ]
    for part in _scored(runtime, encoded):
        start = sum(len(edited) for edited, _ in pairs)
        pairs.append((part, _as_scored(references[start : start + len(part)], part)))
    after = [runtime.prompter.text(ids) for ids in runtime.generate(queries, ANSWER_TOKENS)]
    values = {
        "loc_top1_answer": [value for pair in pairs for value in metrics.loc_top1_answer(*pair)],
        "loc_expkl_answer": [value for pair in pairs for value in metrics.loc_expkl_answer(*pair)],
        "loc_gen_same": [float(a == b) for a, b in zip(after, before, strict=True)],
    }
    return _scores(probes, values, after, before)


def _as_scored(references: Sequence[Reference], like: Scored) -> Scored:
    """Return what the base said with the shape of what the edited model did."""
    logits = torch.zeros_like(like.logits)
    for row, mask, reference in zip(logits, like.mask, references, strict=True):
        row[mask] = reference.logits.to(row)
    return Scored(logits, like.targets, like.mask)


def _scored(runtime: Runtime, samples: Sequence[Encoded]) -> list[Scored]:
    return [runtime.score(runtime.batch(part)) for part in runtime.parts(samples, "forward")]


def _routed(editor: Editor, probe: Probe) -> Query:
    return editor.rewrite(probe.query, editor.prepare(probe.query))


def _forced_answers(runtime: Runtime, scored: Scored) -> list[str]:
    return [runtime.prompter.text(row[mask]) for row, mask in zip(scored.predicted(), scored.mask, strict=True)]


def _scores(
    probes: Sequence[Probe], values: dict[str, list[float]], answers: Sequence[str], before: Sequence[str]
) -> list[ProbeScore]:
    return [
        ProbeScore(probe, {name: column[row] for name, column in values.items()}, answers[row], before[row])
        for row, probe in enumerate(probes)
    ]
