"""The kit for a real model, tried end to end on small trained ones: its script is started as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from more_cli.demo.files import demo_model_dir
from support.helpers import Result, run, wait_for
from support.paths import ROOT

STEPS = ["status", "base", "init", "edit", "eval", "merge", "verify", "transformers", "vllm", "table-1"]


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """The kit, written by the command."""
    written = run("reproduce", "kit", "-o", tmp_path / "kit", "--json")
    assert written.code == 0, written.err
    assert {"README.md", "run.py", "requirements.txt", "edits.jsonl"} < set(written.json["files"])
    return tmp_path / "kit"


def started(kit: Path, *arguments: object, path: Path | None = None) -> Result:
    programs = os.pathsep.join(map(str, [path or Path(sys.executable).parent, os.environ["PATH"]]))
    environment = os.environ | {"PATH": programs, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, kit / "run.py", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=kit.parent)
    return Result(done.returncode, done.stdout, done.stderr)


def stub(folder: Path, script: str) -> dict[str, str]:
    """The environment in which `more-cli` is a shell script."""
    folder.mkdir()
    program = folder / "more-cli"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return os.environ | {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"}


def begun(kit: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A run of the kit in a session of its own, as from a shell."""
    command = [sys.executable, kit / "run.py", demo_model_dir(), "--edits", "1"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, start_new_session=True)


