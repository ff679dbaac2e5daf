"""Joint writing: edits are scored and written together, in rounds, until all of them hold.

`JointWrites.write_again` writes past edits that fail (consolidation), `JointWrites.write` a batch of new ones, and
`JointWrites.write_anew` all edits from B = 0 (compaction). Not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.more.loop import learn, outcome_of
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.sites import Snapshot
from more_cli.editors.more.unfinished import NOWHERE, KeptRest, KeptRounds, KeptScore, Unfinished
from more_cli.editors.more.watch import Watch, Watched
from more_cli.editors.outcome import EditScore
from more_cli.editors.past import LastScore, Past
from more_cli.progress import Progress, no_progress

FEW = 1 / 3
"""Largest share of a batch that is written one by one after the joint writes; if more is left, the joint writes are
undone. On three small models a share of a quarter did no harm. Of corrections about new objects most are left, and
fewer of them are learnt if the joint writes stay."""
SIZE = 16
"""Number of edits in one write."""
SWEEP = 3
"""Rounds of joint writes after which all edits are scored, not only those that were written."""
EARLY, MOST = 6, 0.9
"""Joint writes of more edits than one write takes end after this many rounds of whole steps if more than this share
still fails. On a weak small model all failed after 6 rounds and 79 % after 16; on two models where at most 15 % failed
in the end, 77 and 70 % did after 6."""
ANEW = 0.5
"""Largest share of a step that is written when all edits are written anew. On three small models with 1,000 edits it
kept answers without a picture at 97 % or more, where whole steps fell to 92 % on one; it costs a third more."""
TOO_FEW = "fewer edits are right than before"
HARM = "it moved a watched anchor too far"


def admit(request: EditRequest, passes: Passes) -> EditOutcome:
    """Score one edit, without a write: `JointWrites.write` writes it together with others."""
    new = passes.context.number
    passes.model.encoded.put(new, request)
    passes.scores = passes.score([new])
    return outcome_of(passes, passes.scores[new], passes.scores[new])


def consolidate(
    numbers: Iterable[int],
    passes: Passes,
    scores: Mapping[int, EditScore] | None = None,
    watch: Watch | None = None,
    progress: Progress = no_progress,
    unfinished: Unfinished = NOWHERE,
) -> tuple[list[int], bool]:
    """Write these edits together where they fail, round by round, until all hold by the margin of joint writing.

    A round writes the edits that failed when each was scored last: its own write scores it, and every `SWEEP` rounds,
    or when none seems to fail, all are scored. O(T), meant for the end of a stream. It gives up early where nearly all
    edits go on failing. An anchor that `watch` finds moved too far takes part in every write from then on. Where one is
    too far still, the least sure edits are written with it: in rounds in which none fails, and in up to `SWEEP` rounds
    after the last. `scores` are those of the model as it is, if they are known. It goes on where an `unfinished` one
    ended. Returns the edits that do not hold by the margin of a single edit, and whether an anchor is too far.
    """
    rules = passes.recipe.joint
    numbers, passes.margin = list(numbers), rules.margin
    least = MOST * len(numbers) if len(numbers) > SIZE else len(numbers)
    early = EARLY / passes.attempt.max_step
    edits = _Standing(numbers, passes, watch)
    first = edits.resume(unfinished)
    if not edits.scores:
        edits.scores = dict(scores or passes.score(numbers))
    for round in range(first, rules.rounds + SWEEP):
        mending = round >= rules.rounds
        if not edits.left:
            if mending or not edits.failing() or round % SWEEP == 0:
                edits.score_all()
            failing = edits.failing()
            if (not edits.harmed and (mending or not failing)) or (round == early and len(failing) > least):
                break
            edits.left = edits.least_sure()[: SWEEP * SIZE] if mending or not failing else failing
        while edits.left:
            unfinished.keep(passes, partial(edits.kept, round))
            progress(len(numbers) - len(edits.left), len(numbers), f"writing edits together, round {round + 1}")
            edits.write_next()
    passes.margin = passes.recipe.margin
    edits.score_all()
    passes.scores = edits.scores
    return passes.failing(), edits.harmed


@dataclass
class _Standing:
    """How edits that are written together stand, as far as it is known."""

    numbers: Sequence[int]
    passes: Passes
    watch: Watch | None
    scores: dict[int, EditScore] = field(default_factory=dict)
    """The last score of each."""
    current: bool = True
    """Whether these are of the model as it is: nothing was written since."""
    harmed: bool = False
    """Whether a watched anchor was too far when all edits were scored last."""
    left: list[int] = field(default_factory=list)
    """Those that the round has still to write."""

    def least_sure(self) -> list[int]:
        """Return all edits, the least sure first."""
        return sorted(self.scores, key=lambda number: self.scores[number].margin)

    def failing(self) -> list[int]:
        """Return the edits that do not hold, the least sure first."""
        return [number for number in self.least_sure() if not self.passes.holds(self.scores[number])]

    def score_all(self) -> None:
        """Score all edits and the watched anchors, and train on anchors that were moved too far from now on.

        Nothing is scored if nothing was written since it was.
        """
        if self.current:
            return
        self.scores, self.current = self.passes.score(self.numbers), True
        if self.watch:
            self.harmed = self.watch.harm()
            if self.harmed:
                self.passes.attempt.train_on(moved.anchor for moved in self.watch.harmed)

    def write_next(self) -> None:
        """Write the next `SIZE` of those that are left, which scores these."""
        chosen, self.left = self.left[:SIZE], self.left[SIZE:]
        self.passes.write(chosen, self.passes.steps(chosen, rescore=True))
        self.scores, self.current = self.scores | self.passes.scores, False

    def kept(self, round: int) -> KeptRounds:
        """Return what the rest of this round and later rounds depend on, beside the sites and the last steps."""
        passes, watched = self.passes, self.watch.watched.anchors if self.watch else {}
        places = {id(anchor): place for place, anchor in watched.items()}
        return KeptRounds(
            records=passes.model.sites.records,
            tally=passes.tally,
            round=round,
            scores=[KeptScore.of(number, score) for number, score in self.scores.items()],
            current=self.current,
            harmed=self.harmed,
            left=self.left,
            trained_on=[places[id(anchor)] for anchor in passes.attempt.harmed],
            before=self.watch.before if self.watch else {},
            next_step=passes.attempt.next_step,
            last=list(passes.last.edits),
            slopes={name: step.slope for name, step in passes.last.steps.items()},
        )

    def resume(self, unfinished: Unfinished) -> int:
        """Go on where rounds ended that were kept, and return the number of the last one; 0 if none were."""
        kept = unfinished.resume(KeptRounds, self.passes)
        if kept is None:
            return 0
        self.scores, self.current, self.harmed = kept.edit_scores(), kept.current, kept.harmed
        self.left = kept.left
        if self.watch:
            self.watch.before = kept.before
            anchors = self.watch.watched.anchors
            self.passes.attempt.train_on(anchors[place] for place in kept.trained_on if place in anchors)
        return kept.round


@dataclass
class JointWrites:
    """Past edits that are written together."""

    numbers: Sequence[int]
    new: Sequence[int]
    """Those of them that were only admitted: P does not know their keys yet."""
    passes: Passes
    passes_of: Callable[[EditRequest, EditContext], Passes]
    """Returns the passes of one edit."""
    progress: Progress
    watched: Watched | None = None
    unfinished: Unfinished = NOWHERE
    """Where what was written so far is kept."""
    rounds: tuple[list[int], bool] = field(init=False)
    """What did not hold after the joint writes, and whether a watched anchor was too far."""
    drifts: dict[int, float] = field(init=False, default_factory=dict)
    """How far each watched anchor has moved, nats per token, by place; empty where that was not scored at the end."""

    def write(self) -> list[int]:
        """Write the edits together, and return those that do not hold.

        New edits that do not hold then are written one by one. If these are more than `FEW` of the new edits, or a
        watched anchor was moved too far, all writes are undone first, so the result is that of a stream.
        """
        passes, new = self.passes, self.new
        start, past = passes.model.sites.snapshot(), passes.context.past
        self._absorb_new()
        failing, harmed = self._together(start)
        left = [number for number in failing if number in new]
        if not left and not harmed:
            return failing
        known = len(left) <= FEW * len(new) and not harmed
        if known:
            past = past.updated(passes.tally.margins, left[0])
        else:
            self._undo(start)
            left = list(new)
        return self._one_by_one(left, past, known=known)

    def write_again(self) -> tuple[list[int], str]:
        """Write together those of the edits that fail; undo that if a watched anchor was moved too far.

        Returns the edits that do not hold, and why it was undone, or "".
        """
        start = self.passes.model.sites.snapshot()
        failing, harmed = self._together(start)
        if harmed:
            self._undo(start)
            failing = self._failing()
        return failing, HARM if harmed else ""

    def write_anew(self, start_over: Callable[[], Watched | None]) -> tuple[list[int], str]:
        """Write the edits together from B = 0, as if all had come at once; undo that if it does harm.

        That is, if fewer edits are right than before, or more watched anchors are beyond the budget. `start_over` takes
        out what was written, leaves only the anchors' keys in P, and returns the watched anchors. O(T). Returns the
        edits that do not hold, and why it was undone, or "".
        """
        passes = self.passes
        self._absorb_new()
        self._failing()
        passes.attempt.limit(ANEW)
        written, failed = passes.model.sites.snapshot(), self._wrong()
        self.watched, self.new = start_over(), self.numbers
        scores = self._absorb_new()
        failing, harmed = self._together(written, scores)
        if 0 < len(failing) <= FEW * len(self.numbers) and not harmed:
            past = passes.context.past.updated(passes.tally.margins, failing[0])
            failing = self._one_by_one(failing, past, known=True)
        undone = HARM if harmed else TOO_FEW if self._wrong() > failed else ""
        if undone:
            self._undo(written)
            failing = self._failing()
        return failing, undone

    def _together(self, before: Snapshot, scores: Mapping[int, EditScore] | None = None) -> tuple[list[int], bool]:
        """Write the edits together; return those that do not hold, and whether a watched anchor was moved too far.

        Too far is meant from where it was `before`.
        """
        passes, watched = self.passes, self.watched
        passes.attempt.start = before
        if kept := self.unfinished.resume(KeptRest, passes):
            self.rounds = kept.failing, kept.harmed
            return self.rounds
        watch = Watch(watched, passes, list(watched.anchors), joint=True) if watched else None
        self.rounds = consolidate(self.numbers, passes, scores, watch, self.progress, self.unfinished)
        self.drifts = watch.drifts if watch else {}
        return self.rounds

    def _undo(self, start: Snapshot) -> None:
        self.passes.model.sites.restore(start)
        self.drifts = {}

    def _absorb_new(self) -> dict[int, EditScore]:
        """Let P absorb the keys of the new edits, and return their scores."""
        sites, scores = self.passes.model.sites, dict[int, EditScore]()
        for done, number in enumerate(self.new):
            self.progress(done, len(self.new), "absorbing the keys of edits")
            scores |= self.passes.score([number], record=True)  # alone, and before any write, as in `learn`
            sites.absorb(sites.keys(self.passes.batch([number])))
        return scores

    def _one_by_one(self, left: Sequence[int], past: Past, *, known: bool) -> list[int]:
        """Write the edits that are `left` one by one, and return which of all edits do not hold."""
        context, memory, first = self.passes.context, dict(past.without(left)), 0
        self.drifts = {}
        if kept := self.unfinished.resume(KeptRest, self.passes):
            memory, first = kept.memory, kept.done
        for done, number in enumerate(left[first:], first):
            self.progress(done, len(left), "writing the rest one by one")
            self.unfinished.keep(self.passes, partial(self._kept, done, memory))
            request = context.recall(number)
            one = self.passes_of(request, replace(context, number=number, past=Past.of(memory)))
            outcome = learn(request, one, self.watched, known=known)
            if outcome.status != "refused":
                memory[number] = LastScore(0.0, number)
            memory |= {seen: LastScore(margin, number) for seen, margin in outcome.margins.items() if seen in memory}
            self.passes.tally.add(one.tally)
        return self._failing()

    def _kept(self, done: int, memory: Mapping[int, LastScore]) -> KeptRest:
        """Return what the edits that are left depend on, once `done` were written one by one."""
        passes, (failing, harmed) = self.passes, self.rounds
        records = passes.model.sites.records
        return KeptRest(records=records, tally=passes.tally, failing=failing, harmed=harmed, done=done, memory=memory)

    def _wrong(self) -> int:
        """Return how many edits were wrong when all were scored last."""
        return sum(not score.right for score in self.passes.scores.values())

    def _failing(self) -> list[int]:
        """Score all edits, and return those that do not hold by the margin of a single edit."""
        self.passes.scores = self.passes.score(self.numbers)
        return self.passes.failing()
