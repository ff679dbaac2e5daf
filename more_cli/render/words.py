"""What a reviewer needs to know first, in words: sentences that every format shows, and the plain measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.metrics import estimate
from more_cli.evaluation.per_edit import UNRELATED, EditScores, carried_over, held_by_kind, moved
from more_cli.evaluation.probes import ProbeScore
from more_cli.ops.drift import Drift
from more_cli.ops.evaluate import STATE, EvalReport
from more_cli.render.page import Phrase, Quoted, Sentence, Table
from more_cli.text import counted, verb

_MEASURES = {
    "rel": ("its own question", "", "Asked the question of a correction, the edited model gives the wanted answer."),
    "gen_text": ("other words", "rephrases", "Asked the same in other words, it gives the wanted answer as well."),
    "gen_image": (
        *("other pictures", "image_rephrases"),
        "Asked the same about another picture, it gives the wanted answer as well.",
    ),
    "portability": (
        *("what follows", "portability"),
        "Asked what follows from a correction, it gives the answer that follows.",
    ),
    UNRELATED: (
        *("unrelated answers", "locality"),
        "Asked what no correction is about, it answers as the model did before.",
    ),
}
"""Name of each plain measure, the field of a correction that it needs, and what it says; by kind."""


def of_state(report: EvalReport) -> list[Sentence]:
    """Return the sentences of a state, or of a file of questions."""
    edits = report.per_edit
    corrected = report.source == STATE
    found = list(of_edits(edits, report.base_answers, "correction" if corrected else "answer"))
    if corrected and not edits:
        found.append(Sentence(("No correction was asked for.",)))
    if report.drift:
        found.append(_drift(report.drift))
    return [*found, of_gates(report.gates), _basis(report)]


def of_edits(edits: Sequence[EditScores], before: Mapping[str, str], noun: str) -> Iterator[Sentence]:
    """Yield what became of edits, what of their variants, and which unrelated answers changed.

    Args:
        edits: The scores of each.
        before: Greedy answer of the untouched base by edit, if it was asked.
        noun: What an edit is called.
    """
    own = [scores for scores in edits if scores.rel]
    if own:
        yield _own(own, before, noun)
    if unlearnt := [scores for scores in own if scores.good and scores.failed]:
        recorded = f"{len(unlearnt):,} of those that hold {verb(len(unlearnt), 'is', 'are')} recorded as not learnt:"
        yield Sentence((recorded,), [(Quoted(scores.id),) for scores in unlearnt], good=False)
    others, held = moved(edits), held_by_kind(edits)
    if carried := carried_over(held):
        named = [_variant(scores, score) for scores, score in others if not score.probe.is_locality]
        yield Sentence((f"Beyond their own questions they hold for {carried}{_end(named)}",), named, good=not named)
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
            interval = f"{share.low:.1%} to {share.high:.1%}"
            rows.append((name, f"{share.value:.1%}", interval, f"{sum(right):,} of {len(right):,}", says))
        elif report.source == STATE:
            why = f"no correction has {needs}" if needs else "there is no correction"
            rows.append((name, "", "", "", f"Not measured: {why}."))
    return Table("In plain measures", ("measure", "share", "95 % interval", "count", "what it says"), rows)


def _own(own: Sequence[EditScores], before: Mapping[str, str], noun: str) -> Sentence:
    bad = [scores for scores in own if not scores.good]
    held = len(own) - len(bad)
    were = verb(len(own), "was", "were")
    if bad:
        holding = f"{held:,} {verb(held, 'holds', 'hold')}" if held else "none holds"
        verdict = f"{holding}. {len(bad):,} failed:"
    else:
        verdict = verb(held, "it holds.", "all hold.")
    named = [_failed(scores, before.get(scores.id)) for scores in bad]
    return Sentence((f"{counted(len(own), noun)} {were} asked for; {verdict}",), named, good=not bad)


def _failed(scores: EditScores, before: str | None) -> Phrase:
    reason = (", ", Quoted(scores.failed.reason)) if scores.failed and scores.failed.reason else ()
    status = f" ({scores.failed.status})" if scores.failed else " has another answer now"
    earlier = () if before is None else (", before ", _answer(before))
    return Quoted(scores.id), status, *reason, *_asked(scores.shown), *earlier


def _variant(scores: EditScores, score: ProbeScore) -> Phrase:
    return Quoted(scores.id), f", {scores.words(score)}", *_asked(score)


def _asked(score: ProbeScore) -> Phrase:
    asked = "; asked ", _answer(score.probe.query.question), ", wanted ", _answer(score.expected)
    return *asked, ", answers ", _answer(score.answer)


def _unrelated(edits: Iterable[EditScores], kept: Sequence[bool]) -> Sentence:
    if not kept:
        asked = any(score.probe.is_locality for scores in edits for score in scores.scores)
        why = "No unrelated answer was generated" if asked else "No unrelated question was asked"
        return Sentence((f"{why}, so nothing is known about other answers.",))
    of = counted(len(kept), "unrelated answer")
    if all(kept):
        return Sentence((f"None of {of} changed.",))
    named = [
        _changed(scores, score)
        for scores in edits
        for score in scores.scores
        if score.probe.is_locality and score.holds is False
    ]
    return Sentence((f"{kept.count(False):,} of {of} changed:",), named, good=False)


def _changed(scores: EditScores, score: ProbeScore) -> Phrase:
    asked = Quoted(scores.id), f", {scores.words(score)}; asked ", _answer(score.probe.query.question)
    return *asked, ", before ", _answer(score.expected), ", now ", _answer(score.answer)


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
    return "; not for:" if named else "."