def test_the_kit_is_complete_and_pinned(kit: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (kit / "edits.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 20
    for line in lines:
        named = [
            line["image"],
            *line["image_rephrases"],
            *(probe["image"] for probe in line["locality"] if "image" in probe),
        ]
        assert all((kit / picture).is_file() for picture in named)
    pins = dict(line.split("==") for line in (kit / "requirements.txt").read_text().splitlines())
    assert {"more-vlm", "torch", "transformers"} <= set(pins)
    again = run("reproduce", "kit", "-o", kit)
    assert (again.code, again.err) == (2, f"error: `{kit}` is not empty\nhint: name a new folder\n"), (
        "there is no --force"
    )
    nowhere = run("reproduce", "kit")
    assert (nowhere.code, nowhere.err) == (2, "error: `reproduce kit` needs a folder\nhint: add --out DIR\n")
    no_model = started(kit, tmp_path)
    assert no_model.code == 2
    assert "holds no config.json" in no_model.err


def test_a_step_that_fails_stops_no_other_and_the_report_says_so(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a `more-cli` that always fails: every step is tried, and the next run tries again."""
    stub(tmp_path / "bin", f"echo {Path.home()}/secret of ann, in the annals >&2\nexit 4")
    monkeypatch.setenv("LOGNAME", "ann")  # a user with a short name
    for _ in range(2):
        done = started(kit, demo_model_dir(), "--edits", 1, path=tmp_path / "bin")
        assert done.code == 1
        assert [line.split()[0] for line in done.out.splitlines()[: len(STEPS)]] == STEPS
        assert "edit           FAILED, see work/steps/edit.err" in done.out
        assert not [line for line in done.out.splitlines() if "(earlier)" in line and not line.startswith("base")]
    with zipfile.ZipFile(kit / "report.zip") as report:
        found = json.loads(report.read("summary.json"))
        assert (found["steps"]["edit"]["code"], found["steps"]["table-1"]["skipped"][:4]) == (4, "give")
        assert report.read("steps/edit.err") == b"HOME/secret of USER, in the annals\n"


def test_a_closed_pipe_loses_no_report_and_what_was_not_learnt_is_said(kit: Path, tmp_path: Path) -> None:
    environment = stub(tmp_path / "bin", "exit 3")
    with begun(kit, environment) as child:
        assert child.stdout is not None
        assert b"status         done, but a correction was NOT learnt" in child.stdout.readline()
        child.stdout.close()
        assert child.wait(120) == 1, "nothing was merged, so the step `transformers` fails"
        assert child.stderr is not None
        assert b"Traceback" not in child.stderr.read()
    assert zipfile.ZipFile(kit / "report.zip").testzip() is None


def test_ctrl_c_says_how_to_go_on(kit: Path, tmp_path: Path) -> None:
    with begun(kit, stub(tmp_path / "bin", "touch started; exec sleep 60")) as child:
        wait_for((kit / "started").exists)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, b"")
    assert b"stopped: run the same command again" in out


def test_other_edits_are_scored_and_merged_anew(kit: Path, tmp_path: Path) -> None:
    """The commands of these steps do not say how many edits there are."""
    stub(tmp_path / "bin", f"echo $1 >> {tmp_path / 'log'}")
    ran = []
    for edits in (1, 2, 2):
        started(kit, demo_model_dir(), "--edits", edits, path=tmp_path / "bin")
        ran.append((tmp_path / "log").read_text().split())
        (tmp_path / "log").write_text("")
    again = ["init", "edit", "eval", "merge", "verify"]
    assert ran == [["status", *again], again, []]


@pytest.mark.parametrize("number", [0, 21])
def test_a_number_of_corrections_that_the_kit_lacks_is_refused(kit: Path, number: int) -> None:
    done = started(kit, demo_model_dir(), "--edits", number)
    assert done.code == 2
    assert f"--edits {number}: the kit has 20 corrections" in done.err


def published(root: Path) -> Path:
    """Ten records of each embedded suite in the files and columns in which MMEdit was published."""
    for suite, folder, name in (("e-vqa", "vqa", "vqa_eval"), ("e-ic", "caption", "caption_eval_edit")):
        with zipfile.ZipFile(ROOT / "more_cli" / "demo" / "suites" / f"{suite}-mini.zip") as embedded:
            records = json.loads(embedded.read("eval.json"))[:10]
            for record in records:
                for column in ("image", "image_rephrase", "m_loc"):
                    embedded.extract(record[column], root / folder)
                    record[column] = f"{folder}/{record[column]}"
        (root / folder / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    return root


@pytest.mark.slow
def test_from_status_to_the_report_on_a_trained_model(kit: Path, tmp_path: Path) -> None:
    data = "--data-root", published(tmp_path / "editing-data")
    done = started(kit, demo_model_dir(), "--edits", 2, *data)
    assert done.code == 0, done.out + done.err
    assert "right before                 0 of 2" in done.out
    assert "right in transformers        2 of 2" in done.out
    assert "vllm           skipped: vLLM is not installed" in done.out
    with zipfile.ZipFile(kit / "report.zip") as report:
        texts = {name: report.read(name).decode() for name in report.namelist()}
    assert {f"steps/{step}.out" for step in STEPS if step != "vllm"} < texts.keys()
    rows = [row for table in json.loads(texts["steps/table-1.out"])["results"] for row in table["rows"]]
    assert {(row["editor"], row["edits"]) for row in rows} == {(e, n) for e in ("ft-m", "more:paper") for n in (1, 10)}
    assert not [name for name, text in texts.items() if str(kit) in text or str(demo_model_dir()) in text]
    assert json.loads(texts["summary.json"])["scores"]["rel.gen_exact"] == 1.0
    again = started(kit, demo_model_dir(), "--edits", 2, *data)
    assert again.out.count("(earlier)") == 9


@pytest.mark.slow
def test_on_qwen2_vl_all_but_its_own_video_processor(kit: Path) -> None:
    """The small Qwen2-VL has no video part, which transformers' own processor wants; published checkpoints have it."""
    done = started(kit, ROOT / "tests" / "data" / "qwen2_vl", "--edits", 1)
    failed = [line.split()[0] for line in done.out.splitlines() if " FAILED" in line]
    assert (done.code, failed) == (1, ["base", "transformers"]), done.out + done.err
    assert "video" in (kit / "work" / "steps" / "transformers.err").read_text().splitlines()[-1]
    assert "rel.gen_exact                1.0" in done.out
