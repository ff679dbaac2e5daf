"""`ledger`: a line is in the ledger or it is not, and nothing in it changes unseen."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from more_cli import files
from more_cli.errors import DataError, MoreError, ResourceError, StateError
from more_cli.files import sha256_bytes
from more_cli.inputs.edits import Edit, read_edits
from more_cli.store import ledger as ledger_module
from more_cli.store.ledger import START, Ledger, Status, content_digest, extend_digest
from more_cli.text import canonical_json
from support.disk import fail_at, posix, raising, umask
from support.helpers import in_child


def fields(id: str, status: Status = Status.LEARNT, **more: Any) -> dict[str, Any]:
    content = sha256_bytes(id.encode())
    return {"id": id, "status": status, "content": content, "subject": content, "question": "Q?", "target": "T", **more}


def filled(folder: Path, count: int = 3) -> Ledger:
    ledger = Ledger(folder)
    for number in range(count):
        ledger.append(fields(f"e{number}"))
    return ledger


def lines(folder: Path) -> list[bytes]:
    return (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    for number in range(1, 5):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    line = {
        "image": "1.png",
        "question": "What is it?",
        "target": "a tram",
        "rephrases": ["Which vehicle?"],
        "image_rephrases": ["2.png"],
        "locality": [{"question": "Who?"}, {"image": "3.png", "question": "What?", "answer": "x"}],
        "portability": [{"image": "4.png", "question": "Where?", "answer": "y", "hop": 2}],
        "tags": {"day": [1, None]},
    }
    (tmp_path / "edits.jsonl").write_text(json.dumps(line))
    return read_edits(tmp_path / "edits.jsonl").edits[0]


# --- the chain ---


def test_an_absent_ledger_is_empty_and_reading_writes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.more.d")
    assert (len(ledger.entries), ledger.head, ledger.statuses()) == (0, START, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("old", "new"), [(b'"T"', b'"U"'), (b'"time":"2', b'"time":"3'), (b'"writes":0', b'"writes":1')]
)
def test_a_changed_line_is_named_also_the_last(tmp_path: Path, number: int, old: bytes, new: bytes) -> None:
    filled(tmp_path)
    raw = lines(tmp_path)
    assert old in raw[number]
    raw[number] = raw[number].replace(old, new)
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(raw))
    with pytest.raises(StateError, match=f"ledger.jsonl:{number + 1}: line was changed"):
        Ledger(tmp_path)


def test_a_line_has_its_checksum_and_cannot_lose_it(tmp_path: Path) -> None:
    written = filled(tmp_path).entries[2]
    *rest, line = lines(tmp_path)
    bare = line.replace(written.check.encode(), b"")
    assert written.check == sha256_bytes(bare)
    (tmp_path / "ledger.jsonl").write_bytes(b"".join([*rest, bare]))
    with pytest.raises(StateError, match=r"ledger.jsonl:3: line was changed: it has lost its checksum"):
        Ledger(tmp_path)


def without_checksums(folder: Path) -> None:
    """Write the ledger of a folder again as an older version did."""
    old, head = [], START
    for line in lines(folder):
        read = {name: value for name, value in json.loads(line).items() if name != "check"}
        old.append(f"{canonical_json(read | {'prev': head})}\n".encode())
        head = sha256_bytes(old[-1])
    (folder / "ledger.jsonl").write_bytes(b"".join(old))


def test_lines_from_before_checksums_are_read_and_go_on(tmp_path: Path) -> None:
    filled(tmp_path)
    without_checksums(tmp_path)
    with Ledger(tmp_path) as ledger:
        assert ledger.append(fields("e9")).check
    assert [bool(entry.check) for entry in Ledger(tmp_path).entries] == [False, False, False, True]


def test_a_revert_cut_short_after_lines_from_before_checksums_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path)
    without_checksums(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.append_all([reverting("e1", since=2, redone=1), fields("e2")])
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines(tmp_path)[:-1]))
    assert [entry.id for entry in Ledger(tmp_path).history] == ["e0", "e1", "e2"]


def test_lines_are_canonical_and_chained(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    raw = lines(tmp_path)
    assert [json.loads(line)["seq"] for line in raw] == [1, 2, 3]
    assert [json.loads(line)["prev"] for line in raw] == [START, sha256_bytes(raw[0]), sha256_bytes(raw[1])]
    assert ledger.head == sha256_bytes(raw[2])
    assert all(canonical_json(json.loads(line)).encode() + b"\n" == line for line in raw)


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    written = ledger.append(
        fields(
            "é\n",
            Status.REFUSED,
            reason="loss is not finite",
            nll_before=2.5,
            nll_after=float("nan"),
            answer_before="car",
            right_after=False,
            writes=3,
            wall_ms=12.5,
            versions={"more": "0.1.0"},
            note="threads changed",
        )
    )
    assert written.nll_after is None
    assert written.time.endswith("+00:00")
    again = Ledger(tmp_path)
    assert list(again.entries) == [written]
    assert again.entries[-1] == again.by_id["é\n"] == ledger.entries[0] == written
    assert "absent" not in again.by_id
    assert again.head == ledger.head
    assert list(again.entries[0:0]) == []


def test_a_ledger_goes_on_where_it_ended(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    with Ledger(tmp_path) as ledger:
        ledger.append(fields("last"))
    assert [entry.id for entry in Ledger(tmp_path).entries] == ["e0", "e1", "last"]
    assert [entry.id for entry in Ledger(tmp_path).entries[1:]] == ["e1", "last"]


@pytest.mark.parametrize("kept", [1, 10, -1])
def test_a_torn_last_line_is_passed_over_and_cut_by_the_next_writer(tmp_path: Path, kept: int) -> None:
    filled(tmp_path)
    raw = lines(tmp_path)
    torn = raw[0] + raw[1] + raw[2][:kept]
    (tmp_path / "ledger.jsonl").write_bytes(torn)
    ledger = Ledger(tmp_path)
    assert [entry.id for entry in ledger.entries] == ["e0", "e1"]
    assert (tmp_path / "ledger.jsonl").read_bytes() == torn  # a reader changes nothing
    ledger.append(fields("new"))
    assert [entry.id for entry in Ledger(tmp_path).entries] == ["e0", "e1", "new"]


def damaged(raw: list[bytes], how: str) -> bytes:
    first, second, third = raw
    return {
        "changed": first + second.replace(b'"T"', b'"U"') + third,
        "removed": first + third,
        "swapped": second + first + third,
        "added": first + first + second + third,
        "blank": first + b"\n" + second + third,
        "cut": first + second[:50] + b"\n" + third,
        "zeros": first + b"\0" * len(second) + third,
        "crlf": b"".join(line[:-1] + b"\r\n" for line in raw),
        "newer": first + second.replace(b'"id"', b'"future":1,"id"') + third,
        "wrong type": first + second.replace(b'"writes":0', b'"writes":"0"') + third,
    }[how]


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("changed", 2),
        ("removed", 2),
        ("swapped", 1),
        ("added", 2),
        ("blank", 2),
        ("cut", 2),
        ("zeros", 2),
        ("crlf", 1),
        ("newer", 2),
        ("wrong type", 2),
    ],
)
def test_any_other_damage_names_the_line(tmp_path: Path, how: str, line: int) -> None:
    filled(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes(damaged(lines(tmp_path), how))
    with pytest.raises(StateError, match=rf"ledger\.jsonl:{line}: ") as caught:
        Ledger(tmp_path)
    assert caught.value.hint


def test_a_line_with_what_cannot_be_written_again_or_shown_is_damaged(tmp_path: Path) -> None:
    """Such a line can be chained by hand; it would end a combination in a bug, or a prompt would have no end."""
    said = [{"role": "user", "text": "?", "images": 10**12}, {"role": "assistant", "text": "!", "images": 0}]
    wrong: dict[str, Any] = {"nll_after": float("inf"), "looks": [[1, float("nan")]], "drifts": [[0, float("-inf")]]}
    wrong |= {"tags": {"a": [float("nan")]}, "turns": said, "locality": [{"question": "?", "turns": said}]}
    ledger = filled(tmp_path, 1)
    values = json.loads(lines(tmp_path)[0])
    for name, value in wrong.items():
        bare = json.dumps(values | {name: value, "check": ""}, sort_keys=True, separators=(",", ":")) + "\n"
        checked = bare.replace('"check":""', f'"check":"{sha256_bytes(bare.encode())}"', 1)
        ledger.path.write_text(checked)
        with pytest.raises(StateError, match=rf"ledger\.jsonl:1: line is damaged \(`{name}"):
            Ledger(tmp_path)


@posix
def test_a_pipe_in_place_of_the_ledger_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")
    with pytest.raises(StateError, match="is not a file"):
        Ledger(tmp_path)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 200))
def test_any_bytes_open_or_are_a_state_error(tmp_path: Path, noise: bytes, at: int, over: int) -> None:
    folder = tmp_path / "x"
    if not folder.exists():
        filled(folder)
    original = (folder / "ledger.jsonl").read_bytes()
    try:
        for content in (noise, original[:at] + noise + original[at + over :]):
            (folder / "ledger.jsonl").write_bytes(content)
            with contextlib.suppress(StateError), Ledger(folder) as ledger:
                ledger.append(fields("more"))
                assert list(Ledger(folder).entries) == list(ledger.entries)
    finally:
        (folder / "ledger.jsonl").write_bytes(original)


def test_a_long_ledger_opens_in_a_few_times_what_reading_its_json_takes(tmp_path: Path) -> None:
    entry = filled(tmp_path, 1).entries[0].model_dump(mode="json")
    entry |= {"looks": [[number, 1.5] for number in range(1, 17)], "versions": {f"v{n}": "1.2.3" for n in range(8)}}
    del entry["check"]  # a ledger from before lines had one
    raw, head = [], START
    for number in range(1, 20_001):
        raw.append(f"{canonical_json(entry | {'seq': number, 'prev': head, 'id': f'e{number}'})}\n".encode())
        head = sha256_bytes(raw[-1])
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(raw))
    started = time.process_time()
    for line in raw:
        json.loads(line)
    parsed = time.process_time() - started
    ledger = Ledger(tmp_path)
    assert time.process_time() - started - parsed < 10 * parsed
    assert (len(ledger.entries), ledger.head, ledger.entries[-1].id) == (20_000, head, "e20000")


# --- crashes ---


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, ResourceError), (errno.EIO, StateError)])
def test_a_failed_append_leaves_the_ledger_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, number: int, kind: type[MoreError]
) -> None:
    ledger = filled(tmp_path)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        fail_at(patch, step, raising(number))
        with pytest.raises(kind, match=r"ledger\.jsonl"):
            ledger.append(fields("lost"))
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    ledger.append(fields("kept"))
    assert [entry.id for entry in Ledger(tmp_path).entries] == ["e0", "e1", "e2", "kept"]


def test_a_failed_append_that_cannot_be_cut_back_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = filled(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "_fsync", lambda fd: raising(errno.EIO)())
        patch.setattr(files, "_truncate", lambda fd, size: raising(errno.EIO)())
        with pytest.raises(StateError):
            ledger.append(fields("unsure"))
    with pytest.raises(StateError, match="has changed since it was read"):
        ledger.append(fields("next"))
    again = Ledger(tmp_path)
    assert [entry.id for entry in again.entries] == ["e0", "e1", "e2", "unsure"]
    again.append(fields("next"))


@posix
@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize("partial", [0, 100])
def test_killed_at_any_step_the_next_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, partial: int
) -> None:
    folder = tmp_path / "x.more.d"

    def killed() -> None:
        def die() -> None:
            with open(folder / "ledger.jsonl", "ab") as file:
                file.write(b"{" * partial)
            os._exit(9)

        fail_at(monkeypatch, step, die)
        ledger = Ledger(folder)
        ledger.images.put(b"image")  # write, fsync, rename
        ledger.append(fields("a"))  # then two folders for the image, two for the ledger, write, fsync

    assert in_child(killed) == 9
    ledger = Ledger(folder)
    assert len(ledger.entries) == 0
    ledger.images.put(b"image")
    ledger.append(fields("a"))
    assert [entry.id for entry in Ledger(folder).entries] == ["a"]
    assert len(os.listdir(folder / "images")) == 1


def test_images_are_safe_before_the_line_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Edit
) -> None:
    ledger = filled(tmp_path / "d", 1)
    order: list[str] = []
    monkeypatch.setattr(ledger.images, "sync", lambda: order.append("images"))
    real = ledger_module.append_line
    monkeypatch.setattr(ledger_module, "append_line", lambda fd, line: order.append("line") or real(fd, line))
    ledger.append({**ledger.describe(edit), "status": Status.LEARNT})
    assert order == ["images", "line"]


def test_another_writer_is_noticed(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    Ledger(tmp_path).append(fields("other"))
    with pytest.raises(StateError, match="has changed since it was read"):
        ledger.append(fields("mine"))


@posix
def test_files_follow_the_umask(tmp_path: Path, edit: Edit) -> None:
    for mask, expected in ((0o022, 0o644), (0o077, 0o600)):
        folder = tmp_path / str(mask)
        with umask(mask):
            ledger = Ledger(folder)
            ledger.append({**ledger.describe(edit), "status": Status.LEARNT})
        for path in (folder / "ledger.jsonl", ledger.images.path(edit.images[0].sha256)):
            assert stat.S_IMODE(path.stat().st_mode) == expected


# --- edits in and out ---


@pytest.mark.parametrize("store", [True, False])
def test_an_edit_comes_back_as_it_was(tmp_path: Path, edit: Edit, store: bool) -> None:
    ledger = Ledger(tmp_path / "d")
    ledger.append({**ledger.describe(edit, store=store), "status": Status.LEARNT})
    if store:
        for path in tmp_path.glob("*.png"):
            path.unlink()
    entry = Ledger(tmp_path / "d").entries[0]
    again = ledger.edit_of(entry)
    assert (again.id, again.content, again.subject) == (edit.id, edit.content, edit.subject)
    assert (again.rephrases, again.tags, again.source, again.line) == (edit.rephrases, edit.tags, edit.source, 1)
    assert again.images[0].open().getpixel((0, 0)) == (1, 0, 0)
    assert again.image_rephrases[0].open().getpixel((0, 0)) == (2, 0, 0)
    assert again.locality[0].images == ()
    assert again.locality[1].images[0].open().getpixel((0, 0)) == (3, 0, 0)
    assert (again.portability[0].answer, again.portability[0].hop) == ("y", 2)
    assert len(entry.paths) == (0 if store else 4)
    assert (tmp_path / "d" / "images").exists() == store


def test_a_damaged_image_is_the_states_fault_or_the_files(tmp_path: Path, edit: Edit) -> None:
    ledger = Ledger(tmp_path / "d")
    stored = ledger.append({**ledger.describe(edit), "status": Status.LEARNT})
    ledger.images.path(edit.images[0].sha256).write_bytes(b"other")
    with pytest.raises(StateError, match="missing or damaged"):
        ledger.edit_of(stored).images[0].open()
    ledger.images.path(edit.images[0].sha256).unlink()
    with pytest.raises(StateError, match="missing or damaged"):
        ledger.edit_of(stored).images[0].open()
    named = ledger.append({**ledger.describe(edit, store=False), "status": Status.LEARNT})
    (tmp_path / "1.png").write_bytes(b"other")
    with pytest.raises(DataError, match="has changed"):
        ledger.edit_of(named).images[0].read()
    with pytest.raises(DataError, match="has changed"):
        ledger.describe(edit)


# --- what stands ---


def about(subject: str, target: str, status: Status = Status.LEARNT, id: str = "") -> dict[str, Any]:
    content = sha256_bytes(f"{subject} {target}".encode())
    subject = sha256_bytes(subject.encode())
    return {"id": id or f"{subject[:2]}-{target}", "status": status, "content": content, "subject": subject}


def test_a_later_target_supersedes_an_earlier_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for line in (
        about("a", "1", id="a1"),
        about("b", "1", id="b1"),
        about("a", "2", Status.NOT_LEARNT, id="a2"),
        about("a", "2", Status.ALREADY_RIGHT, id="a2 again"),
        about("b", "2", Status.REFUSED, id="b2"),
    ):
        ledger.append(line)
    assert ledger.statuses() == {
        "a1": "superseded",
        "b1": "learnt",  # what came later was rolled back
        "a2": "not-learnt",
        "a2 again": "already-right",
        "b2": "refused",
    }
    assert [entry.id for entry in ledger.standing()] == ["b1", "a2", "a2 again"]


def test_a_refused_edit_is_superseded_by_its_correction(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(about("a", "1", Status.REFUSED, id="a1"))
    ledger.append(about("a", "2", Status.REFUSED, id="a2"))
    assert [edit.id for edit in ledger.failed()] == ["a1", "a2"]
    ledger.append(about("a", "3", id="a3"))
    assert ledger.statuses() == {"a1": "superseded", "a2": "superseded", "a3": "learnt"}
    assert ([entry.id for entry in ledger.asked()], ledger.failed()) == (["a3"], [])


def test_the_last_try_of_an_edit_decides_what_supersedes_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for id, content, status in (("a1", "1", Status.REFUSED), ("a2", "2", Status.NOT_LEARNT)):
        ledger.append(about("a", content, status, id=id))
    for id, content in (("a1", "1"), ("a2", "2")):
        ledger.append({**about("a", content, id=id), "retry": True})
    assert ledger.statuses() == {"a1": "superseded", "a2": "learnt"}


def test_a_reverted_edit_gives_way_and_can_come_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(about("a", "1", id="a1"))
    ledger.append(about("a", "2", id="a2"))
    ledger.append(reverting("a2", since=2))
    assert ledger.statuses() == {"a1": "learnt", "a2": "reverted"}
    assert ledger.by_id["a2"].kind == "edit"
    ledger.append(about("a", "2", id="a2"))
    again = Ledger(tmp_path)
    assert again.statuses() == ledger.statuses() == {"a1": "superseded", "a2": "learnt"}
    assert [entry.seq for entry in again.standing()] == [4]


def reverting(*ids: str, since: int, redone: int = 0) -> dict[str, Any]:
    fields = {"kind": "revert", "id": "revert", "status": Status.REVERTED, "reason": "asked"}
    return {**fields, "ids": list(ids), "since": since, "redone": redone}


def test_a_revert_ends_the_history_and_its_lines_go_on(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 4)
    before = content_digest(ledger.history)
    ledger.append_all([reverting("e1", since=2, redone=2), fields("e2", Status.NOT_LEARNT), fields("e3")])
    ledger.append({"kind": "consolidate", "id": "c", "status": Status.LEARNT, "since": 1, "looks": [(2, 0.5)]})
    for read in (ledger, Ledger(tmp_path)):
        assert [entry.seq for entry in read.entries] == list(range(1, 9))
        assert [entry.seq for entry in read.history] == read.history.numbers() == [1, 6, 7, 8]
        assert list(read.history.kinds())[-1] == ("consolidate", "c")
        assert read.statuses() == {"e0": "learnt", "e1": "reverted", "e2": "learnt", "e3": "learnt"}
        assert [entry.seq for entry in read.standing()] == [1, 6, 7]
        assert (read.reverted, read.by_id["e1"].seq, read.by_id["e2"].seq) == ({"e1"}, 2, 6)
        assert read.last_revert == read.entries[4]
        assert read.agrees(4, content_digest(read.history))
        assert not read.agrees(4, before)
        assert read.agreed_before_revert(4, before)
        assert read.agreed_before_revert(3, content_digest(read.entries[:3]))
        assert not read.agreed_before_revert(4, content_digest(read.history))
    ledger.append(reverting("e2", "e3", since=2))
    assert [entry.id for entry in ledger.history] == ["e0"]
    assert ledger.agreed_before_revert(4, before)  # two reverts ago


def test_what_a_consolidation_found_goes_with_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(fields("a", Status.NOT_LEARNT))
    ledger.append({"kind": "consolidate", "id": "c", "status": Status.LEARNT, "since": 1, "looks": [(1, 0.5)]})
    assert ledger.statuses() == {"a": "learnt"}
    ledger.append(reverting(since=2))
    assert ledger.statuses() == Ledger(tmp_path).statuses() == {"a": "not-learnt"}


@pytest.mark.parametrize("lines_kept", [5, 6])
@pytest.mark.parametrize("part", [0, 30, -1])
def test_a_revert_without_all_its_lines_never_was(tmp_path: Path, lines_kept: int, part: int) -> None:
    ledger = filled(tmp_path, 4)
    statuses = ledger.statuses()
    ledger.append_all([reverting("e1", since=2, redone=2), fields("e2"), fields("e3")])
    raw = lines(tmp_path)
    torn = b"".join(raw[:lines_kept]) + raw[lines_kept][:part]
    (tmp_path / "ledger.jsonl").write_bytes(torn)
    again = Ledger(tmp_path)
    assert (len(again.entries), len(again.history), again.statuses()) == (4, 4, statuses)
    assert (again.last_revert, again.reverted) == (None, set())
    assert (tmp_path / "ledger.jsonl").read_bytes() == torn  # a reader changes nothing
    again.append(fields("new"))
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(b"".join(raw[:4]))
    assert [entry.id for entry in Ledger(tmp_path).history] == ["e0", "e1", "e2", "e3", "new"]


@pytest.mark.parametrize("since", [0, 4])
def test_a_revert_of_what_is_not_there_is_damage(tmp_path: Path, since: int) -> None:
    filled(tmp_path).append(reverting("e1", since=since))
    with pytest.raises(StateError, match=r"ledger\.jsonl:4: line reverts from place"):
        Ledger(tmp_path)


def test_a_ledger_from_before_there_were_reverts(tmp_path: Path) -> None:
    filled(tmp_path)
    head, old = START, []
    for entry in map(json.loads, lines(tmp_path)):
        kept = {name: value for name, value in entry.items() if name not in ("ids", "redone", "check")}
        old.append(canonical_json(kept | {"prev": head}))
        head = sha256_bytes(f"{old[-1]}\n".encode())
    (tmp_path / "ledger.jsonl").write_text("".join(f"{text}\n" for text in old))
    ledger = Ledger(tmp_path)
    assert list(ledger.history) == list(ledger.entries)
    assert content_digest(ledger.history) == content_digest(filled(tmp_path / "new").history)
    ledger.append(reverting("e2", since=3))
    assert [entry.id for entry in Ledger(tmp_path).history] == ["e0", "e1"]


def test_what_describes_an_edit_is_what_was_kept(tmp_path: Path, edit: Edit) -> None:
    ledger = Ledger(tmp_path / "d")
    kept = ledger.describe(edit)
    entry = ledger.append({**kept, "status": Status.LEARNT, "writes": 2})
    assert entry.description() == kept
    assert Ledger(tmp_path / "other").append(entry.fields()).fields() == entry.fields()


def test_statuses_are_spelled_as_documented() -> None:
    assert {str(status) for status in Status} == {
        "learnt",
        "not-learnt",
        "refused",
        "already-right",
        "superseded",
        "reverted",
    }


def test_the_digest_is_rolling_and_depends_on_order(tmp_path: Path) -> None:
    entries = filled(tmp_path).entries
    assert content_digest(entries[:0]) == START
    digest = START
    for entry in entries:
        digest = extend_digest(digest, (entry.id, entry.content))
    assert digest == content_digest(entries) == content_digest(Ledger(tmp_path).entries)
    assert content_digest(entries[:2]) == content_digest(Ledger(tmp_path).entries[:2])
    assert len({content_digest(order) for order in (entries, entries[::-1], entries[:2])}) == 3
    odd, content = 'ü "\\\n\x00\u2028', entries[0].content
    assert extend_digest(digest, (odd, content)) == sha256_bytes(canonical_json([digest, odd, content]).encode())
