"""The command line as a script sees it: exit code, standard output, standard error."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from PIL import Image

from more_cli import __version__
from more_cli.cli.app import app
from more_cli.cli.commands import PANELS, names, own_commands
from more_cli.cli.output import Output
from more_cli.recipe.files import load_recipe, shipped_recipes
from more_cli.store.state import load_state
from support import tiny
from support.helpers import LEARNING, QUESTION, QUICK, World, line, run, spelled, tree
from support.refused import assert_refused

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
        assert result.json["schema"] == f"more.{command}/{2 if command in ('edit', 'eval') else 1}"


def test_quiet_is_silent_and_keeps_json_and_errors(world: World) -> None:
    assert all((result.out, result.err) == ("", "") for result in in_order(world, "-q").values())
    assert run("status", world.model, "-q", "--json").json["edits"] == 2
    assert run("status", "nowhere", "-q").err.startswith("error: ")


def test_for_people_there_are_tables_without_escape_codes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "1")
    results = in_order(world)
    assert "wrote" in results["init"].out
    assert "2 applied, 0 skipped (already in the ledger); of this stream: 2 learnt" in results["edit"].out
    assert "edits       2 (2 learnt)\nledger      all in the state\n" in results["status"].out
    assert "rel.tf_exact" in results["eval"].out
    assert "merged 2 edits into out; all other bytes equal the base's" in results["merge"].out
    shown = [*results.values(), run("--help"), run("edit", "--help"), run("edit", "--nonsense")]
    assert not any("\x1b" in result.out + result.err for result in shown)


def test_the_demo_ends_with_its_variants_and_a_next_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of one edit in place of the demo's 24, in a folder whose name a shell would split."""
    from more_cli.demo import run as made
    from more_cli.model.machine import Machine
    from more_cli.ops.edit import EditReport
    from more_cli.ops.evaluate import evaluate_state
    from more_cli.store.ledger import Ledger
    from more_cli.store.status import Status
    from more_cli.store.target import locate

    run("edit", world.model, world.write([line(0, rephrases=["a colour ?"])]), *EASY)
    target = locate(world.model, None)
    edit = EditReport(target, entries=Ledger(world.folder).entries, statuses={"e1": Status.LEARNT})
    merge = SimpleNamespace(verification=None, out=world.root)
    report = made.DemoReport(world.root / "my demo", None, edit, evaluate_state(target, Machine()), merge, 1.0)
    monkeypatch.setattr(made, "run_demo", lambda *_, **__: report)
    lines = run("demo", world.root / "my demo").out.splitlines()
    held = "1 of 1 right when applied; 1 of 1 still holds after all 1; [01] of 1 in other words"
    assert any(re.fullmatch(held, row) for row in lines)
    metrics = [row.split()[0] for row in lines if row.startswith(("rel.", "gen_", "loc_"))]
    assert metrics == ["rel.gen_exact", "gen_text.gen_exact"]
    assert lines[-1] == (
        f"next: more eval '{world.root}/my demo/llava' --report demo.html shows every answer; "
        "docs/tutorial.md corrects your own model"
    )


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


def headings(text: str) -> dict[str, list[str]]:
    """Return the first words of the lines below each heading of a help text."""
    found: dict[str, list[str]] = {}
    for row in text.partition("\n  `more help")[0].splitlines():
        if row.endswith(":") and not row.startswith(" "):
            found[row[:-1]] = []
        elif found and row.startswith("  ") and row[2:3] not in ("", " "):
            found[next(reversed(found))].append(row.split()[0].rstrip(","))
    return found


def test_commands_are_grouped_by_what_one_wants() -> None:
    groups = headings(run("--help").out)
    assert list(groups) == [*PANELS, "Laboratory", "Options"]
    assert {panel: groups[panel] for panel in PANELS} == {panel: [*listed] for panel, listed in PANELS.items()}
    assert groups["Laboratory"] == [name for name in names() if name not in own_commands()]


