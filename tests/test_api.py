"""The Python interface: the same results, files and errors as the commands, nothing printed, one model loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import more_cli
from more_cli import errors, open_model
from more_cli.api import Model
from more_cli.ops import ask, init, session
from more_cli.store.lock import writer_lock
from support.helpers import LEARNING, QUESTION, World, assert_same_state, line, run, tree

SETTINGS = LEARNING[1::2]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path, text_layers=1)


@pytest.fixture(autouse=True)
def _nothing_is_printed(world: World, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    capfd.readouterr()
    yield
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every load of a model, wherever it happens."""
    calls: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return load(*args, **kwargs)

    load = ask.load_runtime
    for module in (ask, init, session):
        monkeypatch.setattr(module, "load_runtime", counted)
    return calls


def test_a_day(world: World, loads: list[Any]) -> None:
    lines = [line(0, image=Path("img/red.png")), line(1, image=b"img/green.png")]
    with open_model(world.model, settings=SETTINGS) as model:
        assert model.state.state is None, "a plan"
        before = model.ask(QUESTION, "img/red.png")
        assert before.edited is None
        edited = model.edit(lines, anchors=False)
        assert [row["status"] for row in edited] == ["learnt", "learnt"]
        assert edited.report.failed == []
        after = model.ask(QUESTION, Path("img/red.png"))
        assert (after.edited, after.base) == ("r", before.base)
        scores = model.evaluate(gates=["rel.gen_exact>=0.5", "rel.gen_exact<0.1"], ask_base=True)
        assert [(row["edit"], row["kind"], row["answer"], row["holds"]) for row in scores] == [
            ("e1", "rel", "r", True), ("e2", "rel", "g", True)
        ]  # fmt: skip
        assert scores.report.estimates["rel.gen_exact"].value == 1
        assert [gate.met for gate in scores.report.gates] == [True, False]
        assert model.revert("e2").plan.gone == ["e2"]
        assert [(row["id"], row["kind"], row["status"]) for row in model.log()] == [
            ("e1", "edit", "learnt"), ("e2", "edit", "reverted"), ("revert-3", "revert", "reverted"),
        ]  # fmt: skip
        assert [row["id"] for row in model.log("e*", limit=1)] == ["e2"]
        assert model.state.asked == 1
        assert len(loads) == 1, "by all of these together"
        assert model.merge("merged").edits == model.export("adapter").edits == 1
        assert model.ask(QUESTION, "img/red.png", merged="merged").merged == "r"
    assert model._runtime is None


def test_a_file_gives_the_bytes_of_the_command(world: World) -> None:
    with open_model(world.model, settings=SETTINGS) as model:
        assert len(model.edit(world.edits(2), anchors=False)) == 2
        assert len(model.edit("edits.jsonl")) == 0, "applied already"
    assert world.edit(*LEARNING, "--state", "other.more").code == 0
    assert_same_state(world.sidecar, world.root / "other.more")


def test_another_process_may_edit_between_two_calls(world: World) -> None:
    world.edits(2)
    with open_model(world.model) as model:
        model.edit([line(0)], anchors=False)
        assert world.edit().code in (0, 3)
        assert [row["id"] for row in model.log()] == ["e1", "e2"]
        with writer_lock(world.folder / "lock"), pytest.raises(errors.StateError, match="in use by process"):
            model.edit([line(2)])


def test_threads_take_turns(world: World) -> None:
    with open_model(world.model, settings=SETTINGS) as model, ThreadPoolExecutor(4) as pool:
        model.edit([line(0)], anchors=False)
        assert {said.edited for said in pool.map(model.ask, [QUESTION] * 8, ["img/red.png"] * 8)} == {"r"}
        edited = pool.map(lambda number: model.edit([line(number)], anchors=False), (1, 2))
        assert sorted(row["id"] for table in edited for row in table) == ["e2", "e3"]
        with model.asking() as asker:
            alone = asker.ask(QUESTION, "img/red.png")
            assert set(map(repr, pool.map(asker.ask, [QUESTION] * 8, ["img/red.png"] * 8))) == {repr(alone)}


def test_a_block_of_questions_has_the_model_for_itself_and_ends(world: World) -> None:
    with open_model(world.model, settings=SETTINGS) as model:
        model.edit([line(0)], anchors=False)
        with model.asking() as asker:
            for act in (lambda: model.edit([line(1)]), lambda: model.ask(QUESTION), model.evaluate):
                with pytest.raises(errors.UsageError, match="in use by `with"):
                    act()
            assert asker.ask(QUESTION, "img/red.png").edited == "r"
        with pytest.raises(errors.UsageError, match="has ended"):
            asker.ask(QUESTION, "img/red.png")  # without its edits it answered as the base does
        assert model.ask(QUESTION, "img/red.png").edited == "r"


def test_questions_are_asked_as_a_state_says_that_appears(world: World, loads: list[Any]) -> None:
    with open_model(world.model) as model:
        model.ask("what ?")
        assert run("init", world.model, "--set", "system=be brief").code == 0
        model.ask("what ?")
        assert model._runtime is not None
        assert (model._runtime.prompter.system, len(loads)) == ("be brief", 2)


