"""`more.toml`: values for what neither an option nor the environment says, and where each setting comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from more_cli.cli.app import main
from support.helpers import QUICK, World, line, run, run_as_typed, tree

KEYS = ["model", "state", "recipe", "gates", "anchors", "device"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A model with a state of two edits, and a named one of three."""
    world = World(tmp_path_factory.mktemp("project"), text_layers=1)
    world.edit(*QUICK, edits=world.write([line(0), line(1)]))
    run("switch", world.model, "ann", "--create")
    world.edit(edits=world.write([line(2)], "more.jsonl"))
    run("switch", world.model, "main")
    return world


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    return made.copy(tmp_path / "home")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: another folder than the model's."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def project(folder: Path, text: str) -> Path:
    path = folder / "more.toml"
    path.write_text(text)
    return path


def settings(*words: object) -> dict[str, tuple[object, str, str]]:
    """Value, origin and place of every setting."""
    found = run("status", *words, "--settings", "--json").json["settings"]
    assert [each["key"] for each in found] == KEYS
    return {each["key"]: (each["value"], each["origin"], each["place"]) for each in found}


def asked(*words: object) -> int:
    return int(run("status", *words, "--json").json["asked"])


def test_without_a_file_all_is_default(world: World, elsewhere: Path) -> None:
    assert settings() == {
        "model": (None, "default", ""), "state": (None, "default", ""), "recipe": (None, "default", ""),
        "gates": ([], "default", ""), "anchors": (None, "default", ""), "device": ("cpu", "default", ""),
    }  # fmt: skip
    (world.root / "model.more.current").unlink()
    assert settings(world.model)["state"] == (str(world.sidecar), "default", "")


def test_a_file_in_the_working_directory_names_model_and_state(world: World, elsewhere: Path) -> None:
    file = project(elsewhere, '# ours\nmodel = "../home/model"\n\nstate = "../home/model.ann.more"\n')
    assert asked() == 3
    assert settings()["model"] == ("../home/model", "file", "more.toml:2")
    assert settings()["state"] == ("../home/model.ann.more", "file", "more.toml:4")
    shown = run("status", "--settings").out.splitlines()
    assert shown[0].split() == ["setting", "value", "from"]
    assert shown[2].split() == ["state", "../home/model.ann.more", "file", "more.toml:4"]
    assert asked("--state", world.sidecar) == 2
    assert file.exists()


def test_a_file_beside_the_model_counts_wherever_one_is(world: World, elsewhere: Path) -> None:
    file = project(world.root, 'state = "model.ann.more"\ndevice = "cpu"\n')
    assert asked(world.model) == 3
    assert settings(world.model)["state"] == (str(world.root / "model.ann.more"), "file", f"{file}:1")
    assert settings(world.model)["device"] == ("cpu", "file", f"{file}:2")


def test_the_working_directory_comes_before_the_models_folder_key_by_key(world: World, elsewhere: Path) -> None:
    beside = project(world.root, 'state = "model.ann.more"\nanchors = "a.jsonl"\n')
    project(elsewhere, 'state = "../home/model.more"\n')
    found = settings(world.model)
    assert found["state"][1:] == ("file", "more.toml:1")
    assert found["anchors"] == (str(world.root / "a.jsonl"), "file", f"{beside}:2")
    assert asked(world.model) == 2


