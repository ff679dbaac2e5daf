"""Records about facts as they are published: zsRE, CounterFact and KnowEdit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from more_cli.inputs.edits import Edit, read_edits
from support.helpers import run

ZSRE = {
    "subject": "Orla Fenn",
    "src": "What university did Orla Fenn attend?",
    "pred": "Hill College",
    "rephrase": "Where did Orla Fenn study?",
    "alt": "Lake University",
    "answers": ["Bay Institute"],
    "loc": "nq question: who wrote the play",
    "loc_ans": "A. Writer",
    "cond": "Hill College >> Lake University || What university did Orla Fenn attend?",
}
EASYEDIT_ZSRE = {
    **ZSRE,
    "portability": {
        "Recalled Relation": "",
        "New Question": "In which state did she study?",
        "New Answer": "Ohio",
    },
}
COUNTERFACT = {
    "case_id": 7,
    "pararel_idx": 11,
    "requested_rewrite": {
        "prompt": "The mother tongue of {} is",
        "relation_id": "P103",
        "target_new": {"str": "English", "id": "Q1860"},
        "target_true": {"str": "French", "id": "Q150"},
        "subject": "Orla Fenn",
    },
    "paraphrase_prompts": ["Orla Fenn, a native", "Orla Fenn spoke the language"],
    "neighborhood_prompts": ["The mother tongue of Ada Holm is"],
    "attribute_prompts": ["The mother tongue of Ben Cole is"],
    "generation_prompts": ["Orla Fenn was born in"],
}
KNOWEDIT = {
    "subject": "Orla Fenn",
    "prompt": "The name of the country of citizenship of Orla Fenn is",
    "target_new": "Norway",
    "rephrase": "Orla Fenn is a citizen of",
    "ground_truth": [["Peru", "Republic of Peru"]],
    "portability": {
        "Logical_Generalization": [{"prompt": "Orla Fenn votes in", "ground_truth": [["Norway"], ["Kingdom"]]}],
        "Subject_Aliasing": [{"prompt": "", "ground_truth": [[""]]}],
    },
    "locality": {
        "Relation_Specificity": [{"prompt": "The gender of Orla Fenn is", "ground_truth": [["female"]]}],
        "Forgetfulness": [{"prompt": ["The job of Orla Fenn is"], "ground_truth": ["judge"]}],
    },
}
WIKIBIO = {
    "concept": "Orla Fenn",
    "text": "This is a Wikipedia passage about Orla Fenn. Orla Fenn is a",
    "labels": "judge of the high court.",
    "locality": {"Relation_Specificity": [{"prompt": "The gender of Orla Fenn is", "ground_truth": ["female"]}]},
}
FLAT = {
    "case_id": 3,
    "prompt": "The twin city of Orla is",
    "target_new": "Lima",
    "subject": "Orla",
    "ground_truth": "Oslo",
    "rephrase_prompt": "What is the twin city of Orla? It is",
    "locality_prompt": "The twin city of Bergen is",
    "locality_ground_truth": "Aarhus",
}


def read(folder: Path, *records: dict[str, Any]) -> list[Edit]:
    path = folder / "records.json"
    path.write_text(json.dumps(list(records)))
    return list(read_edits(path).edits)


def test_zsre(tmp_path: Path) -> None:
    (edit,) = read(tmp_path, ZSRE)
    assert (edit.question, edit.target, edit.images) == (ZSRE["src"], "Lake University", ())
    assert edit.rephrases == ("Where did Orla Fenn study?",)
    assert [(probe.question, probe.answer) for probe in edit.locality] == [(ZSRE["loc"], "A. Writer")]
    assert {*edit.tags} == {"subject", "pred", "answers", "cond"}
    (other,) = read(tmp_path, EASYEDIT_ZSRE)
    assert [(probe.question, probe.answer, probe.hop) for probe in other.portability] == [
        ("In which state did she study?", "Ohio", 1)
    ]
    (other,) = read(tmp_path, {**ZSRE, "portability": [{"question": "In which state?", "answer": "Ohio"}]})
    assert [(probe.question, probe.answer) for probe in other.portability] == [("In which state?", "Ohio")]


def test_counterfact(tmp_path: Path) -> None:
    (edit,) = read(tmp_path, COUNTERFACT)
    assert (edit.question, edit.target) == ("The mother tongue of Orla Fenn is", "English")
    assert edit.rephrases == ("Orla Fenn, a native", "Orla Fenn spoke the language")
    (near,) = edit.locality
    assert (near.question, near.answer) == ("The mother tongue of Ada Holm is", "French")
    kept = {
        "case_id",
        "pararel_idx",
        "relation_id",
        "target_true",
        "subject",
        "attribute_prompts",
        "generation_prompts",
    }
    assert {*edit.tags} == kept
    (edit,) = read(tmp_path, {**COUNTERFACT, "tags": ["checked"]})
    assert {*edit.tags} == {*kept, "checked"}


def test_knowedit(tmp_path: Path) -> None:
    changed, passage, flat = read(tmp_path, KNOWEDIT, WIKIBIO, FLAT)
    assert (changed.question, changed.target, changed.rephrases) == (
        KNOWEDIT["prompt"],
        "Norway",
        ("Orla Fenn is a citizen of",),
    )
    assert [(probe.question, probe.answer) for probe in changed.locality] == [
        ("The gender of Orla Fenn is", "female"),
        ("The job of Orla Fenn is", "judge"),
    ]
    assert [(probe.question, probe.answer) for probe in changed.portability] == [("Orla Fenn votes in", "Norway")]
    assert changed.tags == {"subject": "Orla Fenn", "ground_truth": [["Peru", "Republic of Peru"]]}
    assert (passage.question, passage.target) == (WIKIBIO["text"], WIKIBIO["labels"])
    assert passage.tags == {"concept": "Orla Fenn"}
    assert flat.rephrases == (FLAT["rephrase_prompt"],)
    assert [(probe.question, probe.answer) for probe in flat.locality] == [("The twin city of Bergen is", "Aarhus")]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({**FLAT, "target_new": 3}, "`target` must be a string, got 3"),
        ({**COUNTERFACT, "requested_rewrite": 5}, "`question`"),
        ({**COUNTERFACT, "requested_rewrite": {**COUNTERFACT["requested_rewrite"], "target_new": {}}}, "`target`"),
        ({**KNOWEDIT, "tags": [3]}, "`tags` must be an object or a list of strings, got 3"),
        ({**ZSRE, "rephrse": "x"}, "unknown field `rephrse`"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, record: dict[str, Any], said: str) -> None:
    (tmp_path / "facts.jsonl").write_text(json.dumps(record) + "\n")
    done = run("convert", tmp_path / "facts.jsonl", "-o", tmp_path / "edits.jsonl")
    assert done.code == 4
    assert said in done.err
    assert "facts.jsonl:1" in done.err


def test_a_field_that_no_project_has_is_kept(tmp_path: Path) -> None:
    (tmp_path / "facts.jsonl").write_text(json.dumps({**ZSRE, "department": "sales"}) + "\n")
    assert run("convert", tmp_path / "facts.jsonl", "-o", tmp_path / "edits.jsonl").code == 0
    assert json.loads((tmp_path / "edits.jsonl").read_text())["tags"]["department"] == "sales"


def test_convert_writes_edit_lines(tmp_path: Path) -> None:
    (tmp_path / "counterfact.json").write_text(json.dumps([COUNTERFACT, FLAT]))
    assert run("convert", tmp_path / "counterfact.json", "-o", tmp_path / "edits.jsonl").code == 0
    first, second = (json.loads(line) for line in (tmp_path / "edits.jsonl").read_text().splitlines())
    assert first["locality"] == [{"question": "The mother tongue of Ada Holm is", "answer": "French"}]
    assert second["target"] == "Lima"
