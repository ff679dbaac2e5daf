"""`more switch`: states by name beside a model, one of which commands use."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from more_cli.api import open_model
from more_cli.cli import completion
from more_cli.errors import StateError
from more_cli.ops import push, shared
from more_cli.ops import switch as switch_module
from more_cli.ops.switch import listed
from more_cli.options import PushOptions
from more_cli.store.ledger import Ledger
from support.disk import DISK
from support.helpers import QUICK, Result, World, cut_short, forks, line, run, tree
from support.refused import assert_refused

LINES = [line(number) for number in range(3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A model with a state of two edits."""
    world = World(tmp_path_factory.mktemp("switch"), text_layers=1)
    world.edit(*QUICK, edits=world.write(LINES[:2]))
    return world


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    return made.copy(tmp_path)


def switch(world: World, *words: object) -> Result:
    return run("switch", world.model, *words)


def state(world: World, name: str) -> Path:
    return world.root / f"model.{name}.more"


def edits_of(world: World, *options: object) -> int:
    return int(run("status", world.model, *options, "--json").json["asked"])


def test_a_link_that_leads_nowhere_makes_no_state(world: World, tmp_path: Path) -> None:
    state(world, "ann").symlink_to(tmp_path / "unmounted" / "s.more")
    refused = switch(world, "ann", "--create")
    assert_refused(refused, 5, "model.ann.more` is a link to `", "which is not there")
    assert not (tmp_path / "unmounted").exists()


def test_a_new_state_is_a_copy_and_commands_use_it(world: World) -> None:
    done = switch(world, "ann", "--create")
    assert (done.code, done.out) == (0, "state ann is made and in use: model.ann.more, 2 edits\n")
    assert state(world, "ann").read_bytes() == world.sidecar.read_bytes()
    before = tree(world.root / "model.more.d"), world.sidecar.read_bytes()
    assert world.edit(edits=world.write(LINES[2:], "more.jsonl")).code == 3
    assert (edits_of(world), edits_of(world, "--state", world.sidecar)) == (3, 2)
    assert (tree(world.root / "model.more.d"), world.sidecar.read_bytes()) == before
    assert run("verify", world.model, "--deep").code == 0
    assert switch(world, "main").out == "state main is in use: model.more, 2 edits\n"
    assert edits_of(world) == 2


def test_the_list_says_which_is_in_use_and_how_many_edits_each_has(world: World) -> None:
    switch(world, "ann", "-c")
    world.edit(edits=world.write(LINES[2:], "more.jsonl"))
    switch(world, "bob", "-c")
    run("revert", world.model, "e1", "--state", state(world, "ann"))
    for words in ((), ("--list",)):
        shown = [row.split() for row in switch(world, *words).out.splitlines()]
        assert shown[0] == ["state", "edits", "failed", "file"]
        assert [row[:-1] for row in shown[1:]] == [["main", "2", "2"], ["ann", "2", "2"], ["*", "bob", "3", "3"]]
    found = switch(world, "--json").json
    assert (found["current"], found["created"]) == ("bob", False)
    assert [(each["name"], each["current"]) for each in found["states"]] == [
        ("main", False), ("ann", False), ("bob", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "read"),
    [
        (switch_module, lambda world: listed(world.model).states[0].problem),
        (shared, lambda world: shared.SourceState(world.sidecar, 0).path is None),
        (push, lambda world: push.plan(world.sidecar, "me/state", PushOptions()).files == {}),
    ],
)
def test_an_edit_that_comes_while_a_state_is_read_is_no_damage(
    world: World, monkeypatch: pytest.MonkeyPatch, module: Any, read: Callable[[World], object]
) -> None:
    def then_edited(*args: Any) -> Ledger:
        ledger = Ledger(*args)
        assert world.edit(edits=world.write(LINES[2:], "more.jsonl")).code == 3
        return ledger

    monkeypatch.setattr(module, "Ledger", then_edited)
    assert not read(world)


def test_a_damaged_state_is_listed_as_such_and_the_others_are_too(world: World) -> None:
    switch(world, "ann", "-c")
    state(world, "ann").write_bytes(b"nothing")
    found = switch(world, "--json").json["states"]
    assert [(each["name"], each["edits"]) for each in found] == [("main", 2), ("ann", None)]
    assert "is damaged" in found[1]["problem"]


