"""The panel's instrument, on a tiny model: runs are made once, paired by edit, and refused edits count as failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.model.batches import Query
from support.tiny import tiny_llava

MODULES = ("panel", "panel_runs", "panel_show")
LORA = ("--variant", "lora", "--limit", "2")


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    monkeypatch.setenv("PANEL_FROZEN", "")
    import panel

    yield panel
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of one model, with two edits in each pool, the second of which is corrected by a third."""
    root = tmp_path_factory.mktemp("panel")
    suite = root / "suites" / "mistakes"
    (suite / "images").mkdir(parents=True)
    for colour in ("red", "blue", "green", "white"):
        Image.new("RGB", (31, 28), colour).save(suite / "images" / f"{colour}.png")
    edits = [edit("red", "7"), edit("blue", "fox"), edit("blue", "dog")]
    for name in ("eval", "calibration"):
        (suite / f"{name}.json").write_text(json.dumps(edits))
    anchors = [
        asked("white", "what is in the image ?"),
        asked("green", "what colour is it ?"),
        asked("red", "a photo ?"),
    ]
    (suite / "anchors.jsonl").write_text("\n".join(map(json.dumps, anchors)))
    tiny_llava(root / "tiny", text_layers=2)
    (root / "list").write_text(f"tiny {root / 'tiny'} {root / 'suites'} held-out words\n")
    return root


def edit(colour: str, target: str) -> dict[str, str]:
    picture, other = f"images/{colour}.png", "images/green.png"
    asked = {"src": "what is in the image ?", "rephrase": "what is it ?", "image": picture, "image_rephrase": other}
    unrelated = {
        "loc": "is it a dog ?",
        "loc_ans": "no",
        "m_loc": other,
        "m_loc_q": "what colour is it ?",
        "m_loc_a": "7",
    }
    return {"pred": "x", "alt": target, **asked, **unrelated}


def asked(colour: str, question: str) -> dict[str, str]:
    return {"image": f"images/{colour}.png", "question": question, "answer": "a dog"}


def call(panel, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["panel.py", *map(str, words)])
    try:
        panel.main()
    except SystemExit as stopped:
        if stopped.code:
            raise


