"""`more bench` measures `more edit`, changes no file of the user, and its arithmetic is right."""

import math
import threading
from pathlib import Path

import pytest
import torch

from more_cli import clock
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import EditRequest
from more_cli.inputs.edits import read_edits
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.ops.session import open_session
from more_cli.runner import costs
from more_cli.store.state import load_state
from more_cli.store.target import Target
from more_lab.bench import floor
from more_lab.bench import run as bench
from more_lab.bench import timing as stopwatch
from more_lab.bench.random_edits import write_random_edits
from more_lab.experiments.scaling import median, rolling, trend
from support.helpers import QUICK, World, run, tree
from support.tiny_language import tiny_language_model


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    world = World(tmp_path_factory.mktemp("bench") / "world")
    world.edits(4)
    return world


@pytest.fixture
def kept(tmp_path: Path, monkeypatch) -> Path:
    """Return the temporary folder of a bench, which is kept."""

    class Kept:
        def __init__(self, prefix: str) -> None:
            self.path = tmp_path / "scratch"
            self.path.mkdir()

        def __enter__(self) -> str:
            return str(self.path)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(bench.tempfile, "TemporaryDirectory", Kept)
    return tmp_path / "scratch"


def test_it_measures_what_edit_does_and_leaves_everything_as_it_was(world: World, kept: Path, tmp_path: Path) -> None:
    before = tree(world.root)
    result = run("bench", world.model, world.root / "edits.jsonl", *QUICK, "--floor", "--peers", "--json")
    assert result.code == 0, result.err
    assert tree(world.root) == before
    found = result.json
    assert found["schema"] == "more.bench/1"
    assert [edit["id"] for edit in found["edits"]] == ["e1", "e2", "e3", "e4"]
    for edit in found["edits"]:
        assert edit["floor"] > 0
        assert len(edit["steps"]) == len(edit["lora_steps"]) == edit["writes"] == 1
        assert math.isclose(sum(edit["parts"].values()), edit["seconds"])
        assert all(seconds >= 0 for seconds in edit["parts"].values())
        assert 0 < edit["steps"][0] < edit["seconds"]
    assert {"edit_over_floor", "step_over_floor", "lora_step_over_step"} <= found["ratios"].keys()
    assert "lora_step_over_later_step" not in found["ratios"]  # every edit had one write
    assert math.isclose(sum(found["parts"].values()), found["seconds"])
    # Neither the clock nor what runs beside it changes what is learnt.
    world.edit(*QUICK, "--state", tmp_path / "plain.more")
    assert (kept / "state.more").read_bytes() == (tmp_path / "plain.more").read_bytes()
    assert found["ledger_bytes"] > 4 * 500


def test_a_copy_of_the_state_is_measured(world: World, tmp_path: Path) -> None:
    state = tmp_path / "own.more"
    assert world.edit(*QUICK, "--state", state).code in (0, 3)
    before = tree(tmp_path)
    again = run("bench", world.model, world.root / "edits.jsonl", "--state", state)
    assert again.code == 2
    assert "every edit of" in again.err
    assert "hint: give other edits" in again.err
    random = run("bench", world.model, "--limit", "2", "--state", state, "--json")
    assert random.code == 0, random.err
    assert [edit["id"] for edit in random.json["edits"]] == ["random-1", "random-2"]
    assert random.json["parts"]["rehearsal"] > 0  # of the edits that the state holds
    assert random.json["source"] == "random edits, seed 0"
    assert tree(tmp_path) == before


def test_a_named_state_that_is_not_there_is_refused(world: World, tmp_path: Path) -> None:
    for named in (tmp_path / "nosuch.more", "nosuch"):
        refused = run("bench", world.model, "--state", named)
        assert (refused.code, refused.out) == (5, "")
        assert refused.err.startswith("error: no state at `")
        assert refused.err.endswith("hint: name an existing state, or leave --state out\n")


def test_a_state_of_more_toml_that_is_not_there_is_refused_unless_a_new_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = World(tmp_path / "own").model
    (tmp_path / "more.toml").write_text('state = "own/model.ann.more"\n')
    monkeypatch.chdir(tmp_path)
    refused = run("bench", model, "--limit", 1)
    assert (refused.code, refused.out) == (5, "")
    assert refused.err == run("eval", model).err
    assert refused.err.startswith("error: no state at `own/model.ann.more`\n")
    assert run("bench", model, "--limit", 1, *QUICK).code == 0


def test_people_see_a_table(world: World) -> None:
    result = run("bench", world.model, world.root / "edits.jsonl", *QUICK, "--floor")
    assert result.code == 0, result.err
    for words in ("4 edits, 4 writes", "edits a second", "backward", "edit / floor of its writes"):
        assert words in result.out
    (latency,) = [row for row in result.out.splitlines() if row.startswith("latency")]
    assert (latency.count(" ms"), "%" in latency) == (4, False), "as a share of the median it could be below -100 %"


def test_the_embedded_model_brings_its_edits_and_anchors_only_to_a_recipe_that_uses_them() -> None:
    for options, held in (((), True), (("--recipe", "paper-llava"), False)):
        found = run("bench", demo_model_dir(), "--limit", 2, "--json", *options)
        assert found.code == 0, found.err
        assert found.json["source"].endswith("eval.json")
        assert (found.json["parts"]["anchors"] > 0) == held