def test_images_are_shared_and_a_ledger_is_not(world: World) -> None:
    switch(world, "ann", "-c")
    for path in (world.folder / "images").iterdir():
        assert path.samefile(world.root / "model.ann.more.d" / "images" / path.name)
    assert not (world.folder / "ledger.jsonl").samefile(world.root / "model.ann.more.d" / "ledger.jsonl")
    assert run("gc", world.model).code == 0
    shutil.rmtree(world.folder)
    assert run("verify", world.model, "--deep").code == 0, "the copy stands on its own"


def test_without_links_images_are_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert switch(world, "ann", "-c").code == 0
    assert run("verify", world.model, "--deep").code == 0


def test_a_folder_without_a_checkpoint_has_no_states(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for words in (("main",), ()):
        refused = run("switch", tmp_path / "photos", *words)
        assert refused.code == 5
        assert f"error: {tmp_path / 'photos'}: an empty directory" in refused.err
    assert tree(tmp_path) == {"photos": None}


def test_a_named_state_comes_before_the_one_in_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(world, "ann", "-c")
    world.edit(edits=world.write(LINES[2:], "more.jsonl"))
    monkeypatch.setenv("MORE_STATE", str(world.sidecar))
    assert edits_of(world) == 2
    assert edits_of(world, "--state", state(world, "ann")) == 3
    done = switch(world, "main")
    assert f"note: as long as MORE_STATE names `{world.sidecar}`, commands use that" in done.err


def test_status_says_which_state_is_in_use(world: World) -> None:
    assert "\nname " not in run("status", world.model).out
    switch(world, "ann", "-c")
    assert "name        ann, in use\n" in run("status", world.model).out
    other = run("status", world.model, "--state", world.sidecar)
    assert "name        main; in use is ann\n" in other.out
    found = run("status", world.model, "--state", world.sidecar, "--json").json
    assert (found["name"], found["current"]) == ("main", "ann")


def test_hints_name_a_state_only_where_it_is_not_the_one_in_use(world: World) -> None:
    switch(world, "ann", "-c")
    more = world.write(LINES[2:], "more.jsonl")
    assert f"next: more edit {world.model} --retry\n" in world.edit(edits=more).err
    assert f"--state {world.sidecar} --retry\n" in world.edit("--state", world.sidecar, edits=more).err


def test_here_is_the_model_of_all_states_in_this_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    assert run("switch", "ann", "--create").code == 0
    assert run("status", "--json").json["state"] == str(state(world, "ann"))
    assert run("switch", "main").code == 0
    assert run("status", "--json").json["state"] == str(world.sidecar)
    world.sidecar.unlink()
    (world.root / "model.more.current").unlink()
    assert run("status", "--json").json["state"] == "model.ann.more", "the only one"


def test_python_uses_it_too(world: World) -> None:
    switch(world, "ann", "-c")
    with open_model(world.model) as model:
        assert model.state.target.sidecar == state(world, "ann")


def test_a_state_of_a_state(world: World) -> None:
    switch(world, "ann", "-c")
    world.edit(edits=world.write(LINES[2:], "more.jsonl"))
    assert switch(world, "bob", "-c", "--state", world.sidecar).code == 0
    assert edits_of(world) == 2
    switch(world, "ann")
    switch(world, "carl", "-c")
    assert edits_of(world) == 3


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (("an",), 2, "has no state `an`", "did you mean `ann`? `more switch {model} --list` lists them"),
        (("zz/top",), 2, "has no state `zz/top`", "`more switch {model} --list` lists them\n"),
        (("ann", "-c"), 2, "has a state `ann` already", "more switch {model} ann"),
        (("../ann", "-c"), 2, "`../ann` cannot name a state", "letters, digits"),
        (("ann.more", "-c"), 2, "`ann.more` cannot name a state", "does not end in .more"),
        (("v2", "-c"), 2, "`model.v2.more` is the state of the checkpoint", "take another name"),
        (("--create",), 2, "`--create` needs the name", "more switch MODEL NAME --create"),
        (("--list", "ann"), 2, "`--list` goes with no name", "more switch {model} --list"),
        (("main", "--state", "ann"), 2, "`--state` goes with `--create`", "MODEL NAME --create --state ann"),
        (("--list", "--state", "ann"), 2, "`--state` goes with `--create`", "leave it out"),
        (("a", "b"), 2, "one name at a time, not 2", "more switch MODEL NAME"),
    ],
)
def test_refusals(world: World, words: tuple[str, ...], code: int, said: str, hint: str) -> None:
    switch(world, "ann", "-c")
    shutil.copytree(world.model, world.root / "model.v2")
    before = tree(world.root)
    refused = switch(world, *words)
    assert refused.code == code
    error, _, shown = refused.err.partition("\nhint: ")
    assert said in error
    assert hint.format(model=world.model) in shown
    assert error.startswith("error: ")
    assert "\n" not in error
    assert tree(world.root) == before
    if words[0] == "v2":
        assert said in run("edit", world.model, world.write(LINES), "--state", "v2").err


