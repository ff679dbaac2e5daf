"""`more sign` and `more verify --signers`: what was changed, added or signed by somebody else is found."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from more_cli import files
from more_cli.store.state import load_state, save_state
from more_cli.store.statement import NAME, SIGNATURE
from more_cli.system import ssh
from support.forging import forge, forge_digest
from support.helpers import LEARNING, Result, World, line, run, tree
from support.refused import assert_refused

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")


def make_key(path: Path, name: str) -> str:
    """Make a key pair and return its line for a file of signers."""
    path.parent.mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return f'"{name}" namespaces="{ssh.NAMESPACE}" {path.with_name(f"{path.name}.pub").read_text()}'


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A signed state of two edits, the keys of Alice and Mallory, and a file that names Alice."""
    world = World(tmp_path_factory.mktemp("sign"), text_layers=1)
    world.edits(3)
    assert run("init", world.model, *LEARNING).code == 0
    assert world.edit("--limit", 2).code in (0, 3)
    (world.root / "signers").write_text(make_key(world.root / "alice", "alice@example.org"))
    make_key(world.root / "mallory", "mallory")
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    return world


@pytest.fixture
def world(original: World, tmp_path: Path) -> World:
    """A copy to change."""
    shutil.copytree(original.root, tmp_path / "world")
    return World.at(tmp_path / "world")


def verify(world: World, model: Path | None = None, *, signers: str = "signers") -> Result:
    return run("verify", model or world.model, "--signers", world.root / signers, "--json")


def signed(result: Result) -> tuple[int, str, str]:
    """Return the exit code, and the verdict and detail on the signature."""
    (check,) = (check for check in result.json["checks"] if check["name"] == "signed")
    return result.code, check["verdict"], check["detail"]


def failed(result: Result) -> list[str]:
    return [check["name"] for check in result.json["checks"] if check["verdict"] == "FAILED"]


# --- a state ---


def test_a_signed_state_passes_and_says_by_whom(world: World) -> None:
    before = tree(world.root)
    assert signed(verify(world))[:2] == (0, "ok")
    assert signed(verify(world))[2].startswith("all 2 lines, by alice@example.org (SHA256:")
    assert signed(run("verify", world.model, "--json"))[2].startswith("all 2 lines, by SHA256:")
    assert tree(world.root) == before


def test_a_stored_picture_that_was_replaced_is_found(world: World) -> None:
    stored = next((world.folder / "images").iterdir())
    stored.write_bytes(stored.read_bytes() + b"\0")
    assert failed(verify(world)) == ["images"]


@pytest.mark.parametrize("change", [b"\xff", b"x"])
def test_what_is_signed_and_damaged_is_merged_into_nothing(world: World, change: bytes) -> None:
    with open(world.folder / NAME, "ab") as statement:
        statement.write(change)
    assert_refused(run("merge", world.model, "-o", world.root / "merged"), 5, "is no statement of `more`")
    assert not (world.root / "merged").exists()


def test_sign_prints_what_it_wrote(world: World) -> None:
    result = run("sign", world.model, "--key", world.root / "alice", "--json")
    (part,) = result.json["signed"]
    assert (result.json["schema"], result.json["key"][:7], part["files"], part["lines"]) == (
        "more.sign/1",
        "SHA256:",
        2,
        2,
    )
    assert part["subject"] == str(world.sidecar)
    assert (part["statement"], part["signature"]) == (str(world.folder / NAME), str(world.folder / SIGNATURE))
    shown = run("sign", world.model, "--key", world.root / "alice").out
    assert shown.startswith(f"signed `{world.sidecar}`: 2 files and 2 lines of its ledger, by SHA256:")


def test_the_statement_is_one_of_in_toto_that_ssh_keygen_verifies(world: World) -> None:
    text = (world.folder / NAME).read_bytes()
    statement = json.loads(text)
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "urn:more-vlm:state:1",
    )
    hashes = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    for name, sha256 in hashes.items():
        summed = subprocess.run(["sha256sum", world.root / name], capture_output=True, text=True, check=True)
        assert summed.stdout.startswith(sha256)
    assert sorted(hashes) == ["model.more", "model.more.d/ledger.jsonl"]
    predicate = statement["predicate"]
    assert (predicate["lines"], predicate["edits"], predicate["asked"]) == (2, 2, 2)
    assert predicate["recipe"]["name"] == "llava"
    assert str(world.root).encode() not in text
    command = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        world.root / "signers",
        "-I",
        "alice@example.org",
        "-n",
        ssh.NAMESPACE,
    ]
    subprocess.run([*command, "-s", world.folder / SIGNATURE], input=text, check=True, capture_output=True)


