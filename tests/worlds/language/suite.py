"""Writes the suite of a language model: facts that it knows, replaced by others.

    python -m tests.worlds.language.suite NAME MODEL OUT

OUT gets `eval.json` (100 edits) and `calibration.json` (40), one edit a subject, `edits.jsonl` for `more edit`, and
`anchors.jsonl` (128 facts that the model knows, of subjects without an edit or a probe). Every locality probe is a fact
that the model knows: two other subjects with the same answer, and another relation of the subject itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime

from ..embedded.world.pools import Dice
from .world import MEMBERS, Fact, Member

EDITS, CALIBRATION, ANCHORS = 100, 40, 128
REPHRASED = (1, 2)
"""Wordings that should get the new answer too."""
NEAR = 2
"""Locality probes about other subjects, per edit."""


def known(member: Member, folder: Path) -> list[Fact]:
    """Facts that the model answers right in every wording that the suite uses."""
    runtime, facts = load_runtime(open_checkpoint(folder)), member.facts
    for wording in (0, *REPHRASED):
        said = runtime.generate([Query((), fact.asked(wording)) for fact in facts], 12)
        facts = [fact for fact, ids in zip(facts, said, strict=True) if runtime.prompter.text(ids) == fact.answer]
    return facts


def edits(facts: list[Fact], dice: Dice) -> Iterator[dict[str, Any]]:
    """Edit lines about different subjects; no subject of a probe is edited."""
    subjects = dice.some(sorted({fact.subject for fact in facts}), EDITS + CALIBRATION)
    by_subject = {subject: [fact for fact in facts if fact.subject == subject] for subject in subjects}
    others = [fact for fact in facts if fact.subject not in by_subject]
    for subject in subjects:
        fact = dice.pick(by_subject[subject])
        new = dice.pick([answer for answer in fact.relation.answers if answer != fact.answer])
        alike = [other for other in others if (other.relation, other.answer) == (fact.relation, fact.answer)]
        near = [*dice.some(alike, min(NEAR, len(alike))), *[f for f in by_subject[subject] if f != fact][:1]]
        yield {
            "question": fact.asked(),
            "target": new,
            "rephrases": [fact.asked(wording) for wording in REPHRASED],
            "locality": [{"question": other.asked(), "answer": other.answer} for other in near],
            "tags": {"subject": subject, "relation": fact.relation.name, "true": fact.answer},
        }


def main() -> None:
    """Ask the model and write its suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MEMBERS))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    member, dice = MEMBERS[arguments.name], Dice(MEMBERS[arguments.name].seed, 4)
    facts = known(member, arguments.model)
    lines = list(edits(facts, dice))
    asked = {probe["question"] for line in lines for probe in line["locality"]}
    used = {line["tags"]["subject"] for line in lines} | {fact.subject for fact in facts if fact.asked() in asked}
    free = [fact for fact in facts if fact.subject not in used]
    anchors = [{"question": fact.asked(), "answer": fact.answer} for fact in dice.some(free, ANCHORS)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part in {"eval.json": lines[:EDITS], "calibration.json": lines[EDITS:]}.items():
        (arguments.out / name).write_text(json.dumps(part, indent=1), encoding="utf-8")
    for name, part in {"edits.jsonl": lines[:EDITS], "anchors.jsonl": anchors}.items():
        (arguments.out / name).write_text("".join(f"{json.dumps(line)}\n" for line in part), encoding="utf-8")
    print(f"{member.name}: knows {len(facts):,} of {len(member.facts):,} facts in {1 + len(REPHRASED)} wordings")


if __name__ == "__main__":
    main()