def test_what_cannot_be_drawn_or_compared_is_refused_at_once(world: World, tmp_path: Path, monkeypatch) -> None:
    for name, words in (("curves.gif", "a plot is .png"), ("nowhere/curves.svg", "there is no folder")):
        result = run("bench", world.model, "--plot", tmp_path / name)
        assert (result.code, result.out) == (2, "")
        assert words in result.err
    result = run("bench", world.model, world.root / "edits.jsonl", "--seed", 3)
    assert (result.code, "`--seed` draws random edits" in result.err) == (2, True)
    monkeypatch.setattr(floor, "find_spec", lambda name: None)
    result = run("bench", world.model, "--peers")
    assert result.code == 2
    assert "more-vlm[lora]" in result.err


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot(world: World, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / f"curves{suffix}"
    assert run("bench", world.model, world.root / "edits.jsonl", *QUICK, "--plot", plot).code == 0
    assert plot.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_the_floor_has_the_gradients_of_a_write(world: World, tmp_path: Path) -> None:
    state = tmp_path / "empty.more"
    assert run("init", world.model, *QUICK, "--state", state).code == 0
    session = open_session(Target(world.model, state), Machine())
    edit = read_edits(world.root / "edits.jsonl").edits[0]
    runtime, request = session.runtime, EditRequest.of(edit)
    with session.attached():
        batch = runtime.batch([runtime.encode(request.query, request.target)])
        runtime.backward(runtime.score(batch, record=True).nll().mean())
        records = session.editor.records
        ours = [site.branch.gradient().dense() for site in session.editor.sites]
        bare = floor.Floor(runtime, records)
        with bare.ready(batch):
            theirs = bare.gradients(batch)
        for record, mine, other in zip(records, ours, theirs, strict=True):
            assert mine.abs().max() > 0, record.name
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


def test_lora_has_the_same_sites_and_ranks(world: World, tmp_path: Path, monkeypatch) -> None:
    peft = pytest.importorskip("peft")
    state = tmp_path / "empty.more"
    assert run("init", world.model, *QUICK, "--state", state).code == 0
    records = load_state(state).meta.sites
    runtime = load_runtime(open_checkpoint(world.model))
    seen: list[dict[str, torch.Size]] = []
    wrap = peft.get_peft_model

    def watched(*args):
        adapted = wrap(*args)
        seen.append({name: value.shape for name, value in adapted.named_parameters() if value.requires_grad})
        return adapted

    monkeypatch.setattr(peft, "get_peft_model", watched)
    edit = read_edits(world.root / "edits.jsonl").edits[0]
    request = EditRequest.of(edit)
    names = [name for name, _ in runtime.model.named_modules()]
    before = {name: value.clone() for name, value in runtime.model.state_dict().items()}
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    assert len(floor.Peer(runtime, records).seconds([batch, batch])) == 2
    expected = {}
    for record in records:
        expected[f"base_model.model.{record.module}.lora_A.default.weight"] = (record.rank, record.shape[1])
        expected[f"base_model.model.{record.module}.lora_B.default.weight"] = (record.shape[0], record.rank)
    assert seen == [expected]
    assert [name for name, _ in runtime.model.named_modules()] == names
    for name, value in runtime.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_parts_are_counted_without_those_inside_and_on_one_thread_only() -> None:
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    @clock.timed("decode")
    def inner() -> None:
        wait(2.0)

    @clock.timed("preprocess")
    def outer() -> None:
        wait(1.0)
        inner()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    watch = stopwatch.Stopwatch("cpu", lambda: now)
    inner()
    with clock.running(watch):
        watch.start()
        wait(0.5)
        outer()
        lap = watch.stop()
    outer()
    # The other thread's two seconds pass while `preprocess` waits for it.
    assert lap.parts["decode"] == 2.0
    assert lap.parts["preprocess"] == 3.0
    assert lap.parts["other"] == 0.5
    assert lap.seconds == 5.5


def test_a_trend_in_closed_form() -> None:
    steady = trend([2.0] * 20)
    assert steady is not None
    assert (steady.median, steady.growth, steady.low, steady.high) == (2.0, 0.0, 0.0, 0.0)
    rising = trend([10.0 + t for t in range(101)])
    assert rising is not None
    assert rising.median == 60.0
    for value in (rising.growth, rising.low, rising.high):
        assert math.isclose(value, 101 / 60)
    assert trend([1.0, 2.0]) is None
    assert median([3.0]).value == 3.0
    assert rolling([1.0, 2.0, 6.0], 2) == [1.0, 1.5, 4.0]


def test_random_edits_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_random_edits(tmp_path / name, 3, seed)
    assert tree(tmp_path / "a") == tree(tmp_path / "b") != tree(tmp_path / "c")
    assert len(read_edits(tmp_path / "a" / "edits.jsonl").edits) == 3


def test_a_plain_language_model_is_measured_on_edits_without_pictures(tmp_path: Path) -> None:
    model = tiny_language_model(tmp_path / "llama")
    result = run("bench", model, "--limit", 3, "--json")
    assert result.code == 0, result.err
    assert [edit["id"] for edit in result.json["edits"]] == ["random-1", "random-2", "random-3"]
    assert result.json["parts"]["vision"] == 0
    questions = [edit.question for edit in read_edits(write_random_edits(tmp_path / "a", 3, 0, pictured=False)).edits]
    assert len(set(questions)) == 3, "no edit corrects another one"


def test_peak_memory_is_that_since_the_restart() -> None:
    peak = costs.PeakMemory("cpu")
    if peak.held() is None:
        pytest.skip("no account of memory on this system")
    peak.restart()
    before = peak.peak()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert peak.peak() - before >= 60 << 20
    del block
    peak.restart()
    assert peak.peak() < before + (40 << 20)