def test_a_dry_run_writes_nothing_and_loads_nothing(world: World, loads: list[Any]) -> None:
    before = tree(world.root)
    assert open_model("model").edit([line(0)], dry_run=True).report.total == 1
    assert (tree(world.root), loads) == (before, [])


def test_a_dtype_and_a_device_of_torch_count_as_their_names(world: World) -> None:
    machine = open_model(world.model, dtype=torch.bfloat16, device=torch.device("cpu")).machine
    assert (machine.dtype, machine.device) == ("bfloat16", "cpu")
    with pytest.raises(errors.UsageError, match="`--dtype int8` is not one of"):
        open_model(world.model, dtype=torch.int8)


def test_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(world.model) as model:
        edited = model.edit([line(0), line(1)], anchors=False)
    assert edited[0]["id"] == "e1"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.UsageError, match="needs pandas") as caught:
        edited.to_pandas()
    assert caught.value.hint == "pip install pandas"
    monkeypatch.delitem(sys.modules, "pandas")
    pytest.importorskip("pandas")
    frame = edited.to_pandas()
    assert list(frame["id"]) == ["e1", "e2"]
    assert {"status", "target", "answer_after", "nll_after"} <= set(frame.columns)


REFUSED = {
    "no checkpoint": (lambda model: open_model("img"), errors.StateError, "config.json"),
    "no state": (lambda model: model.evaluate(), errors.StateError, "no state"),
    "a bad line": (lambda model: model.edit([line(0), {"question": "q"}]), errors.StreamErrors, "edits:2: `target`"),
    "not JSON": (lambda model: model.edit([{"question": {1}}]), errors.StreamErrors, "edits:1: `question` is not JSON"),
    "no lines": (lambda model: model.edit([]), errors.StreamErrors, "edits: holds no edits"),
    "a table": (lambda model: model.edit("edits.csv"), errors.DataError, "edits.csv is CSV: more convert"),
    "no image": (lambda model: model.ask("what ?", "img/rde.png"), errors.DataError, "file not found"),
    "no id": (lambda model: model.revert(), errors.UsageError, "exactly one of"),
    "a gate": (lambda model: model.evaluate(gates=["x"]), errors.UsageError, "x"),
    "a gate as text": (lambda model: model.evaluate(gates="rel.no>=1"), errors.UsageError, "rel.no"),
    "probes as lines": (lambda model: model.evaluate([{"question": "q"}]), errors.UsageError, r"`probes` is \["),
    "one line": (lambda model: model.edit(line(0)), errors.UsageError, "`edits` is one edit line"),
    "a picture": (lambda model: model.edit([line(0, image=3 + 1j)]), errors.StreamErrors, "`image` is not JSON"),
    "settings": (lambda model: model.edit([line(0)], settings={"rank": 3}), errors.UsageError, "is a mapping"),
    "no limit": (lambda model: model.edit([line(0)], limit=-1), errors.UsageError, "`limit` is -1"),
    "no saves": (lambda model: model.edit([line(0)], save_every=0), errors.UsageError, "`save_every` is 0"),
    "no rank": (lambda model: model.export("out", rank=0), errors.UsageError, "`rank` is 0"),
    "none of the last": (lambda model: model.revert(last=0), errors.UsageError, "`last` is 0"),
    "no question": (lambda model: model.ask(5, "img/red.png"), errors.UsageError, "`question` is 5"),
    "an open picture": (lambda model: model.ask("q", Image.new("RGB", (9, 9))), errors.UsageError, "`images` is <PIL"),
    "open pictures": (lambda model: model.ask("q", [Image.new("RGB", (9, 9))]), errors.UsageError, r"`images` is \[<P"),
    "a picture of an asker": (lambda model: asked(model, "q", 5), errors.UsageError, "`images` is 5"),
    "a question of an asker": (lambda model: asked(model, None), errors.UsageError, "`question` is None"),
    "no edits": (lambda model: model.edit(None), errors.UsageError, "`edits` is None"),
    "a limit as text": (lambda model: model.edit([line(0)], limit="2"), errors.UsageError, "`limit` is '2'"),
    "a folder": (lambda model: model.edit([line(0)], image_root=2), errors.UsageError, "`image_root` is 2"),
    "a setting": (lambda model: model.edit([line(0)], settings=[3]), errors.UsageError, r"`settings` is \(3,\)"),
    "gates": (lambda model: model.evaluate(gates=1), errors.UsageError, "`gates` is 1"),
    "an id": (lambda model: model.log(1), errors.UsageError, "`id` is 1"),
    "ids": (lambda model: model.revert([1]), errors.UsageError, r"`ids` is \[1\]"),
    "no model": (lambda model: open_model(None), errors.UsageError, "`model` is None"),
    "a device": (lambda model: open_model("model", device=0), errors.UsageError, "`device` is 0"),
    "no folder": (lambda model: model.merge(None), errors.UsageError, "`out` is None"),
    "no tokens": (lambda model: model.ask("q", max_tokens=0), errors.UsageError, "an answer cannot have 0 tokens"),
    "a long name": (lambda model: open_model("m" * 300), errors.UsageError, "the name is too long"),
    "a long state": (lambda model: open_model("model", "m" * 300).state, errors.UsageError, "the name is too long"),
    "U+0000": (lambda model: model.edit("a\0b"), errors.UsageError, "a path holds the character U\\+0000"),
    "no lines of the log": (lambda model: model.log(limit=-1), errors.UsageError, "`limit` is -1"),
}  # fmt: skip


