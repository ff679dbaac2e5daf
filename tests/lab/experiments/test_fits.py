"""Editors that are fitted before their first edit: fitted once, cached by what decides the fit, and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import FitData
from more_cli.editors.registry import EDITORS, EditorEntry
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import find_backbone, text_layers
from more_lab.editors.batched import Batched
from more_lab.editors.modules import ffn_outs
from more_lab.editors.weights import WeightEditor
from more_lab.editors.work import Work
from more_lab.experiments import fits
from support.helpers import Result, run


class Stopped(Exception):
    """Stands for a signal."""


class FittedEditor(WeightEditor):
    """Takes one step of the size that its fit says."""

    name: ClassVar[str] = "fitted"
    capabilities = frozenset({"fit"})
    seen: ClassVar[list[int]] = []
    learns: ClassVar[bool] = True
    stop: ClassVar[Callable[[FitData], None]] = staticmethod(lambda data: None)

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.zeros(())

    def constants(self) -> dict[str, Any]:
        return {"learns": self.learns}

    def modules(self, runtime: Runtime) -> list[str]:
        backbone = find_backbone(runtime.model)
        return ffn_outs(runtime.model, backbone, text_layers(runtime.model, backbone)[-1:])

    def fit(self, data: FitData) -> dict[str, Any]:
        self.seen.append(len(data.edits))
        self.stop(data)
        self.rate = torch.tensor(3.0 if self.learns else 0.0)
        return {"rate": float(self.rate)}

    def fitted(self) -> dict[str, Tensor]:
        return {"rate": self.rate}

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        self.rate = tensors["rate"]

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        (delta,) = self.deltas.values()
        for _ in range(12):
            scored = self.runtime.score(self.runtime.batch(asked), record=True)
            if bool(scored.all_right()):
                break
            self.runtime.backward(scored.nll().mean())
            delta.value = delta.value - self.rate * torch.einsum("nto,nti->oi", delta.gradients, delta.inputs)
            work.both()
            work.writes += 1


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EDITORS, "fitted", EditorEntry("fitted", lambda options: FittedEditor()))
    monkeypatch.setattr(FittedEditor, "seen", [])
    monkeypatch.setattr(fits, "HELD_OUT", 3)


def evaluated(cache: Path, *options: object, editor: str = "fitted") -> Result:
    where = "--suite", "e-vqa", "--limit", 2, "--cache", cache, "--editor", editor
    return run("run", demo_model_dir(), *where, *options)


def test_a_fit_is_done_once_on_the_calibration_pool(tmp_path: Path) -> None:
    done = evaluated(tmp_path, "--json")
    assert done.code == 0, done.err
    fit = done.json["fit"]
    assert FittedEditor.seen == [fit["records"]]
    assert fit["records"] > 100
    assert (fit["held_out"], fit["undertrained"], fit["facts"]) == (3, False, {"rate": 3.0})
    assert fit["key"] == done.json["reproduce"]["fit"]
    assert evaluated(tmp_path, "--json").json["fit"] == fit
    assert evaluated(tmp_path, "--limit", 1).code == 0
    assert len(FittedEditor.seen) == 1, "another run, the same fit"
    assert evaluated(tmp_path, "--again").code == 0
    assert len(FittedEditor.seen) == 2


def test_an_editor_that_learns_too_little_alone_is_called_undertrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FittedEditor, "learns", False)
    done = evaluated(tmp_path)
    assert done.code == 0, done.err
    said = "fitted: undertrained: it learns 0 of 3 held-out edits, each alone; its scores say little about the method"
    assert said in done.out
    assert evaluated(tmp_path, "--json").json["fit"]["undertrained"] is True
    page = tmp_path / "page.md"
    compared = run(
        *("compare", "none", "fitted", "--suite", "e-vqa", "--limit", 2, "--cache", tmp_path),
        *("--model", demo_model_dir(), "--report", page),
    )
    assert compared.code == 0, compared.err
    assert said in compared.out
    assert "undertrained: it learns 0 of 3 held-out edits" in page.read_text(encoding="utf-8")


def test_an_editor_that_postpones_its_writes_is_checked_after_them(tmp_path: Path) -> None:
    """Here in a batch: what waits for others is written before it is counted."""
    made = EditorEntry("waits", lambda options: Batched(FittedEditor()))
    EDITORS["waits"] = made
    try:
        done = evaluated(tmp_path, "--protocol", "final", "--json", editor="waits")
    finally:
        del EDITORS["waits"]
    assert done.code == 0, done.err
    assert (done.json["fit"]["right"], done.json["fit"]["held_out"]) == (3, 3)


def test_what_the_base_lacks_is_named_instead_of_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out edits are there to find that out, and are none of those that an editor is fitted on."""
    given = list[FitData]()
    monkeypatch.setattr(FittedEditor, "learns", False)
    monkeypatch.setattr(FittedEditor, "fit", lambda self, data: given.append(data) or {"obstacle": "the base is deaf"})
    compared = run(
        "compare", "none", "fitted", "--suite", "e-vqa", "--limit", 2, "--cache", tmp_path, "--model", demo_model_dir()
    )
    assert compared.code == 0, compared.err
    said = "fitted: the base is deaf; its scores say little about the method"
    assert said in compared.out
    done = evaluated(tmp_path)
    assert said in done.out
    assert "undertrained" not in compared.err + done.out + done.err
    (data,) = given
    assert len(data.held_out) == 3
    assert not {edit.id for edit in data.held_out} & {edit.id for edit in data.edits}


def test_an_interrupted_fit_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "SAVE_SECONDS", 0.0)

    def dies(data: FitData) -> None:
        assert data.load() is None
        data.save(lambda: {"half": torch.ones(2)})
        raise Stopped

    def goes_on(data: FitData) -> None:
        saved = data.load()
        assert saved is not None
        assert saved["half"].tolist() == [1.0, 1.0]

    monkeypatch.setattr(FittedEditor, "stop", staticmethod(dies))
    with pytest.raises(Stopped):
        evaluated(tmp_path)
    monkeypatch.setattr(FittedEditor, "stop", staticmethod(goes_on))
    assert evaluated(tmp_path).code == 0
    assert [path.name for path in (tmp_path / "fits").rglob("*.safetensors")] == ["fitted.safetensors"]


def test_a_damaged_fit_is_made_again(tmp_path: Path) -> None:
    assert evaluated(tmp_path).code == 0
    (file,) = (tmp_path / "fits").rglob("*.safetensors")
    file.write_bytes(b"damaged")
    assert evaluated(tmp_path, "--limit", 1).code == 0
    assert len(FittedEditor.seen) == 2


def test_a_suite_without_a_pool_to_fit_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edits.jsonl").write_text('{"question": "why ?", "target": "a"}\n')
    done = run("run", demo_model_dir(), "--suite", tmp_path / "edits.jsonl", "--editor", "fitted", "--cache", tmp_path)
    assert done.code == 2
    assert "has 0 calibration edits, and editor `fitted` is fitted on those after the first" in done.err
