"""`--track`: every tracker gets what a run did, from its real client, and no tracker can harm a run."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from more_cli.ops import tracking
from support.helpers import QUICK, World, process, run, wait_for
from support.packages import Packages, outsiders

KEEPING = """
import json, sys, time

class Tracker:
    def start(self, name, facts):
        print("a tracker that prints")
        self.calls = [["start", name, facts]]
    def log(self, step, values):
        {spoil}
        self.calls.append(["log", step, values])
    def finish(self, summary):
        self.calls.append(["finish", summary])
        open("calls.json", "w").write(json.dumps(self.calls))
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "world")
    made.edits(2)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Packages]:
    (tmp_path / "packages").mkdir()
    with outsiders(tmp_path / "packages") as found:
        yield found


def bring(packages: Packages, spoil: str = "pass") -> None:
    packages.bring("keeping", KEEPING.format(spoil=spoil), trackers={"keeping": "keeping:Tracker"})


def test_a_tracker_of_another_package_gets_every_edit_and_the_summary(world: World, packages: Packages) -> None:
    bring(packages)
    result = world.edit("--track", "keeping", "--json", *QUICK)
    assert result.code == 3
    assert result.json["schema"].startswith("more.edit/")  # what a tracker prints is not on stdout
    assert "a tracker that prints" in result.err
    start, first, second, (_, summary) = json.loads(Path("calls.json").read_text())
    assert start[:2] == ["start", "model"]
    assert [first[1], second[1]] == [1, 2]
    assert first[2].keys() == {"id", "status", "nll_before", "nll_after", "writes", "ms"}
    assert (first[2]["id"], first[2]["status"]) == ("e1", "not-learnt")
    entry = world.entries()[0]
    assert first[2]["nll_after"] == entry["nll_after"]
    assert (summary["applied"], summary["not_learnt"]) == (2, 2)
    # A second run has nothing new.
    assert world.edit("--track", "keeping", *QUICK).code == 3
    assert len(json.loads(Path("calls.json").read_text())) == 2


@pytest.mark.parametrize("words", [("--idle", 5), ("--retry", "--batch"), ("--watch",)])
def test_a_call_that_is_refused_begins_no_run(world: World, packages: Packages, words: tuple[object, ...]) -> None:
    bring(packages)
    result = world.edit("--track", "keeping", *words, edits="-")
    assert result.code == 2
    assert "a tracker that prints" not in result.err


def test_no_question_answer_or_path_is_sent(world: World, packages: Packages) -> None:
    bring(packages)
    world.edit("--track", "keeping", *QUICK)
    sent = Path("calls.json").read_text()
    assert "colour" not in sent
    assert str(world.root) not in sent


def test_a_tracker_that_fails_warns_once_and_stops_nothing(world: World, packages: Packages) -> None:
    bring(packages, "raise OSError('no network')")
    result = world.edit("--track", "keeping", *QUICK)
    assert result.code == 3
    assert result.err.count("warning: tracker `keeping` failed, and the run did not: OSError: no network") == 1
    assert len(world.entries()) == 2


def test_a_tracker_that_hangs_is_left_behind(world: World, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.5)
    bring(packages, "time.sleep(600)")
    result = world.edit("--track", "keeping", *QUICK)
    assert result.code == 3
    assert "did not end within" in result.err
    assert len(world.entries()) == 2


def test_the_state_has_the_same_bytes_with_and_without(world: World, packages: Packages, tmp_path: Path) -> None:
    bring(packages)
    assert world.edit("--track", "keeping", "--state", tmp_path / "a.more", *QUICK).code == 3
    assert world.edit("--state", tmp_path / "b.more", *QUICK).code == 3
    assert (tmp_path / "a.more").read_bytes() == (tmp_path / "b.more").read_bytes()


def test_what_is_not_there_is_refused_before_the_first_edit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = world.edit("--track", "nothing")
    assert (unknown.code, "no tracker `nothing`" in unknown.err, "wandb" in unknown.err) == (2, True, True)
    monkeypatch.setitem(sys.modules, "wandb", None)
    missing = world.edit("--track", "wandb")
    assert missing.code == 2
    assert "needs the package `wandb`" in missing.err
    assert 'pip install "more-vlm[wandb]"' in missing.err
    assert not world.sidecar.exists()
    assert run("eval", world.model, "--track", "wandb").code == 2  # needs --suite


@pytest.mark.slow
def test_a_suite_is_tracked_edit_by_edit_with_its_metrics(world: World, packages: Packages) -> None:
    bring(packages)
    options = [
        "--data-root",
        world.mmedit(2),
        "--set",
        "last=1",
        "--image-root",
        world.root,
        "--cache",
        world.root / "cache",
    ]
    for command in ("eval", "run"):
        result = run(command, world.model, "--suite", "e-vqa", *options, "--track", "keeping")
        assert result.code == 0, result.err
        start, *edits, (_, summary) = json.loads(Path("calls.json").read_text())
        assert start[1].startswith("e-vqa-more")
        assert [edit[1] for edit in edits] == [1, 2]
        assert 0 <= summary["rel.gen_exact"] <= 1


def test_nothing_of_a_tracker_is_imported_unless_asked(world: World) -> None:
    before = {name for name in ("wandb", "mlflow", "trackio", "tensorboard") if name in sys.modules}
    world.edit(*QUICK)
    assert {name for name in ("wandb", "mlflow", "trackio", "tensorboard") if name in sys.modules} == before


@pytest.mark.slow
def test_wandb_keeps_the_run_offline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = world.edit("--track", "wandb", "--json", *QUICK)
    assert (result.code, result.json["applied"]) == (3, 2)
    assert "warning: tracker" not in result.err
    (record,) = Path("wandb").glob("offline-run-*/*.wandb")
    wait_for(lambda: b"nll_after" in record.read_bytes(), 30)  # its own process writes it


@pytest.mark.slow
def test_mlflow_keeps_metrics_and_statuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    store = f"sqlite:///{Path.cwd()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    result = world.edit("--track", "mlflow", "--json", *QUICK)
    assert (result.code, "warning: tracker" in result.err) == (3, False), result.err
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("more").experiment_id])
    assert found.data.metrics["summary/applied"] == 2
    assert [each.step for each in client.get_metric_history(found.info.run_id, "nll_after")] == [1, 2]
    texts = json.loads(Path(mlflow.artifacts.download_artifacts(f"runs:/{found.info.run_id}/edits.json")).read_text())
    assert texts[0] == {"step": 1, "id": "e1", "status": "not-learnt"}


@pytest.mark.slow
def test_tensorboard_writes_events(world: World) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = world.edit("--track", "tensorboard", "--json", *QUICK)
    assert (result.code, "warning: tracker" in result.err) == (3, False), result.err
    (folder,) = Path("runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("nll_after")] == [1, 2]
    assert events.Scalars("summary/applied")[0].value == 2


@pytest.mark.slow
def test_trackio_keeps_the_run_on_this_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="pip install trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(Path.cwd() / "trackio"))  # read when it is imported: in a process of its own
    with process("edit", world.model, world.root / "edits.jsonl", "--track", "trackio", "--json", *QUICK) as child:
        out, err = child.communicate()
    assert (child.returncode, b"warning: tracker" in err) == (3, False), err
    assert json.loads(out)["applied"] == 2
    (kept,) = Path("trackio").glob("more*.db")
    with sqlite3.connect(kept) as database:
        rows = [json.loads(row[0]) for row in database.execute("select metrics from metrics order by id")]
    assert [row["status"] for row in rows[:2]] == ["not-learnt", "not-learnt"]
    assert rows[-1]["summary/applied"] == 2
