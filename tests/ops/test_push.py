"""`more push`: what is published by the real client, on a stand-in of the hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from support.helpers import LEARNING, World, run
from support.hub import Hub, hub_here
from support.refused import assert_refused


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("push"))
    made.edits(1)
    assert made.edit(*LEARNING).code == 0
    assert run("merge", made.model, "-o", made.root / "merged").code == 0
    assert run("export", made.model, "-o", made.root / "adapter").code == 0
    return made


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_here(tmp_path / "cache", monkeypatch) as found:
        yield found


def sent(hub: Hub, repo: str) -> dict[str, bytes]:
    return list(hub.repos[repo].values())[-1]


@pytest.mark.parametrize(("folder", "library"), [("merged", b"transformers"), ("adapter", b"peft")])
def test_a_folder_is_published_whole_with_its_card(edited: World, hub: Hub, folder: str, library: bytes) -> None:
    path = edited.root / folder
    result = run("push", path, f"me/{folder}", "--yes", "--json")
    assert result.code == 0, result.err
    assert sent(hub, f"me/{folder}") == {file.name: file.read_bytes() for file in path.iterdir()}
    assert b"library_name: " + library in sent(hub, f"me/{folder}")["README.md"]
    assert sorted(result.json["files"]) == sorted(sent(hub, f"me/{folder}"))
    assert result.json["commit"] == list(hub.repos[f"me/{folder}"])[-1]
    assert hub.created[0].get("visibility") != "private"


def test_a_state_goes_with_its_ledger_and_pictures_only_if_asked(edited: World, hub: Hub, tmp_path: Path) -> None:
    assert run("push", edited.sidecar, "me/state", "--yes", "--private", "--revision", "v1").code == 0
    files = sent(hub, "me/state")
    assert set(files) == {"model.more", "model.more.d/ledger.jsonl", "README.md"}
    assert files["model.more"] == edited.sidecar.read_bytes()
    card = files["README.md"].decode()
    assert "library_name: more-vlm" in card
    assert "1 correction was written into this state" in card
    assert "| base | `model`, headers" in card
    assert (hub.created[0]["visibility"], hub.branches) == ("private", ["v1"])
    assert run("push", edited.sidecar, "me/state", "--yes", "--images").code == 0
    pictures = {name for name in sent(hub, "me/state") if name.startswith("model.more.d/images/")}
    assert len(pictures) == 1
    # What was published is a state: it serves beside its base.
    for name, data in sent(hub, "me/state").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    again = run("verify", edited.model, "--state", tmp_path / "model.more")
    assert again.code == 0, again.err
    assert run("merge", edited.model, "--state", tmp_path / "model.more", "-o", tmp_path / "out").code == 0


def test_private_is_not_published_into_a_public_repository(edited: World, hub: Hub) -> None:
    hub.add("me/state", edited.model, "1" * 40)
    hub.public.add("me/state")
    refused = run("push", edited.sidecar, "me/state", "--yes", "--private")
    assert (refused.code, "`me/state` exists and is public" in refused.err) == (2, True)
    assert list(hub.repos["me/state"]) == ["1" * 40]
    assert run("push", edited.sidecar, "me/state", "--yes").code == 0


def test_the_card_of_a_named_state_names_its_base(edited: World, hub: Hub, tmp_path: Path) -> None:
    world = edited.copy(tmp_path / "copy")
    run("switch", world.model, "ann", "--create")
    assert run("push", world.root / "model.ann.more", "me/state", "--yes").code == 0
    card = sent(hub, "me/state")["README.md"].decode()
    assert "| base | `model`, headers" in card
    assert "beside its base, as `model.ann.more`" in card


def test_a_name_that_is_no_text_is_refused(edited: World, hub: Hub, tmp_path: Path) -> None:
    world, name = edited.copy(tmp_path / "copy"), os.fsdecode(b"x\xff.more")
    for suffix in ("", ".d"):
        world.sidecar.with_name(f"model.more{suffix}").rename(world.root / f"{name}{suffix}")
    (world.root / "merged" / os.fsdecode(b"\xff.txt")).touch()
    for path in (world.root / name, world.root / "merged"):
        assert_refused(run("push", path, "me/state", "--yes"), 5, "its name is not UTF-8", "rename it")
    assert hub.asked == []


def test_a_dry_run_contacts_nobody(edited: World, hub: Hub) -> None:
    result = run("push", edited.sidecar, "me/state", "--dry-run", "--json")
    assert (result.code, hub.asked) == (0, [])
    assert (result.json["dry_run"], result.json["url"]) == (True, None)
    assert "would publish 3 files" in run("push", edited.sidecar, "me/state", "--dry-run").out


def test_without_yes_nobody_at_a_terminal_means_no(edited: World, hub: Hub) -> None:
    result = run("push", edited.root / "merged", "me/merged", stdin=b"y\n")
    assert (result.code, hub.asked) == (2, [])
    assert "nothing was published" in result.err
    assert "--yes" in result.err


def test_what_more_did_not_write_is_refused(edited: World, hub: Hub) -> None:
    for words, says in (
        ([edited.model, "me/base"], "no more.json"),
        ([edited.root / "merged", "nobody"], "`nobody` is no id"),
        ([edited.root / "merged", "me/merged", "--images"], "`--images` is about a state"),
    ):
        result = run("push", *words, "--yes")
        assert (result.code, hub.asked) == (2, [])
        assert says in result.err


def test_what_is_no_folder_is_refused_as_what_it_is(edited: World, hub: Hub) -> None:
    deltas = edited.root / "deltas.safetensors"
    assert run("export", edited.model, "-o", deltas, "--format", "delta").code == 0
    for path, says, hint in (
        (edited.root / "gone", "no such file or folder", "name a folder that `more merge` or `more export` wrote"),
        (edited.root / "gone.more", "no such file or folder", "or a .more file"),
        (deltas, "is a file, and `push` takes a folder or a state", "more export MODEL -o FOLDER"),
    ):
        result = run("push", path, "me/x", "--dry-run")
        assert_refused(result, 2, f"error: {path}: {says}\nhint: ", hint)
        assert "the work of" not in result.err
        assert hub.asked == []


def test_a_folder_without_its_weights_is_not_published(edited: World, hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(edited.root / "merged", tmp_path / "merged")
    (tmp_path / "merged" / "model.safetensors").unlink()
    refused = run("push", tmp_path / "merged", "me/x", "--dry-run")
    assert refused.code == 5
    assert "model.safetensors` is missing\nhint: write" in refused.err


def test_errors_of_the_hub_are_one_line(edited: World, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.read_only.add("me/merged")
    refused = run("push", edited.root / "merged", "me/merged", "--yes")
    assert (refused.code, "status 403" in refused.err, "hf auth login" in refused.err) == (5, True, True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline = run("push", edited.root / "merged", "me/merged", "--yes")
    assert (offline.code, "HF_HUB_OFFLINE is set" in offline.err) == (5, True)


def test_a_state_that_is_being_written_is_not_published(edited: World, hub: Hub) -> None:
    from more_cli.store.lock import writer_lock

    with writer_lock(edited.folder / "lock"):
        result = run("push", edited.sidecar, "me/state", "--yes")
    assert (result.code, hub.asked) == (5, [])
    assert "in use" in result.err


def test_a_link_is_not_followed(edited: World, hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(edited.root / "adapter", tmp_path / "adapter")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "adapter" / "notes.txt").symlink_to(tmp_path / "secret")
    (tmp_path / "adapter" / ".hidden").write_text("hidden")
    assert run("push", tmp_path / "adapter", "me/adapter", "--yes").code == 0
    assert not {"notes.txt", ".hidden"} & set(sent(hub, "me/adapter"))