def test_where_there_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (run("switch").code, run("switch", "ann").code) == (2, 2)
    gone = run("switch", "gone", "ann")
    assert (gone.code, "gone: no such directory" in gone.err) == (5, True)


def test_a_state_that_is_not_there_any_more_is_named(world: World) -> None:
    switch(world, "ann", "-c")
    state(world, "ann").unlink()
    for command in (("status",), ("edit",), ("log",)):
        refused = run(*command, world.model, *([world.write(LINES, "again.jsonl")] if command == ("edit",) else []))
        assert refused.code == 5
        assert "says `ann`, and there is no state" in refused.err
    assert not state(world, "ann").exists()
    assert edits_of(world, "--state", world.sidecar) == 2, "a state that is named can still be used"
    with pytest.raises(StateError, match="says `ann`"):
        open_model(world.model)
    assert switch(world, "main").code == 0
    assert edits_of(world) == 2


def test_a_hint_can_be_pasted_where_a_path_has_blanks(world: World) -> None:
    blank = world.root.rename(world.root.with_name("two words"))
    refused = run("switch", blank / "model", "zz")
    assert f"`more switch '{blank}/model' --list` lists them" in refused.err


@pytest.mark.parametrize("content", [b"", b"../../other", b"\xff\xfe", b"a" * 5000, b"ann\nbob\n", b"a\x1b[2J"])
def test_a_damaged_choice_is_said_and_can_be_made_again(world: World, content: bytes) -> None:
    switch(world, "ann", "--create")
    (world.root / "model.more.current").write_bytes(content)
    refused = run("status", world.model)
    assert refused.code == 5
    assert "model.more.current` " in refused.err
    assert "\x1b" not in refused.err
    assert f"hint: more switch {world.model} main, or in its place one of `ann`" in refused.err
    assert switch(world, "main").code == 0
    assert edits_of(world) == 2


def test_a_state_in_use_by_a_writer_is_not_copied(world: World) -> None:
    from more_cli.store.lock import writer_lock

    with writer_lock(world.folder / "lock"):
        refused = switch(world, "ann", "-c")
    assert (refused.code, "is in use by process" in refused.err) == (5, True)
    assert not state(world, "ann").exists()


def test_without_a_state_there_is_nothing_to_copy(world: World) -> None:
    world.sidecar.unlink()
    refused = switch(world, "ann", "-c")
    assert (refused.code, "no state at" in refused.err) == (5, True)
    assert "which has no state yet" in switch(world).out


def test_the_shell_offers_the_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(world, "ann", "-c")

    class Typed:
        params: dict[str, Any] = {"words": [str(world.model)]}  # noqa: RUF012

    assert completion.states(Typed(), "") == ["main", "ann"]  # type: ignore[arg-type]
    assert completion.states(Typed(), "a") == ["ann"]  # type: ignore[arg-type]
    monkeypatch.chdir(world.root)
    Typed.params = {}
    assert completion.states(Typed(), "m") == ["main"]  # type: ignore[arg-type]


# --- killed on the way ---


def created(world: World, number: int) -> int:
    """Create a state, killed at the n-th step to the disk."""
    return cut_short(lambda: switch(world, "ann", "--create"), world.root, number, DISK)


@forks
def test_killed_before_any_step_to_the_disk_the_same_call_ends_alike(made: World, tmp_path: Path) -> None:
    def files(root: Path) -> dict[str, bytes | None]:
        return {name: data for name, data in tree(root).items() if name != "calls" and "lock" not in name}

    whole = made.copy(tmp_path / "whole")
    assert created(whole, 0) == 0
    total, wanted = int((whole.root / "calls").read_text()), files(whole.root)
    assert total > 10
    for number in range(1, total + 1):
        here = made.copy(tmp_path / str(number))
        assert created(here, number) == -signal.SIGKILL
        if state(here, "ann").exists():
            assert state(here, "ann").read_bytes() == here.sidecar.read_bytes()
            assert run("verify", here.model, "--state", state(here, "ann")).code == 0
        assert edits_of(here) == 2, "commands go on in between"
        again = switch(here, "ann", "--create")
        whole_already = number == total and "has a state `ann` already" in again.err  # the last step only waits
        assert again.code == 0 or whole_already, (number, again.err)
        assert files(here.root) == wanted, f"killed before step {number} of {total}"