def test_signing_twice_gives_the_same_statement(world: World) -> None:
    before = (world.folder / NAME).read_bytes()
    assert run("sign", world.model, "--key", world.root / "mallory").code == 0
    assert (world.folder / NAME).read_bytes() == before


def test_later_edits_are_not_signed(world: World) -> None:
    assert world.edit().code in (0, 3)
    known = run("verify", world.model, "--json")
    assert signed(known)[:2] == (0, "ok")
    assert signed(known)[2].startswith("up to line 2 of 3, by SHA256:")
    assert known.json["checks"][3]["detail"].endswith("; line 3 is not")
    result = verify(world)
    assert signed(result)[:2] == (5, "FAILED")
    assert "is signed up to line 2 of 3, by alice@example.org" in signed(result)[2]
    assert f"sign again: more sign {world.model} --key KEY" in result.err
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert signed(verify(world))[:2] == (0, "ok")


def test_a_revert_is_a_later_line(world: World) -> None:
    assert run("revert", world.model, "--last", 1).code == 0
    assert "up to line 2 of 3" in signed(verify(world))[2]


def forged_target(world: World) -> None:
    forge(world.folder / "ledger.jsonl", 1, target="b", hashed=True)
    forge_digest(world.sidecar)


def forged_time(world: World) -> None:
    forge(world.folder / "ledger.jsonl", 2, time="2020-01-01T00:00:00+00:00", source="elsewhere.jsonl")


def forged_weights(world: World) -> None:
    state = load_state(world.sidecar)
    next(iter(state.B.values()))[0, 0] += 1
    save_state(world.sidecar, state)


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        (forged_target, "its first 2 lines have changed"),
        (forged_time, "its first 2 lines have changed"),
        (forged_weights, "has changed since alice@example.org"),
    ],
)
def test_what_passes_unsigned_fails_against_the_signature(
    world: World, forgery: Callable[[World], None], said: str
) -> None:
    forgery(world)
    (world.root / "kept").mkdir()
    for name in (NAME, SIGNATURE):
        (world.folder / name).rename(world.root / "kept" / name)
    assert run("verify", world.model).code == 0
    for name in (NAME, SIGNATURE):
        (world.root / "kept" / name).rename(world.folder / name)
    result = verify(world)
    assert (result.code, failed(result)) == (5, ["signed"])
    assert said in signed(result)[2]
    assert "sign it again: more sign" in result.err
    assert run("verify", world.model).code == 5


def test_unsigned(world: World) -> None:
    (world.folder / NAME).unlink()
    (world.folder / SIGNATURE).unlink()
    assert signed(run("verify", world.model, "--json"))[:2] == (0, "skipped")
    assert signed(verify(world)) == (5, "FAILED", f"`{world.sidecar}` is not signed")
    assert f"hint: more sign {world.model} --key KEY" in verify(world).err