def test_memory_that_is_full_is_an_error_as_of_a_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(ask, "load_runtime", full)
    with pytest.raises(errors.ResourceError, match="out of memory"):
        open_model(world.model).ask(QUESTION)


def test_an_error_of_the_caller_stays_what_it_is(world: World) -> None:
    def lines() -> Iterator[dict[str, Any]]:
        yield line(0)
        raise FileNotFoundError("of the caller")

    with pytest.raises(FileNotFoundError, match="of the caller"):
        open_model(world.model).edit(lines())


def asked(model: Model, *words: Any) -> None:
    with model.asking() as asker:
        asker.ask(*words)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(world: World, name: str) -> None:
    act, error, said = REFUSED[name]
    Path("edits.csv").write_text("question,target\n")
    before = tree(world.root)
    model = open_model(world.model)
    with pytest.raises(error, match=said) as caught:
        act(model)
    assert isinstance(caught.value, errors.MoreError)
    if said.startswith("`ids`"):
        assert caught.value.hint == "it takes text or a list of text"
    assert tree(world.root) == before


def test_what_is_empty_in_a_data_frame_is_left_out(world: World) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([line(0), {"question": "who is it ?", "target": "bob"}])
    with open_model(world.model) as model:
        with pytest.raises(errors.UsageError, match="data frame") as caught:
            model.edit(frame)
        assert "to_dict" in caught.value.hint
        assert model.edit(frame.to_dict("records"), dry_run=True).report.total == 2


def test_one_setting_and_one_picture_need_no_list(world: World) -> None:
    with open_model(world.model) as model:
        model.edit([line(0)], settings="rank=3", anchors=False)
        assert {site.rank for site in model.state.state.sites} == {3}
        with model.asking() as asker:
            said = [
                asker.ask(QUESTION, shown).edited for shown in ("img/red.png", Path("img/red.png"), ["img/red.png"])
            ]
        assert said[0] == said[1] == said[2] == model.ask(QUESTION, "img/red.png").edited
        assert model.ask(QUESTION, ["img/red.png"]).edited == said[0]
        assert len(model.log(limit=0)) == len(model.log())
        assert model.revert(["e1"]).plan.gone == ["e1"]


def test_progress_is_a_function(world: World) -> None:
    done: list[str] = []
    with open_model(world.model, progress=lambda count, total, text: done.append(text)) as model:
        model.edit([line(0)], anchors=False)
    assert done
    with pytest.raises(errors.UsageError, match="`progress` is 5") as caught:
        open_model(world.model, progress=5)
    assert caught.value.hint == "it takes a function of done, total and text"


@pytest.mark.parametrize("given", ["paper-llava", Path("own.toml")])
def test_a_plan_is_that_of_the_recipe_and_settings_given(world: World, given: str | Path) -> None:
    Path("own.toml").write_text('extends = "paper-llava"\nname = "paper-llava"\n')
    with open_model(world.model, recipe=given, settings="rank=3") as model:
        plan = model.state.plan
        assert plan is not None
        assert (plan.recipe.name, plan.recipe.rank) == ("paper-llava", 3)


def test_an_empty_list_of_ids_is_not_all_of_them(world: World) -> None:
    with open_model(world.model) as model:
        for call in (lambda: model.retry([]), lambda: model.revert([])):
            with pytest.raises(errors.UsageError):
                call()


def test_a_line_that_is_nested_too_deeply_is_refused(world: World) -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    with open_model(world.model) as model, pytest.raises(errors.DataError, match="`tags` is not JSON: nested more"):
        model.edit([line(0, tags={"deep": deep})])


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, more_cli; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'open'"):
        _ = more_cli.open
    assert set(more_cli.__all__) <= {*dir(more_cli), "open_model"}


def test_every_method_is_documented() -> None:
    methods = [getattr(Model, name) for name in dir(Model) if not name.startswith("_")]
    assert all(method.__doc__ for method in methods)


def test_a_choice_that_does_not_exist_is_refused(world: World) -> None:
    with open_model(world.model) as model:
        for call in (
            lambda: model.edit([line(0)], on_error="Stop"),
            lambda: model.edit([line(0)], consolidate="annew"),
            lambda: model.export("out", format="bogus"),  # type: ignore[arg-type]
        ):
            with pytest.raises(errors.UsageError, match="is '"):
                call()
    assert not world.sidecar.exists()