@forks
def test_an_edit_between_a_cut_off_call_and_the_next_is_in_the_copy(made: World, tmp_path: Path) -> None:
    whole = made.copy(tmp_path / "whole")
    created(whole, 0)
    here = made.copy(tmp_path / "here")
    number = next(
        number
        for number in range(1, int((whole.root / "calls").read_text()))
        if created(here, number) and (here.root / "model.ann.more.d").exists()
    )
    assert number
    assert not state(here, "ann").exists()
    here.edit(edits=here.write(LINES[2:], "more.jsonl"))
    assert switch(here, "ann", "--create").code == 0
    assert edits_of(here) == 3


def test_a_folder_with_another_ledger_is_kept(world: World) -> None:
    world.edit("--state", state(world, "ann"), *QUICK, edits=world.write(LINES[2:], "more.jsonl"))
    state(world, "ann").unlink()
    before = tree(world.root)
    refused = switch(world, "ann", "--create")
    assert (refused.code, "holds the ledger of another state" in refused.err) == (5, True)
    assert tree(world.root) == before


def test_a_state_is_named_wherever_one_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    more = world.write(LINES[2:], "more.jsonl")
    run("edit", world.model, more, "--state", "ann")
    assert state(world, "ann").is_file()
    assert not (world.root / "ann").exists()
    assert edits_of(world, "--state", "ann") == 1
    assert run("status", "--state", "ann", "--json").json["state"] == "model.ann.more", "without MODEL"
    monkeypatch.setenv("MORE_STATE", "ann")
    assert edits_of(world) == 1
    monkeypatch.delenv("MORE_STATE")
    (world.root / "more.toml").write_text('state = "ann"\n')
    assert edits_of(world) == 1
    monkeypatch.chdir(world.model)
    assert edits_of(world) == 1, "the file beside the model names it too"
    with open_model(world.model, "main") as model:
        assert model.target.sidecar == world.sidecar


def test_diff_and_combine_take_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    switch(world, "ann", "-c")
    world.edit(edits=world.write(LINES[2:], "more.jsonl"))
    assert run("diff", "main", "ann").out == run("diff", "model.more", "model.ann.more").out
    assert "2 alike, 1 only in model.ann.more" in run("diff", "main", "ann").out
    assert run("combine", "main", "ann", "-o", "both").code == 3
    assert edits_of(world, "--state", "both") == 3
    wrong = run("diff", world.model, "main", "anm")
    assert (wrong.code, wrong.err.splitlines()) == (
        2,
        [
            f"error: `{world.model}` has no state `anm`",
            f"hint: did you mean `ann`? `more switch {world.model} --list` lists them",
        ],
    )


def test_a_file_of_the_name_comes_before_the_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    switch(world, "ann", "-c")
    shutil.copyfile(world.sidecar, world.root / "ann")
    shutil.copytree(world.folder, world.root / "ann.d")
    assert run("status", world.model, "--state", "ann", "--json").json["state"] == "ann"


def test_ask_and_review_take_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    switch(world, "ann", "-c")
    asked = run("ask", world.model, "is it a dog ?", "--state", "ann", "--max-tokens", 2)
    assert asked.code == 0, asked.err
    monkeypatch.setenv("MORE_STATE", "main")
    assert run("ask", world.model, "is it a dog ?", "--max-tokens", 2).code == 0
    monkeypatch.delenv("MORE_STATE")
    for command in (("ask", world.model, "is it a dog ?"), ("review", world.model)):
        refused = run(*command, "--state", "bob")
        assert (refused.code, refused.err.splitlines()[0]) == (5, "error: no state at `model.bob.more`")


def test_a_folder_of_the_name_hides_no_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    assert (world.root / "img").is_dir()
    switch(world, "img", "-c")
    assert run("status", world.model, "--state", "img", "--json").json["state"] == "model.img.more"
    assert run("diff", world.model, "main", "img").code == 0
    (world.root / "more.toml").write_text('state = "img"\n')
    assert run("status", world.model, "--json").json["state"] == "model.img.more"


@pytest.mark.parametrize("name", ["字" * 34, "a" * 101])
def test_a_name_of_more_than_a_hundred_bytes_is_refused(world: World, name: str) -> None:
    assert switch(world, name, "--create").code == 2
    assert switch(world, name[:33], "--create").code == 0


def test_a_name_that_no_disk_can_hold_is_no_bug(world: World) -> None:
    refused = run("status", world.model, "--state", "a" * 300)
    assert (refused.code, "the name is too long" in refused.err or "no state" in refused.err) in ((2, True), (5, True))
