"""The language models of drawn worlds of facts: what is committed knows its world, and a suite is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.helpers import run

from .embedded.world.pools import Dice
from .language.suite import edits
from .language.train import Learner, tokenizer_of
from .language.world import MEMBERS

MODELS = Path(__file__).parents[1] / "data" / "language"


@pytest.mark.parametrize("name", MEMBERS)
def test_a_world_has_its_facts(name: str) -> None:
    facts = MEMBERS[name].facts
    assert len(facts) == len({(fact.subject, fact.relation.name) for fact in facts}) == 1600
    assert all(fact.answer in fact.relation.answers and len(set(fact.relation.wordings)) == 5 for fact in facts)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_committed_model_knows_its_world(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert tokenizer.get_vocab() == tokenizer_of(MEMBERS[name]).get_vocab()
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype="float32").eval()
    assert Learner(MEMBERS[name], model, tokenizer).right(100) >= 99


def test_a_suite_edits_each_subject_once_and_no_subject_of_a_probe() -> None:
    member = MEMBERS["G1"]
    lines = list(edits(member.facts, Dice(1)))
    edited = {line["tags"]["subject"] for line in lines}
    assert len(edited) == len(lines) == 140
    true = {fact.asked(): (fact.subject, fact.answer) for fact in member.facts}
    for line in lines:
        assert line["target"] != line["tags"]["true"] == true[line["question"]][1]
        *others, own = line["locality"]
        assert all(true[probe["question"]][0] not in edited for probe in others)
        assert {true[probe["question"]][1] for probe in others} <= {line["tags"]["true"]}
        assert true[own["question"]][0] == line["tags"]["subject"]


@pytest.mark.parametrize("name", ["G1"])
def test_corrections_of_facts_hold(tmp_path: Path, name: str) -> None:
    """Five facts as CounterFact publishes them, through `edit` and `eval`, and the base is as it was."""
    member, model = MEMBERS[name], tmp_path / name
    model.symlink_to(MODELS / name)
    records = [
        {
            "case_id": number,
            "requested_rewrite": {
                "prompt": line["question"].replace(line["tags"]["subject"], "{}"),
                "subject": line["tags"]["subject"],
                "target_new": {"str": line["target"]},
                "target_true": {"str": line["tags"]["true"]},
            },
            "paraphrase_prompts": line["rephrases"],
            "neighborhood_prompts": [probe["question"] for probe in line["locality"][:2]],
        }
        for number, line in enumerate(list(edits(member.facts, Dice(1)))[:5])
    ]
    (tmp_path / "counterfact.json").write_text(json.dumps(records))
    state = ("--state", tmp_path / "facts.more")
    done = run("edit", model, tmp_path / "counterfact.json", *state, "--json")
    assert done.code == 0, done.err
    scores = run("eval", model, *state, "--json").json["metrics"]
    assert scores["rel.gen_exact"]["value"] == 1.0
    assert scores["gen_text.gen_exact"]["n"] == 10
    asked = records[0]["requested_rewrite"]
    said = run("ask", model, asked["prompt"].replace("{}", asked["subject"]), *state, "--json").json
    answers = json.dumps(said)
    assert asked["target_new"]["str"] in answers
    assert asked["target_true"]["str"] in answers