def test_option_environment_file_switch(world: World, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("switch", world.model, "ann")
    current = world.root / "model.more.current"
    assert settings(world.model)["state"] == (str(world.root / "model.ann.more"), "switch", str(current))
    project(world.root, 'state = "model.more"\ndevice = "cpu"\n')
    assert asked(world.model) == 2
    monkeypatch.setenv("MORE_STATE", str(world.root / "model.ann.more"))
    monkeypatch.setenv("MORE_DEVICE", "cpu")
    found = settings(world.model)
    assert (found["state"][1:], found["device"][1:]) == (("environment", "MORE_STATE"), ("environment", "MORE_DEVICE"))
    assert asked(world.model) == 3
    found = settings(world.model, "--state", world.sidecar, "--device", "cpu")
    assert (found["state"][1:], found["device"][1:]) == (("flag", "--state"), ("flag", "--device"))
    assert found["model"] == (str(world.model), "flag", "MODEL")


def test_a_file_about_another_model_is_not_used(world: World, elsewhere: Path) -> None:
    other = World(elsewhere / "other", text_layers=1)
    project(elsewhere, 'model = "../home/model"\nstate = "../home/model.ann.more"\nrecipe = "paper-llava"\n')
    assert settings(other.model)["state"] == (str(other.sidecar), "default", "")
    assert settings(other.model)["recipe"] == (None, "default", "")
    assert run("status", other.model).out.startswith("no state yet; ")


def test_model_can_be_left_out_where_the_file_names_it(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'model = "../home/model"\n')
    edits = world.write([line(3)], "further.jsonl")
    assert run("edit", edits, *QUICK).code == 3
    assert run("log", "--json").json["lines"][-1]["id"] == "e4"
    assert run("revert", "e4").code == 0
    assert run("switch", "ann").code == 0
    assert asked() == 3
    assert run("edit", "--retry", "e3").code == 3
    assert run("edit", "--help").out.startswith("Usage: more edit ")
    (world.root / "model.more").unlink()
    run("switch", "main")
    assert run("init", *QUICK).out.startswith(f"wrote {world.sidecar}")


def test_hints_follow_the_file(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'model = "../home/model"\nstate = "../home/model.ann.more"\n')
    edits = world.write([line(3)], "further.jsonl")
    named = run("edit", edits).err
    assert "next: more edit ../home/model --retry" in named
    other = run("edit", "--state", world.sidecar, edits).err
    assert f"next: more edit ../home/model --state {world.sidecar} --retry" in other


def test_switch_and_status_say_that_the_file_comes_first(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'model = "../home/model"\nstate = "../home/model.ann.more"\n')
    done = run("switch", "main")
    assert "note: as long as more.toml:2 names `../home/model.ann.more`, commands use that" in done.err
    assert "name        ann, in use\n" in run("status").out
    assert "name        main; in use is ann\n" in run("status", "--state", world.sidecar).out


def fresh(tmp_path: Path) -> World:
    return World(tmp_path / "fresh", text_layers=1)


def test_recipe_and_anchors_are_those_of_a_new_state(tmp_path: Path, elsewhere: Path) -> None:
    world = fresh(tmp_path)
    (world.root / "own.toml").write_text('extends = "default"\nmax_steps = 1\nlast = 1\nanchors.prompts = []\n')
    anchors = world.root / "anchors.jsonl"
    anchors.write_text(json.dumps({"question": "is it big ?", "image": "img/black.png", "answer": "x"}) + "\n")
    project(world.root, 'recipe = "own.toml"\nanchors = "anchors.jsonl"\n')
    stream = world.write([line(0)])
    assert main(["edit", str(world.model), str(stream), "-q"]) == 3
    found = run("status", world.model, "--json").json
    assert (found["recipe"]["name"], found["recipe"]["max_steps"]) == ("own", 1)
    held = run("anchors", "list", world.model, "--json").json["anchors"]
    assert held[0]["question"] == "is it big ?"
    made = world.root / "made.more"
    assert main(["init", str(world.model), "--state", str(made), "-q"]) == 0
    assert [
        run("anchors", "list", world.model, "--state", state, "--json").json["anchors"][0]["question"]
        for state in (made, world.sidecar)
    ] == ["is it big ?"] * 2
    none = world.root / "none.more"
    assert main(["edit", str(world.model), str(stream), "-q", "--state", str(none), "--no-anchors"]) == 3
    assert run("status", world.model, "--state", none, "--json").json["anchors"] == 0
    typed = world.root / "typed.more"
    assert run("init", world.model, "--state", typed, "--recipe", "paper-llava", "--no-anchors").code == 0
    assert run("status", world.model, "--state", typed, "--json").json["recipe"]["name"] == "paper-llava"


@pytest.mark.parametrize("words", [(), ("--estimate",)])
def test_status_shows_the_plan_of_the_recipe_that_init_would_use(
    world: World, elsewhere: Path, words: tuple[str, ...]
) -> None:
    state = ("--state", world.root / "new.more")
    project(elsewhere, 'recipe = "paper-llava"\n')
    planned = run("status", world.model, *state, *words, "--json").json
    assert planned["recipe"]["name"] == "paper-llava"
    assert run("init", world.model, *state).code == 0
    made = run("status", world.model, *state, "--json").json
    assert [site["name"] for site in planned["sites"]] == [site["name"] for site in made["sites"]]


def test_a_retry_without_a_state_takes_no_recipe_of_the_file(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'recipe = "paper-llava"\nanchors = "no.jsonl"\n')
    refused = run("edit", world.model, "--retry", "--state", world.root / "new.more")
    assert refused.code == 5
    assert "no state at" in refused.err


def test_a_state_that_exists_keeps_its_recipe(world: World, elsewhere: Path) -> None:
    project(world.root, 'recipe = "paper-llava"\n')
    assert run("status", world.model, "--json").json["recipe"]["name"] != "paper-llava"
    assert world.edit(edits=world.write([line(3)], "further.jsonl")).code == 3


def test_gates_are_those_of_eval_unless_some_are_typed(world: World, elsewhere: Path) -> None:
    project(world.root, 'gates = ["rel.gen_exact>=0.9", "rel.tf_exact>=0.0"]\n')
    missed = run("eval", world.model)
    assert missed.code == 6
    assert "gate missed: rel.gen_exact>=0.9" in missed.err
    assert run("eval", world.model, "--gate", "rel.gen_exact>=0").code == 0
    probes = world.root / "probes.jsonl"
    probes.write_text(json.dumps({"question": "is it ?", "image": "img/red.png"}) + "\n")
    assert run("eval", world.model, "--probes", probes).code == 0


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('model = "m"\nstat = "x"\n', "more.toml:2: there is no key `stat`", "did you mean `state`?"),
        (
            "zzz = 1\n",
            "more.toml:1: there is no key `zzz`",
            "its keys are model, state, recipe, gates, anchors, device\n",
        ),
        ("\n\n[recipe]\nrank = 4\n", "more.toml:3: `recipe` cannot be a table", "it takes the name of a recipe"),
        ("device = 1\n", "more.toml:1: `device` cannot be `1`", "it takes the name of a device"),
        ('state = ""\n', "more.toml:1: `state` cannot be empty", "it takes the path of a state"),
        ('gates = "rel>=1"\n', "more.toml:1: `gates` cannot be `rel>=1`", 'it takes a list of gates, such as ["rel'),
        ("gates = [1]\n", "more.toml:1: `gates` cannot be `[1]`", "it takes a list of gates"),
        ('model = "a\\u0000b"\n', "more.toml:1: `model`: text holds a control character", "it takes the path"),
        ("model = \n", "more.toml:1: not TOML: invalid value, column 9", "its keys are"),
        ('model = "a"\nmodel = "b"\n', "more.toml:2: not TOML: cannot overwrite a value", "its keys are"),
        ('model = "a"\ngates = ["b"\n\n', "more.toml:2: not TOML: unclosed array, at the end of", "its keys are"),
        ("a = " + "[" * 3000 + "]" * 3000, "more.toml: nested too deeply", "its keys are"),
        (".".join(["a"] * 600) + " = 1", "more.toml: has more than 500 dots in a line", "its keys are"),
        ("a = " + "9" * 5000, "more.toml: holds a whole number of more than 64 bits", "its keys are"),
        ("#" * 70_000, "more.toml: larger than 64 KiB", "its keys are"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_line(elsewhere: Path, text: str, said: str, hint: str) -> None:
    project(elsewhere, text)
    before = tree(elsewhere)
    for words in (["status", "--settings"], ["status"]):
        refused = run(*words)
        assert refused.code == 2, words
        error, _, shown = refused.err.partition("\nhint: ")
        assert error.startswith(f"error: {said}"), error
        assert hint in shown
    assert tree(elsewhere) == before


def test_all_problems_are_named(elsewhere: Path) -> None:
    project(elsewhere, 'stat = "x"\ndevice = 1\n')
    assert run("status").err.count("error: more.toml:") == 2


def test_bytes_that_are_no_text_and_what_is_no_file(elsewhere: Path) -> None:
    (elsewhere / "more.toml").write_bytes(b"model = '\xff'\n")
    assert "error: more.toml: not UTF-8\n" in run("status").err
    (elsewhere / "more.toml").unlink()
    os.mkfifo(elsewhere / "more.toml")
    assert "no model named" in run("status").err, "a pipe is not read"


def test_a_byte_order_mark_and_windows_lines_are_read(world: World, elsewhere: Path) -> None:
    (elsewhere / "more.toml").write_bytes(b"\xef\xbb\xbfmodel = '../home/model'\r\ndevice = 'cpu'\r\n")
    assert settings()["device"] == ("cpu", "file", "more.toml:2")


@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        ('device = "gpu9"\n', ("status",), "more.toml:1: `--device gpu9` cannot be used"),
        ('\ngates = ["rel.gen_exac>=1"]\n', ("eval",), "more.toml:2: `--gate rel.gen_exac>=1`: there is no metric"),
        ('recipe = "paper-lava"\n', ("init", "--state", "new.more"), "more.toml:1: no recipe `paper-lava`"),
        ('\nrecipe = "papr-llava"\n', ("status", "--state", "new.more"), "more.toml:2: no recipe `papr-llava`"),
        ('recipe = "own.toml"\n', ("init", "--state", "new.more"), "more.toml:1: no recipe `"),
    ],
)
def test_a_value_that_cannot_be_used_is_blamed_on_the_file(
    world: World, elsewhere: Path, text: str, command: tuple[str, ...], said: str
) -> None:
    project(elsewhere, text)
    refused = run(command[0], world.model, *command[1:])
    assert refused.code == 2
    assert f"error: {said}" in refused.err
    assert "hint: " in refused.err