def run(panel, monkeypatch: pytest.MonkeyPatch, panels: Path, out: Path, *words: object) -> list[dict]:
    call(panel, monkeypatch, "run", "--models", panels / "list", "--half", "held", "--out", out, *words)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_a_lora_at_equal_compute_is_tuned_on_other_edits(panel, panels, monkeypatch, tmp_path, capsys) -> None:
    """It follows from the loop's run, which is made too; then nothing is left to do."""
    out = tmp_path / "out.jsonl"
    runs = run(panel, monkeypatch, panels, out, *LORA)
    names = [
        ("default", "evaluation"),
        *((f"lora-{rate:g}", "calibration") for rate in panel.RATES),
        ("lora", "evaluation"),
    ]
    assert [(one["variant"], one["pool"]) for one in runs] == names
    loop, *tries, lora = runs
    price = sum(loop["cost"]) / 2
    assert lora["settings"]["epochs"] == lora["once"] / 2 == max(1, round(price))
    assert lora["settings"]["rate"] in panel.RATES
    assert {one["settings"]["epochs"] for one in tries} == {lora["settings"]["epochs"]}
    assert loop["ids"] == lora["ids"]
    assert len(loop["ids"]) == loop["n"] == 2
    assert {len(one["values"][label]) for one in runs for label in ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")} == {2}
    assert (loop["anchors"], loop["anchors_dropped"], lora["anchors"]) == (2, 1, 0), "one repeats a probe"
    assert len(run(panel, monkeypatch, panels, out, *LORA)) == len(runs), "finished runs are skipped"

    monkeypatch.setattr(panel, "code", lambda kind: "other code")
    assert len(run(panel, monkeypatch, panels, out, *LORA, "--any-code")) == len(runs)
    assert len(run(panel, monkeypatch, panels, out, "--variant", "default", "--limit", 2)) == len(runs) + 1
    capsys.readouterr()
    call(panel, monkeypatch, "show", "--limit", 2, "--against", "lora", "--out", out)
    said = capsys.readouterr()
    assert f"{len(runs)} of {len(runs) + 1} runs were made by other code" in said.err
    assert "### mistakes, held: minus `lora`, paired by edit" in said.out
    assert "nan" not in said.out


def test_an_edit_that_a_later_one_corrects_is_not_scored(panel, panels, monkeypatch, tmp_path) -> None:
    settings = "--variant", "base", "--set", "max_steps=1", "--name", "one step", "--limit", 3
    base, mine = run(panel, monkeypatch, panels, tmp_path / "out.jsonl", *settings)
    assert (mine["variant"], mine["settings"]["settings"]) == ("one step", ["max_steps=1"])
    assert mine["constants"]["max_steps"] == 1
    assert (mine["n"], len(mine["ids"]), len(mine["values"]["Rel"])) == (3, 2, 2)
    assert base["values"]["M-Loc"] == [1.0, 1.0]


def test_constants_are_not_chosen_on_the_held_out_half(panel, panels, monkeypatch, tmp_path) -> None:
    with pytest.raises(SystemExit, match="never chosen on"):
        run(panel, monkeypatch, panels, tmp_path / "out.jsonl", "--variant", "default", "--pool", "calibration")


def test_a_refused_edit_has_no_success(panel, tmp_path) -> None:
    from panel_runs import by_edit

    class An:
        def __init__(self, id: str) -> None:
            self.id = id

    def scored(id: str, kind) -> ProbeScore:
        return ProbeScore(Probe(id, kind, Query((), "?"), "x"), {"tf_exact": 1.0, "loc_expkl_answer": 0.9})

    scores = [scored(id, kind) for id in "ab" for kind in ("rel", "loc_text")]
    assert by_edit([An("a"), An("b")], scores, "rel.tf_exact", {"b"}) == [1.0, 0.0]
    assert by_edit([An("a"), An("b")], scores, "loc_text.loc_expkl_answer", {"b"}) == [0.9, 0.9]
    assert by_edit([An("a"), An("b")], scores, "gen_image.tf_exact", {"b"}) == [None, None]


def made(model: str, variant: str, values: list[float], ids: str, half: str = "dev") -> dict:
    return {
        **dict(model=model, half=half, stream="s", pool="evaluation", limit=100, variant=variant, seed=0),
        **dict(ids=list(ids), n=len(ids), cost=[2.0] * len(ids), once=4.0, seconds=[0.5] * len(ids)),
        "statuses": {"learnt": len(ids)},
        "values": {label: values for label in ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")},
    }


def test_differences_are_paired_by_edit_and_averaged_over_models(panel, monkeypatch, tmp_path, capsys) -> None:
    """Also in another order of the stream; a model that lacks one of the two variants counts in none."""
    monkeypatch.setattr(panel, "code", lambda kind: "")
    runs = [made("m", "x", [1, 0, 0.5, 1], "abcd"), made("m", "y", [1, 1, 0.5, 1], "dbca")]
    runs += [made("k", "x", [0, 0], "ab"), made("k", "y", [1, 0], "ab"), made("j", "y", [1, 0], "ab")]
    lines = [json.dumps(one | {"code": "", "settings": {"kind": "online"}}) for one in runs]
    (tmp_path / "runs").write_text("\n".join(lines))
    call(panel, monkeypatch, "show", "--against", "x", "--out", tmp_path / "runs")
    shown = capsys.readouterr().out
    means, paired, *models = shown.split("\n##")[1:]
    assert "| x | 2 | 3L | 31.2 " in means
    assert "| 3.5 | 0.50 |" in means
    assert "| y | 2 | +37.5 (" in paired
    assert "[+25 to +50]" in paired
    assert len(models) == 3