def test_a_state_without_edits(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    world.edits(1)
    (world.root / "signers").write_text(make_key(world.root / "alice", "alice"))
    assert run("init", world.model, *LEARNING).code == 0
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert signed(verify(world))[2].startswith("no lines yet, by alice")
    assert world.edit().code in (0, 3)
    assert "up to line 0 of 1" in signed(verify(world))[2]
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert signed(verify(world))[2].startswith("its only line, by alice")


def test_a_full_disk_leaves_it_unsigned_and_never_wrongly_signed(world: World) -> None:
    def rename(old: Path, new: Path) -> None:
        if new.name == SIGNATURE:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.replace(old, new)

    assert world.edit().code in (0, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_rename", rename)
        assert run("sign", world.model, "--key", world.root / "alice").code == 7
    assert signed(verify(world)) == (5, "FAILED", f"`{world.folder / SIGNATURE}` is missing")
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert signed(verify(world))[:2] == (0, "ok")


@pytest.mark.parametrize("fails", ["_write", "_fsync"])
def test_a_full_disk_keeps_the_old_signature(world: World, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    key, before = ("--key", world.root / "alice"), tree(world.folder)
    real, calls = getattr(files, fails), []
    for step in (1, 2):

        def full(*arguments: object, step: int = step) -> object:
            calls.append(fails)
            if len(calls) == step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        monkeypatch.setattr(files, fails, full)
        calls.clear()
        assert_refused(run("sign", world.model, *key), 7, "cannot write")
        assert len(calls) == step
        assert tree(world.folder) == before
        assert signed(verify(world))[:2] == (0, "ok")


def test_a_link_in_the_place_of_a_signature_is_replaced_and_not_followed(world: World) -> None:
    kept = world.root / "kept"
    kept.mkdir()
    for name in (NAME, SIGNATURE):
        (world.folder / name).rename(kept / name)
        (world.folder / name).symlink_to(kept / name)
    before = tree(kept)
    assert world.edit().code in (0, 3)
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert tree(kept) == before
    assert not (world.folder / NAME).is_symlink()
    assert signed(verify(world))[:2] == (0, "ok")


def test_half_of_a_signature(world: World) -> None:
    (world.folder / SIGNATURE).unlink()
    assert signed(verify(world)) == (5, "FAILED", f"`{world.folder / SIGNATURE}` is missing")


def test_a_key_of_somebody_else(world: World) -> None:
    assert run("sign", world.model, "--key", world.root / "mallory").code == 0
    result = verify(world)
    assert signed(result)[:2] == (5, "FAILED")
    assert f", whom `{world.root / 'signers'}` does not name" in signed(result)[2]
    assert ssh.NAMESPACE in result.err


def test_a_signature_for_another_purpose(world: World) -> None:
    command = ["ssh-keygen", "-Y", "sign", "-n", "git", "-f", world.root / "alice"]
    done = subprocess.run(command, input=(world.folder / NAME).read_bytes(), capture_output=True, check=True)
    (world.folder / SIGNATURE).write_bytes(done.stdout)
    assert signed(verify(world))[:2] == (5, "FAILED")
    assert run("verify", world.model).code == 5


@pytest.mark.parametrize(("name", "content"), [(NAME, b"{}"), (SIGNATURE, b"none")])
def test_a_statement_or_signature_that_was_changed(world: World, name: str, content: bytes) -> None:
    path = world.folder / name
    written = bytearray(path.read_bytes())
    place = 3 * len(written) // 4  # of a signature: in the part that depends on the key and what it signs
    written[place] = ord("b") if written[place] == ord("a") else ord("a")
    for changed in (bytes(written), content):
        path.write_bytes(changed)
        assert signed(verify(world))[:2] == (5, "FAILED")
        assert "the signature does not match what it signs" in signed(verify(world))[2]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]\n", b"\xff", b'{"_type":"https://in-toto.io/Statement/v1"}'])
def test_something_else_that_was_signed(world: World, text: bytes) -> None:
    (world.folder / NAME).write_bytes(text)
    (world.folder / SIGNATURE).write_bytes(ssh.sign(text, world.root / "alice"))
    assert signed(verify(world))[:2] == (5, "FAILED")
    assert "the signed file is no statement of `more`" in signed(verify(world))[2]


def test_what_a_crash_left_behind_the_last_line_is_removed_and_not_signed(world: World) -> None:
    ledger = world.folder / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"torn')
    assert run("sign", world.model, "--key", world.root / "alice").code == 0
    assert ledger.read_bytes() == whole
    assert signed(verify(world))[0] == 0


def test_a_state_that_lacks_a_line_or_is_forged_is_not_signed(world: World) -> None:
    key, before = ("--key", world.root / "alice"), world.sidecar.read_bytes()
    assert world.edit("--limit", 3).code in (0, 3)
    after = world.sidecar.read_bytes()
    world.sidecar.write_bytes(before)
    assert_refused(run("sign", world.model, *key), 5, "does not have all lines of its ledger yet")
    world.sidecar.write_bytes(after)
    assert run("sign", world.model, *key).code == 0
    forge(world.folder / "ledger.jsonl", 1, target="b")
    assert_refused(run("sign", world.model, *key), 5, "ledger.jsonl:1: line was changed")


# --- status ---


def test_status_says_whether_and_by_whom(world: World) -> None:
    assert "signed      all 2 lines, by SHA256:" in run("status", world.model).out
    found = run("status", world.model, "--signers", world.root / "signers", "--json").json
    assert (found["signed"]["name"], found["signed"]["lines"], found["signed"]["total"]) == ("alice@example.org", 2, 2)
    assert found["unsigned"] == ""
    (world.folder / NAME).write_text("{}")
    assert run("status", world.model, "--json").json["signed"] is None
    assert "signed      no: the signature does not match" in run("status", world.model).out
    (world.folder / NAME).unlink()
    (world.folder / SIGNATURE).unlink()
    shown = " ".join(run("status", world.model).out.split())  # a long path goes over two lines
    assert f"no: nobody has signed it (`more sign {world.model} --key KEY`)" in shown
    missing = world.root / "nobody"
    assert_refused(run("status", world.model, "--signers", missing), 2, f"no file `{missing}`")


# --- merged and exported ---


@pytest.fixture
def merged(world: World) -> Path:
    assert run("merge", world.model, "-o", world.root / "merged").code == 0
    return world.root / "merged"


def test_a_merged_folder_carries_the_states_signature(world: World, merged: Path) -> None:
    held = json.loads((merged / "more.json").read_text())["signed"]
    assert held == {"statement": (world.folder / NAME).read_text(), "signature": (world.folder / SIGNATURE).read_text()}
    code, verdict, detail = signed(run("verify", merged, "--json"))
    assert (code, verdict) == (0, "skipped")
    assert detail.startswith(f"the files of `{merged}` are not signed, only the edits, by SHA256:")
    assert signed(verify(world, merged))[:2] == (5, "FAILED")


def test_a_merged_folder_is_signed_whole(world: World, merged: Path) -> None:
    assert run("sign", merged, "--key", world.root / "alice", "--json").json["signed"][0]["lines"] is None
    statement = json.loads((merged / NAME).read_text())
    names = [item["name"] for item in statement["subject"]]
    assert {"more.json", "model.safetensors", "config.json", "README.md"} <= set(names)
    assert run("merge", world.model, "-o", merged, "--force", "--dry-run").code == 0, "what `sign` wrote may go too"
    assert statement["predicateType"] == "urn:more-vlm:model:1"
    code, verdict, detail = signed(verify(world, merged))
    assert (code, verdict) == (0, "ok")
    assert detail.startswith("all files, by alice@example.org")
    assert "; the edits, by alice@example.org" in detail
    (merged / ".cache").mkdir()
    (merged / ".cache" / "hidden").write_text("of a download")
    assert verify(world, merged).code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "model.safetensors").open("ab").write(b"x"), "`model.safetensors` has changed"),
        (lambda folder: (folder / "README.md").unlink(), "`README.md` is missing"),
        (lambda folder: (folder / "a\nb.py").write_text("x"), "b.py` is not signed"),
        (lambda folder: (folder / "elsewhere").symlink_to(folder.parent), "`elsewhere` is not signed"),
    ],
)
def test_a_signed_folder_that_was_changed(
    world: World, merged: Path, change: Callable[[Path], object], said: str
) -> None:
    assert run("sign", merged, "--key", world.root / "alice").code == 0
    change(merged)
    result = verify(world, merged)
    assert signed(result)[:2] == (5, "FAILED")
    assert said in signed(result)[2]
    assert "\n" not in result.err.splitlines()[0]