def test_a_device_that_cannot_be_used_is_blamed_on_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MORE_DEVICE", "gpu9")
    assert "error: `MORE_DEVICE=gpu9` cannot be used: " in run("status", world.model).err
    assert "error: `--device gpu8` cannot be used: " in run("status", world.model, "--device", "gpu8").err


@pytest.mark.parametrize("words", [("init",), ("edit", "e.jsonl")])
def test_anchors_that_are_not_there_are_blamed_on_the_file(
    world: World, elsewhere: Path, words: tuple[str, ...]
) -> None:
    project(elsewhere, '\nanchors = "no.jsonl"\n')
    refused = run_as_typed(words[0], world.model, *words[1:], "--state", "new.more")
    assert (refused.code, refused.err.splitlines()[0]) == (4, "error: more.toml:2: file not found: `no.jsonl`")


@pytest.mark.parametrize("words", [("init",), ("edit",), ("edit", "--dry-run")])
def test_anchors_that_the_recipe_does_not_use_are_blamed_on_the_file(
    world: World, elsewhere: Path, words: tuple[str, ...]
) -> None:
    (elsewhere / "anchors.jsonl").write_text(json.dumps({"question": "is it big ?"}) + "\n")
    project(elsewhere, 'recipe = "paper-llava"\nanchors = "anchors.jsonl"\n')
    edits = (world.write([line(0)]),) if words[0] == "edit" else ()
    state = ("--state", world.root / "new.more")
    refused = run_as_typed(words[0], world.model, *edits, *words[1:], *state)
    assert (refused.code, refused.err.splitlines()) == (
        2,
        [
            "error: more.toml:2: recipe `paper-llava` does not use anchors",
            "hint: remove `anchors` there, or add --no-anchors",
        ],
    )
    assert run_as_typed(words[0], world.model, *edits, *words[1:], *state, "--no-anchors").code in (0, 3)