def test_options_of_eval_are_grouped_by_what_they_belong_to() -> None:
    groups = headings(run("eval", "--help").out)
    assert list(groups) == [
        *("Arguments", "State", "Report and gates", "A suite", "Recipe"),
        *("Images", "The hub", "Where it runs", "Output"),
    ]
    assert groups["State"] == ["--probes", "--state"]
    assert {"--gate", "--report", "--junit"} <= set(groups["Report and gates"])
    assert groups["Where it runs"] == ["--device", "--dtype", "--attention", "--device-map", "--memory"]
    assert groups["Output"] == ["--json", "-q", "-v", "-h"]
    assert list(headings(run("gc", "--help").out)) == ["Arguments", "Options"]


def leaves(group: Any, *words: str) -> Iterator[Any]:
    """Yield every command with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *words, name)
        else:
            yield (*words, name), command


def test_help_names_every_value_in_a_plain_word() -> None:
    for words, command in leaves(typer.main.get_command(app)):
        shown = run(*words, "--help")
        assert (shown.code, shown.err) == (0, ""), words
        usage = " ".join(shown.out.partition("\n\n")[0].split())
        assert usage.startswith(f"Usage: more {' '.join(words)} [OPTIONS]")
        assert not any(sign in usage for sign in ("[[", "]]", "{", "<")), usage
        signs = "range>", "<path>", "<str>", "<int", "<float", "<list", "x>="
        assert [sign for sign in signs if sign in shown.out] == [], words
        values = [each for each in command.params if not getattr(each, "is_flag", False) and each.name != "verbose"]
        assert [each.name for each in values if not each.metavar] == [], words


def test_required_and_optional_arguments_in_a_usage_line() -> None:
    assert run("merge", "--help").out.startswith("Usage: more merge [OPTIONS] [MODEL] -o DIR\n")
    assert run("init", "--help").out.startswith("Usage: more init [OPTIONS] MODEL [EDITS|FOLDER]\n")
    assert run("compare", "--help").out.startswith("Usage: more compare [OPTIONS] [EDITOR]...\n")


def test_exit_codes_are_a_topic_of_help_and_in_no_other_help() -> None:
    assert run("--help").out.rstrip().endswith("`more help exit-codes` says what each exit code means.")
    shown = run("help", "exit-codes")
    assert shown.code == 0
    assert [row.split()[0] for row in shown.out.splitlines() if row[0] != " "] == [*"01234567", "130"]
    assert re.search(r"^5 +the model or the state cannot be used, or", shown.out, re.MULTILINE)
    helps = [run(*words, "--help").out for words, _ in leaves(typer.main.get_command(app))]
    assert not any("xit code" in text.partition("Examples:")[0].replace("or the exit codes", "") for text in helps)


def test_help_shows_what_the_option_shows() -> None:
    for words in ((), ("edit",), ("log", "show")):
        assert run("help", *words) == run(*words, "--help")
    assert_refused(run("help", "exit-code"), 2, "no command and no topic `exit-code`", "did you mean `exit-codes`?")
    assert_refused(run("help", "edti"), 2, "did you mean `edit`?")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("more re", {"rebase", "recipes", "reproduce", "revert", "review"}),
        ("more log ", {"list", "show"}),
        ("more log model --stat", {"--state", "--status"}),
        ("more recipes sh", {"show"}),
        ("more edit --on-error s", {"stop", "skip"}),
    ],
)
def test_shells_complete_commands_options_and_values(typed: str, expected: set[str]) -> None:
    asked = {"_MORE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "more_cli"], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected


def test_recipes_are_listed() -> None:
    listed = run("recipes", "list", "--json").json
    assert listed["schema"] == "more.recipes.list/1"
    assert {recipe["name"]: recipe["model_types"] for recipe in listed["recipes"]} == {
        name: list(load_recipe(name).backbones) for name in shipped_recipes()
    }
    assert all(recipe["description"] for recipe in listed["recipes"])
    shown = run("recipes", "list").out
    assert all(name in shown for name in shipped_recipes())


def test_a_recipe_is_shown_with_what_it_extends_and_with_settings(world: World) -> None:
    Path("own.toml").write_text('extends = "default"\nmargin = 3.5\n')
    shown = run("recipes", "show", "own.toml", "--set", "rehearsal.size=5", "--json").json
    assert (shown["schema"], shown["name"]) == ("more.recipes.show/1", "own")
    values = {key["key"]: key["value"] for key in shown["keys"]}
    assert (values["margin"], values["rehearsal.size"], values["top_k"]) == (3.5, 5, None)
    assert values["default.lambda_rel"] == load_recipe("default").default.ridge_rel
    text = run("recipes", "show", "own.toml").out
    assert "\nmargin = 3.5\n    Logits, > 0, by which every target token must lead the best other token" in text
    assert "\ntop_k is not set\n" in text
    bad = run("recipes", "show", "default", "--set", "eta=1")
    assert (bad.code, bad.err.splitlines()[0]) == (2, "error: recipe `default`: there is no key `eta`")


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


@pytest.mark.skipif(os.name == "nt", reason="a folder in use cannot be removed there")
def test_a_current_folder_that_has_been_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = world.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert_refused(run("status", world.model.absolute()), 2, "the current folder has been removed", "cd DIR")


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
    assert "projector" in shown.out
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


@pytest.mark.parametrize("data", ['[{"question": "q?", "target": "x"},]', "", "\ufeff{}".encode("utf-16")], ids=str)
def test_a_file_of_which_nothing_can_be_read_is_no_bad_line(world: World, data: str | bytes) -> None:
    file = world.root / "edits.jsonl"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    done = world.edit(*LEARNING, "--on-error", "skip", "--json")
    assert (done.code, done.out) == (4, "")
    assert str(file) in done.err.splitlines()[0]
    assert not world.sidecar.exists()


def test_an_empty_stream_is_no_error(world: World) -> None:
    assert world.edit("--json", edits="-", stdin=b"").json["total"] == 0


@pytest.mark.parametrize("existing", [False, True])
def test_a_dry_run_checks_and_writes_nothing(world: World, existing: bool) -> None:
    if existing:
        run("edit", world.model, "edits.jsonl", "--limit", 1, *LEARNING)
    before = tree(world.root)
    done = run(*argv(world, "edit"), "--dry-run", "--json")
    assert (done.code, done.json["dry_run"], done.json["total"], done.json["applied"]) == (0, True, 2, 0)
    assert ("1 edit would be applied, 1 is in the ledger" if existing else "2 edits applied") in done.json["notes"][0]
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
    corrected = world.write([line(0), line(1), line(0, id="better", target="b")])
    done = world.edit(*LEARNING, "--json", edits="-", stdin=corrected.read_bytes())
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
    assert "replayed 1 ledger line that was not in the state" in replayed.err
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

    monkeypatch.setattr("more_cli.ops.plan.plan", interrupted)
    stopped = run("status", world.model)
    assert (stopped.code, stopped.out) == (130, "")
    assert "what was saved so far is kept; run the same command again" in stopped.err


def test_images_that_are_not_stored_are_found_where_they_were(world: World) -> None:
    run(*argv(world, "edit"), "--no-store-images")
    assert not (world.folder / "images").exists()
    assert run("eval", world.model, "--json").json["edits"] == 2
    Image.new("RGB", (9, 9)).save(world.root / "img" / "red.png")
    changed = run("eval", world.model)
    assert (changed.code, "has changed since it was checked" in changed.err) == (4, True)
    (world.root / "img" / "red.png").unlink()
    gone = run("eval", world.model)
    assert gone.code == 4
    assert "red.png`\nhint: put the original back" in gone.err


def test_stored_images_outlive_the_originals(world: World) -> None:
    run(*argv(world, "edit"))
    for picture in (world.root / "img").iterdir():
        picture.unlink()
    world.sidecar.unlink()
    assert run("init", world.model, *LEARNING).code == 0
    assert run("eval", world.model, "--json").json["replayed"] == 2


@pytest.mark.parametrize(
    "command", [("--help",), ("--version",), ("status", "model"), ("log", "model"), ("recipes", "show", "default")]
)
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
