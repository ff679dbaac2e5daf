"""What a reviewer needs to know first, in words: sentences that every format shows, and the plain measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.metrics import estimate
from more_cli.evaluation.per_edit import UNRELATED, VARIANTS, EditScores, held_by_kind, moved
from more_cli.evaluation.probes import ProbeScore
from more_cli.ops.drift import Drift
from more_cli.ops.evaluate import STATE, EvalReport
from more_cli.render.page import Phrase, Sentence, Table
from more_cli.render.templates import Advice, Quoted
from more_cli.text import counted, verb

_MEASURES = {
    "rel": ("own questions", "", "Corrected questions get the wanted answer."),
    "gen_text": ("rephrasings", "rephrases", "Rephrased questions get it too."),
    "gen_image": ("other pictures", "image_rephrases", "The same questions about other pictures get it too."),
    "portability": (
        "what follows",
        "portability",
        "Questions that follow from a correction get the answer that follows.",
    ),
    UNRELATED: ("unrelated answers", "locality", "Unrelated questions get the same answer as before."),
}
"""Name of each plain measure, the field of a correction that it needs, and what it says; by kind."""


def of_state(report: EvalReport) -> list[Sentence]:
    """Return the sentences of a state, or of a file of questions, those with failures first."""
    edits = report.per_edit
    corrected = report.source == STATE
    found = list(of_edits(edits, report.base_answers, "correction" if corrected else "answer"))
    if corrected and not edits:
        found.append(Sentence(("No correction was asked for.",)))
    if report.drift:
        found.append(_drift(report.drift))
    return [*failures_first([*found, of_gates(report.gates)]), _basis(report)]


def failures_first(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Return sentences in the order in which a reviewer needs them."""
    return sorted(sentences, key=lambda sentence: sentence.good)


def of_edits(edits: Sequence[EditScores], base: Mapping[str, str], noun: str) -> Iterator[Sentence]:
    """Yield what became of edits, what of their variants, and which unrelated answers changed.

    `base` has the base's greedy answer by edit, if it was asked; `noun` is what an edit is called.
    """
    own = [scores for scores in edits if scores.rel]
    if own:
        yield _own(own, base, noun)
    if unlearnt := [scores for scores in own if scores.good and scores.failed]:
        recorded = f"{len(unlearnt):,} of those that hold {verb(len(unlearnt), 'is', 'are')} recorded as not learnt:"
        yield Sentence((recorded,), [(Quoted(scores.id),) for scores in unlearnt], good=False)
    others, held = moved(edits), held_by_kind(edits)
    if carried := [
        f"{_MEASURES[kind][0]} {sum(held[kind]):,}/{len(held[kind]):,}" for kind in VARIANTS if kind in held
    ]:
        named = [_asked(scores, score) for scores, score in others if not score.probe.is_locality]
        said = ", ".join(carried)
        yield Sentence((f"{said[0].upper()}{said[1:]}{_end(named)}",), named, good=not named)
    yield _unrelated(edits, held.get(UNRELATED, []))


def of_gates(gates: Sequence[Judgement]) -> Sentence:
    """Return how many gates were met."""
    if not gates:
        return Sentence(("No gate was set.",))
    missed = sum(not found.met for found in gates)
    if len(gates) == 1:
        said = f"The gate is {'missed' if missed else 'met'}."
    elif missed:
        said = f"{missed:,} of {counted(len(gates), 'gate')} {verb(missed, 'is', 'are')} missed."
    else:
        said = f"All {counted(len(gates), 'gate')} are met."
    return Sentence((said,), good=not missed)


def measures(report: EvalReport) -> Table:
    """Return the plain measures, each with what it says; a state's that was not measured says what it needs."""
    edits = report.per_edit
    held = held_by_kind(edits) | {"rel": [scores.good for scores in edits if scores.rel]}
    rows = []
    for kind, (name, needs, says) in _MEASURES.items():
        if right := held.get(kind):
            share = estimate([float(one) for one in right])
            value = "" if share.few else f"{share.value:.1%}"
            rows.append((name, f"{sum(right):,} of {len(right):,}", value, share.between(".1%"), says))
        elif report.source == STATE:
            why = f"no correction has {needs}" if needs else "there is no correction"
            rows.append((name, "", "", "", f"Not measured: {why}."))
    columns = ("measure", "count", "share", "95 % interval", "what it says")
    return Table("In plain measures", columns, rows)


def _own(own: Sequence[EditScores], base: Mapping[str, str], noun: str) -> Sentence:
    bad = [scores for scores in own if not scores.good]
    held = len(own) - len(bad)
    if bad:
        said = f"{held:,} of {counted(len(own), noun)} {verb(held, 'holds', 'hold')}. Failures:"
    else:
        said = f"The {noun} holds." if len(own) == 1 else f"All {counted(len(own), noun)} hold."
    return Sentence((said,), [_failed(scores, base.get(scores.id)) for scores in bad], good=not bad)


def _failed(scores: EditScores, base: str | None) -> Phrase:
    reason = (", ", Advice(scores.failed.reason)) if scores.failed and scores.failed.reason else ()
    status = f" ({scores.failed.status})" if scores.failed else ""
    score = scores.shown
    said = ", wanted ", _answer(score.expected), *_base(base), ", now ", _answer(score.answer)
    return *_picture(score), Quoted(scores.id), status, *reason, "; ", _answer(score.probe.query.question), *said


def _asked(scores: EditScores, score: ProbeScore) -> Phrase:
    said = (
        (", base " if score.probe.is_locality else ", wanted "),
        _answer(score.expected),
        ", now ",
        _answer(score.answer),
    )
    question = _answer(score.probe.query.question)
    return *_picture(score), Quoted(scores.id), f", {scores.words(score)}; ", question, *said


def _base(base: str | None) -> Phrase:
    return () if base is None else (", base ", _answer(base))


def _picture(score: ProbeScore) -> Phrase:
    """Return the picture of a question; that of one that could not be asked may be what was wrong with it."""
    return score.probe.query.images[:1] if score.answer is not None else ()


def _unrelated(edits: Iterable[EditScores], kept: Sequence[bool]) -> Sentence:
    if not kept:
        asked = any(score.probe.is_locality for scores in edits for score in scores.scores)
        why = "No unrelated answer was generated" if asked else "No unrelated question was asked"
        return Sentence((f"{why}, so nothing is known about other answers.",))
    of = counted(len(kept), "unrelated answer")
    if all(kept):
        return Sentence((f"None of {of} changed.",))
    named = [
        _asked(scores, score)
        for scores in edits
        for score in scores.scores
        if score.probe.is_locality and score.holds is False
    ]
    return Sentence((f"{kept.count(False):,} of {of} changed:",), named, good=False)


def _drift(drift: Drift) -> Sentence:
    far = [(_answer(drift.questions[at]), f", {drift.seen[at]:.4f} nats") for at in drift.above]
    above = f"; {len(far):,} above the limit:" if far else "."
    return Sentence((f"Drift of {drift.summary}{above}",), far, good=not far)


def _basis(report: EvalReport) -> Sentence:
    made = report.reproduce
    words = ["Base ", Quoted(report.target.model.resolve().name)]
    if made:
        words += [f", headers {made['base']['headers'][:16]}, recipe ", Quoted(made["recipe"]["name"])]
    words += [", last changed ", Quoted(report.changed)] if report.changed else []
    return Sentence((*words, "."))


def _answer(text: str | None) -> Quoted:
    return Quoted("(not asked)" if text is None else text if text.strip() else "(nothing)")


def _end(named: Sequence[Phrase]) -> str:
    return ". Failures:" if named else "."