def test_a_statement_about_a_state_is_none_about_a_folder(world: World, merged: Path) -> None:
    for name in (NAME, SIGNATURE):
        shutil.copy(world.folder / name, merged / name)
    assert "`urn:more-vlm:state:1`, not `urn:more-vlm:model:1`" in signed(verify(world, merged))[2]


def test_edits_that_somebody_else_signed(world: World) -> None:
    out = world.root / "merged"
    assert run("sign", world.model, "--key", world.root / "mallory").code == 0
    assert run("merge", world.model, "-o", out).code == 0
    assert run("sign", out, "--key", world.root / "alice").code == 0
    assert signed(verify(world, out))[:2] == (5, "FAILED")


def test_a_model_that_was_merged_before_keeps_no_old_signature(world: World, merged: Path) -> None:
    assert run("sign", merged, "--key", world.root / "alice").code == 0
    edits = world.write([line(3)], "more.jsonl")
    assert run("init", merged, *LEARNING).code == 0
    assert run("edit", merged, edits).code in (0, 3)
    again = world.root / "again"
    assert run("merge", merged, "-o", again).code == 0
    assert not (again / NAME).exists()
    assert not (again / SIGNATURE).exists()
    assert "signed" not in json.loads((again / "more.json").read_text())
    key = "--key", world.root / "alice"
    assert len(run("sign", merged, *key, "--json").json["signed"]) == 2
    checks = verify(world, merged).json["checks"]
    assert [check["verdict"] for check in checks if check["name"] == "signed"] == ["ok", "ok"]


