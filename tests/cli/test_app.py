"""The command line as a script sees it: exit code, standard output, standard error."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from more_cli import __version__
from more_cli.cli.output import Output
from more_cli.store.state import load_state
from support import tiny
from support.helpers import LEARNING, QUESTION, QUICK, World, line, run, spelled, tree

EASY = (*LEARNING, "--set", "target_nll=2")
"""An edit is learnt as soon as its answer is right, so a second, equal edit needs no write."""
COMMANDS = ("init", "edit", "status", "eval", "merge")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.edits(2)
    return world


def argv(world: World, command: str) -> tuple[Any, ...]:
    more = {"edit": ("edits.jsonl", *LEARNING), "merge": ("-o", "out"), "init": LEARNING}
    return command, world.model, *more.get(command, ())


def in_order(world: World, *options: str) -> dict[str, Any]:
    return {command: run(*argv(world, command), *options) for command in COMMANDS}


# --- output ---


def test_every_command_prints_one_json_object_and_nothing_else(world: World) -> None:
    for command, result in in_order(world, "--json").items():
        assert result.code == 0
        assert result.out.count("\n") == 1
        assert result.json["schema"] == f"more.{command}/1"


def test_quiet_is_silent_and_keeps_json_and_errors(world: World) -> None:
    assert all((result.out, result.err) == ("", "") for result in in_order(world, "-q").values())
    assert run("status", world.model, "-q", "--json").json["edits"] == 2
    assert run("status", "nowhere", "-q").err.startswith("error: ")


def test_for_people_there_are_tables_without_escape_codes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    results = in_order(world)
    assert "wrote" in results["init"].out
    assert "2 applied, 0 skipped (already in the ledger); of this stream: 2 learnt" in results["edit"].out
    assert "edits: 2 (2 learnt); ledger lines not in the state yet: 0" in results["status"].out
    assert "rel.tf_exact" in results["eval"].out
    assert "merged 2 edits into out; all other bytes equal the base's" in results["merge"].out
    shown = [*results.values(), run("--help"), run("edit", "--help"), run("edit", "--nonsense")]
    assert not any("\x1b" in result.out + result.err for result in shown)


def test_text_of_a_record_cannot_steer_the_terminal(world: World) -> None:
    hostile = "\u202e[bold red]\u2028x[/] \U000e0041"
    world.write([line(0, question=hostile, target="@" * 40), line(1, id="[link=x]")])
    shown = run(*argv(world, "edit"), "--set", "max_steps=1")
    assert shown.code == 3
    assert "[bold red]" in shown.out
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_names_with_escape_codes_are_shown_without_them(world: World) -> None:
    missing = run("status", "\x1b[31mred\nmodel")
    assert (missing.code, "\x1b" in missing.err, missing.err.count("\n")) == (5, False, 2)
    bad = world.write(['{"\\u001b[2J": 1}', '{"a\\u009b": 1}'], "bad\x1b[2J.jsonl")
    assert "\x1b" not in run("edit", world.model, bad).err


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = "import sys; from more_cli.cli.app import main; code = main(['edit', '--help']); "
    code += "sys.exit(code or any(name in sys.modules for name in ('torch', 'transformers', 'numpy', 'PIL', 'rich')))"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"after {time.monotonic() - started:.1f} s: {done.stderr}"
    assert "Exit codes: 0 done" in " ".join(done.stdout.split())


def test_version() -> None:
    assert run("--version").out == f"more {__version__}\n"


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.code == 2
    assert "Usage: more" in result.err + result.out


def test_a_real_process_exits_with_the_code(world: World) -> None:
    environment = os.environ | {"GITHUB_ACTIONS": "1"}
    command = [sys.executable, "-m", "more_cli", "status", str(world.root / "none")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: ")


# --- model and state ---


def test_the_only_state_of_the_folder_names_the_model(world: World) -> None:
    run(*argv(world, "edit"))
    assert run("status", "--json").json["edits"] == 2
    assert run("eval", "--json").json["edits"] == 2


def test_a_state_can_lie_anywhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "elsewhere").mkdir()
    monkeypatch.setenv("MORE_STATE", "elsewhere/a.more")
    run(*argv(world, "edit"))
    assert not world.sidecar.exists()
    assert (world.root / "elsewhere" / "a.more.d" / "ledger.jsonl").exists()
    assert run("status", world.model, "--state", "elsewhere/a.more", "--json").json["edits"] == 2


def test_init_again_finds_the_same_state(world: World) -> None:
    assert run("init", world.model, "--json").json["created"]
    before = tree(world.root)
    again = run("init", world.model)
    assert (again.code, tree(world.root)) == (0, before)
    assert "already exists, unchanged" in again.out


def test_status_without_a_state_says_what_init_would_choose(world: World) -> None:
    before = tree(world.root)
    shown = run("status", world.model)
    assert "no state yet" in shown.out
    assert "multi_modal_projector.linear_1" in shown.out
    assert tree(world.root) == before


# --- streams ---


def stdin(*lines: Any) -> bytes:
    return b"".join(spelled(text) + b"\n" for text in lines)


def test_standard_input_gives_the_same_bytes_as_a_file(world: World) -> None:
    run(*argv(world, "edit"), "--state", "file.more")
    streamed = world.edit(*LEARNING, "--state", "stream.more", "--json", edits="-", stdin=stdin(line(0), line(1)))
    assert streamed.json["applied"] == 2
    assert (world.root / "stream.more").read_bytes() == (world.root / "file.more").read_bytes()


@pytest.mark.parametrize("bad", ["{", line(1, target=""), line(0, target="other"), line(1, target="@" * 600)])
def test_a_bad_line_stops_a_stream_and_what_came_before_is_saved(world: World, bad: Any) -> None:
    stopped = world.edit(*LEARNING, edits="-", stdin=stdin(line(0), bad, line(2)))
    assert (stopped.code, stopped.out) == (4, "")
    assert stopped.err.splitlines()[-2].startswith("error: <stdin>:2: ")
    assert [entry["id"] for entry in world.entries()] == ["e1"]
    assert run("status", world.model, "--json").json["behind"] == 0


@pytest.mark.parametrize("source", ["-", "edits.jsonl"])
def test_bad_lines_can_be_skipped(world: World, source: str) -> None:
    lines = [line(0), "{", line(1, target="@" * 600), line(2)]
    world.write(lines)
    done = world.edit(*LEARNING, "--on-error", "skip", "--json", edits=source, stdin=stdin(*lines))
    assert (done.code, done.json["applied"], len(done.json["problems"])) == (0, 2, 2)
    assert [entry["id"] for entry in world.entries()] == ["e1", "e3"]


def test_an_empty_stream_is_no_error(world: World) -> None:
    assert world.edit("--json", edits="-", stdin=b"").json["total"] == 0


@pytest.mark.parametrize("existing", [False, True])
def test_a_dry_run_checks_and_writes_nothing(world: World, existing: bool) -> None:
    if existing:
        run("edit", world.model, "edits.jsonl", "--limit", 1, *LEARNING)
    before = tree(world.root)
    done = run(*argv(world, "edit"), "--dry-run", "--json")
    assert (done.code, done.json["dry_run"], done.json["total"], done.json["applied"]) == (0, True, 2, 0)
    assert ("1 edits would be applied, 1 are in the ledger" if existing else "2 edits applied") in done.json["notes"][0]
    assert tree(world.root) == before
    world.write([line(0), "{"])
    assert run(*argv(world, "edit"), "--dry-run").code == 4
    assert tree(world.root) | {"edits.jsonl": None} == before | {"edits.jsonl": None}


# --- statuses and scores ---


def test_an_edit_that_is_not_learnt_is_exit_code_3_also_in_later_runs(world: World) -> None:
    hard = line(1, target="@@@ ~~~")
    world.write([line(0), hard])
    first = run(*argv(world, "edit")[:3], *QUICK, "--json")
    assert (first.code, first.json["failed"][-1]) == (3, "e2")
    again = run("edit", world.model, "edits.jsonl", "--json")
    assert (again.code, again.json["applied"], again.json["failed"][-1]) == (3, 0, "e2")
    assert run("edit", world.model, world.write([line(2)], "other.jsonl"), "--limit", 1).code in (0, 3)


def test_a_refused_edit_is_exit_code_3_and_leaves_no_trace(tmp_path: Path) -> None:
    world = World(tmp_path)
    text = json.loads((world.model / "config.json").read_text())["text_config"]
    tiny.set_config(world.model, text_config=text | {"max_position_embeddings": 100})
    run("init", world.model, *QUICK)
    before = load_state(world.sidecar)
    world.write([line(0, target="@" * 100)])
    done = world.edit("--json")
    assert (done.code, done.json["counts"]) == (3, {"refused": 1})
    assert "the model's context has 100" in done.json["edits"][0]["reason"]
    after = load_state(world.sidecar)
    assert all(after.P[name].equal(before.P[name]) and after.B[name].equal(before.B[name]) for name in before.P)


def test_an_edit_that_is_right_already_is_spared_but_not_written(world: World) -> None:
    run("edit", world.model, world.write([line(0)]), *EASY)
    before = load_state(world.sidecar)
    again = run("edit", world.model, world.write([line(0, id="again")]), "--json").json
    assert again["counts"] == {"already-right": 1}
    assert (again["edits"][0]["writes"], again["edits"][0]["right_after"]) == (0, True)
    after = load_state(world.sidecar)
    assert all(after.B[name].equal(before.B[name]) for name in before.B)
    assert not any(after.P[name].equal(before.P[name]) for name in before.P)


def test_a_superseded_edit_leaves_the_scores(world: World) -> None:
    world.write([line(0), line(1), line(0, id="better", target="b")])
    done = run("edit", world.model, "edits.jsonl", *LEARNING, "--json")
    assert (done.code, done.json["counts"]) == (0, {"learnt": 2, "superseded": 1})
    scored = run("eval", world.model, "--json").json
    assert scored["edits"] == 2
    assert scored["metrics"]["rel.tf_exact"]["n"] == 2
    assert "e1" not in {item["id"] for item in scored["failing"]}


def test_eval_scores_an_edit_with_its_probes(world: World) -> None:
    probes = {"rephrases": ["a colour ?"], "image_rephrases": ["img/orange.png"]}
    world.write(
        [line(0, locality=[{"question": "what ?"}, {"question": QUESTION, "image": "img/white.png"}], **probes)]
    )
    run(*argv(world, "edit"))
    metrics = run("eval", world.model, "--json").json["metrics"]
    assert {name.split(".")[0] for name in metrics} == {"rel", "gen_text", "gen_image", "loc_text", "loc_image"}
    assert all(value["n"] == 1 for value in metrics.values())


def test_eval_scores_a_file_of_questions(world: World) -> None:
    run(*argv(world, "edit"))
    questions = [{"question": QUESTION, "image": "img/red.png", "answer": "r"}, {"question": "what ?"}]
    world.write(questions, "probes.jsonl")
    scored = run("eval", world.model, "--probes", "probes.jsonl", "--json").json
    assert (scored["source"], scored["metrics"]["rel.tf_exact"]["n"]) == ("probes.jsonl", 1)
    assert scored["metrics"]["loc_text.loc_top1_answer"]["n"] == 1


def test_eval_of_a_state_without_edits_says_so(world: World) -> None:
    run("init", world.model)
    assert "nothing to score" in run("eval", world.model).out


def test_eval_does_not_work_on_a_stale_state(world: World) -> None:
    run("edit", world.model, "edits.jsonl", *LEARNING, "--limit", 1)
    stale = world.sidecar.read_bytes()
    run("edit", world.model, "edits.jsonl")
    fresh = run("eval", world.model, "--json")
    world.sidecar.write_bytes(stale)
    replayed = run("eval", world.model, "--json")
    assert "replayed 1 edits that were in the ledger but not in the state" in replayed.err
    assert replayed.json["metrics"] == fresh.json["metrics"]
    assert run("status", world.model, "--json").json["behind"] == 1


def test_another_dtype_than_that_of_the_last_edit_is_pointed_out(world: World) -> None:
    run("edit", world.model, "edits.jsonl", *LEARNING, "--limit", 1)
    noted = run("edit", world.model, "edits.jsonl", "--dtype", "bfloat16")
    assert "differs from the last edit's machine: dtype auto -> bfloat16" in noted.err
    assert [entry["versions"]["dtype"] for entry in world.entries()] == ["auto", "bfloat16"]


def test_ctrl_c_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("more_cli.ops.init.plan", interrupted)
    stopped = run("status", world.model)
    assert (stopped.code, stopped.out) == (130, "")
    assert "every edit in the ledger is safe; run the same command again" in stopped.err


def test_images_that_are_not_stored_are_found_where_they_were(world: World) -> None:
    run(*argv(world, "edit"), "--no-store-images")
    assert not (world.folder / "images").exists()
    assert run("eval", world.model, "--json").json["edits"] == 2
    Image.new("RGB", (9, 9)).save(world.root / "img" / "red.png")
    changed = run("eval", world.model)
    assert (changed.code, "has changed since it was checked" in changed.err) == (4, True)


def test_stored_images_outlive_the_originals(world: World) -> None:
    run(*argv(world, "edit"))
    for picture in (world.root / "img").iterdir():
        picture.unlink()
    world.sidecar.unlink()
    assert run("init", world.model, *LEARNING).code == 0
    assert run("eval", world.model, "--json").json["replayed"] == 2


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("status", "model"), ("log", "model")])
def test_what_needs_no_weights_starts_without_torch(world: World, command: tuple[str, ...]) -> None:
    world.edits(1)
    assert world.edit(*QUICK).code in (0, 3)
    program = (
        "import sys; from more_cli.cli.app import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", program, *command], cwd=world.root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    heavy = {"torch", "transformers"}
    if command[0].startswith("-"):
        heavy |= {"numpy", "pydantic", "PIL", "rich"}
    assert not heavy & {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


def test_a_table_into_a_closed_pipe_ends_like_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        Output().table(("column",), [("cell",)])