@pytest.mark.parametrize("command", [("status",), ("init",), ("edit", "e.jsonl"), ("log",)])
def test_a_checkpoint_that_is_not_there_is_blamed_on_the_file(elsewhere: Path, command: tuple[str, ...]) -> None:
    project(elsewhere, '\nmodel = "llavaa"\n')
    refused = run(*command)
    assert (refused.code, refused.err.splitlines()[0]) == (5, "error: more.toml:2: llavaa: no such directory")


def test_what_was_typed_takes_the_place_of_a_value_that_cannot_be_used(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'device = "gpu9"\n')
    assert run("status", world.model, "--device", "cpu").code == 0


def test_help_says_where_a_model_that_is_left_out_comes_from() -> None:
    for words in (["revert"], ["rebase"], ["log", "show"], ["status"]):
        said = " ".join(run(*words, "--help").out.split())
        assert "[default: that of more.toml, or the model of the only `*.more` file in this folder]" in said, words


def test_help_reads_no_file_and_no_toml(elsewhere: Path) -> None:
    project(elsewhere, "not toml at all")
    code = (
        "import sys\nfrom more_cli.cli.app import main\n"
        "assert [main([*words, '--help']) for words in ([], ['edit'], ['status'])] == [0, 0, 0]\n"
        "assert 'tomllib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert run("--version").code == 0


def test_the_python_interface_reads_no_file(world: World, elsewhere: Path) -> None:
    from more_cli.api import open_model

    project(elsewhere, 'state = "../home/model.ann.more"\n')
    with open_model(world.model) as model:
        assert model.state.target.sidecar == world.sidecar.resolve()


def test_the_shell_completes_beside_a_bad_file(world: World, elsewhere: Path) -> None:
    from more_cli.cli import completion

    project(elsewhere, "nothing")

    class Typed:
        params = {"words": ()}  # noqa: RUF012

    assert completion.states(Typed(), "") == []  # type: ignore[arg-type]


def test_the_embedded_model_does_not_take_the_place_of_the_files(world: World, elsewhere: Path) -> None:
    project(elsewhere, 'model = "../home/model"\n')
    asked_it = run("ask", "what colour is it ?", "--image", world.root / "img" / "red.png")
    assert asked_it.code == 0
    assert "embedded" not in asked_it.err