def test_exports_carry_it_too(world: World) -> None:
    adapter, deltas = world.root / "adapter", world.root / "deltas.safetensors"
    assert run("export", world.model, "-o", adapter).code == 0
    assert run("export", world.model, "-o", deltas, "--format", "delta").code == 0
    with safe_open(deltas, "pt") as file:
        about = json.loads(file.metadata()["more"])
    assert about["signed"]["statement"] == (world.folder / NAME).read_text()
    assert json.loads((adapter / "more.json").read_text())["signed"] == about["signed"]
    assert run("sign", adapter, "--key", world.root / "alice").code == 0
    assert signed(verify(world, adapter))[:2] == (0, "ok")


def test_what_is_not_signed_carries_nothing(world: World) -> None:
    (world.folder / NAME).unlink()
    (world.folder / SIGNATURE).unlink()
    assert run("export", world.model, "-o", world.root / "adapter").code == 0
    assert "signed" not in json.loads((world.root / "adapter" / "more.json").read_text())


def test_a_more_json_that_carries_something_else(world: World, merged: Path) -> None:
    values = json.loads((merged / "more.json").read_text())
    (merged / "more.json").write_text(json.dumps(values | {"signed": {"statement": 1}}))
    assert "does not carry a statement and its signature" in signed(verify(world, merged))[2]


# --- names, keys and a machine without OpenSSH ---


def test_names_with_spaces_and_newlines(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "a folder\nof two lines"
    shutil.copytree(world.root, folder)
    odd = World.at(folder)
    (folder / "my signers").write_text(make_key(folder / "my\nkey", "Bob the builder"))
    (odd.model / "my file\n.txt").write_text("x")
    assert run("sign", odd.model, "--key", folder / "my\nkey").code == 0
    found = verify(odd, signers="my signers")
    assert signed(found)[:2] == (0, "ok")
    assert "by Bob the builder (SHA256:" in signed(found)[2]
    out = folder / "out put"
    assert run("merge", odd.model, "-o", out).code == 0
    assert run("sign", out, "--key", folder / "my\nkey").code == 0
    assert "my file\n.txt" in [item["name"] for item in json.loads((out / NAME).read_text())["subject"]]
    assert signed(verify(odd, out, signers="my signers"))[:2] == (0, "ok")


def test_keys_that_cannot_sign(world: World) -> None:
    assert_refused(run("sign", world.model, "--key", world.root / "nokey"), 2, f"no file `{world.root / 'nokey'}`")
    assert_refused(run("sign", world.model, "--key", world.root / "signers"), 2, "signers` is not an SSH key")
    assert signed(verify(world))[:2] == (0, "ok")  # what there was still is
    assert_refused(run("sign", world.root / "nowhere", "--key", world.root / "alice"), 5, "nowhere: no such directory")


@pytest.mark.parametrize("named", ["my key", "my key.pub"])
def test_a_key_that_others_can_read(world: World, named: str) -> None:
    make_key(world.root / "my key", "alice")
    (world.root / "my key").chmod(0o644)
    refused = run("sign", world.model, "--key", world.root / named)
    private = world.root / "my key"
    assert_refused(refused, 2, f"`{private}` cannot sign: its mode, 0644, lets other users read it\n")
    assert f"chmod 600 '{private}'\n" in refused.err


def test_a_key_with_a_passphrase(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", world.root / "closed"], check=True)
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")  # no terminal is asked
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    refused = run("sign", world.model, "--key", world.root / "closed")
    assert_refused(refused, 2, "passphrase")
    assert f"pass its public key, {world.root / 'closed.pub'}" in refused.err


def test_without_ssh_keygen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(world.root))
    for command in (
        ["sign", world.model, "--key", "alice"],
        ["verify", world.model, "--signers", world.root / "signers"],
    ):
        refused = run(*command)
        assert refused.code == 2
        assert refused.err.splitlines() == [
            "error: signatures need `ssh-keygen`",
            "hint: install OpenSSH 8.2 or later (apt-get install openssh-client)",
        ]
    assert signed(run("verify", world.model, "--json")) == (0, "skipped", "signatures need `ssh-keygen`")
    assert "signed      no: signatures need `ssh-keygen`" in run("status", world.model).out
