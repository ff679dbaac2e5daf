"""Files damaged between runs of `more`, with hypothesis: detected, harmless, or a problem.

A change is harmless if the file is read as before. Any other change must be refused in one line or, if the command goes
on, be detected by `more verify --deep`.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from faults.stream import Stream, attempt, beside, refuses, unclear
from faults.tally import Problem, Tally, forked
from more_cli.errors import MoreError
from more_cli.store.ledger import Ledger
from more_cli.store.state import load_state, state_bytes
from support.helpers import run, tree

PART = "files changed on disk"
Spoil = Callable[[st.DataObject, bytes], bytes]


# --- how bytes are changed ---


def spoil_bytes(data: st.DataObject, content: bytes) -> bytes:
    """Up to three changes: flip a bit; cut, double, overwrite or insert a range; or cut off the end."""
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        length = data.draw(st.sampled_from((1, 2, 8, 64, 4096)))
        piece = data.draw(st.binary(min_size=1, max_size=16))
        how = data.draw(st.sampled_from(("flip", "cut", "double", "overwrite", "insert", "end")))
        if how == "flip" and content:
            content = content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
        elif how == "cut":
            content = content[:at] + content[at + length :]
        elif how == "double":
            content = content[: at + length] + content[at:]
        elif how == "overwrite":
            content = content[:at] + piece + content[at + len(piece) :]
        elif how == "insert":
            content = content[:at] + piece + content[at:]
        else:
            content = content[:at]
    return content


ODD = st.sampled_from(
    (
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        10**400,
        0.5,
        -0.0,
        1e308,
        "",
        "x",
        "..",
        "/",
        "\x1b[31m",
        [],
        {},
        [[]],
    )
)
"""Values that are wrong almost anywhere."""


def spoil_json(data: st.DataObject, content: bytes) -> bytes:
    """Replace one value in the tree by an odd one, remove it, change it slightly, or copy it to another name."""
    value = json.loads(content)
    places = list(_places(value))
    holder, key = data.draw(st.sampled_from(places))
    how = data.draw(st.sampled_from(("odd", "odd", "remove", "another", "near")))
    if how == "remove":
        del holder[key]
    elif how == "another" and isinstance(holder, dict):
        holder[f"{key}2"] = holder[key]
    elif how == "near" and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] += data.draw(st.sampled_from((1, -1, 0.5)))
    elif how == "near" and isinstance(holder[key], str) and holder[key]:
        holder[key] = holder[key][:-1] + data.draw(st.sampled_from("0ae "))
    else:
        holder[key] = data.draw(ODD)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def spoil_lines(data: st.DataObject, content: bytes) -> bytes:
    """Change a value or a byte of one line, or remove, repeat or move the line."""
    lines = content.splitlines(keepends=True)
    at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    how = data.draw(st.sampled_from(("value", "value", "byte", "out", "twice", "move")))
    line = lines[at]
    if how == "value":
        lines[at] = spoil_json(data, line) + b"\n"
    elif how == "byte":
        lines[at] = spoil_bytes(data, line)
    elif how == "out":
        del lines[at]
    elif how == "twice":
        lines.insert(to, line)
    else:
        lines.insert(to, lines.pop(at))
    return b"".join(lines)


def spoil_header(data: st.DataObject, content: bytes) -> bytes:
    """Change the JSON header of a safetensors file, with a right or wrong length."""
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    header = data.draw(st.sampled_from((spoil_json, spoil_bytes)))(data, header)
    stated = data.draw(st.sampled_from((len(header),) * 6 + (0, len(header) - 1, len(header) + 1, 2**40, 2**64 - 1)))
    return stated.to_bytes(8, "little") + header + rest


def spoil_metadata(data: st.DataObject, content: bytes) -> bytes:
    """Change the metadata of a sidecar."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["more"] = spoil_json(data, header["__metadata__"]["more"].encode()).decode()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def either(*spoils: Spoil) -> Spoil:
    """Change in one of several ways."""
    return lambda data, content: data.draw(st.sampled_from(spoils))(data, content)


# --- which files are changed, and how that must be detected ---


@dataclass(frozen=True)
class Kind:
    """One file, how it is damaged, and the check of the result."""

    name: str
    file: Path
    spoil: Spoil
    judge: Callable[[], list[Problem]]


def spoilt_files(stream: Stream, tally: Tally, examples: int, number: int) -> None:
    """Damage every kind of file `examples` times, one at a time."""
    sidecar = stream.state("spoilt")
    forked(lambda: stream.edit(sidecar).code)
    for kind in _kinds(stream, sidecar):
        spoil_many(tally, kind, examples, number)
    for kind in _pictures(stream):
        spoil_many(tally, kind, max(2, examples // 4), number)  # the fuzzer covers their bytes


def _kinds(stream: Stream, sidecar: Path) -> list[Kind]:
    model, ledger = stream.world.model, beside(sidecar) / "ledger.jsonl"
    store = sorted((beside(sidecar) / "images").iterdir())[0]
    state = partial(_state_is_seen, stream, sidecar)
    whole, tensors = sidecar.read_bytes(), state_bytes(load_state(sidecar))
    lines = list(Ledger(beside(sidecar)).entries)

    def same_state() -> bool:
        return sidecar.read_bytes() == whole or state_bytes(load_state(sidecar)) == tensors

    def same_ledger() -> bool:
        return list(Ledger(beside(sidecar)).entries) == lines

    base = partial(_base_is_seen, stream, sidecar)
    shard = model / "model-00001-of-00002.safetensors"
    edits = stream.world.root / "edits.jsonl"
    return [
        Kind("sidecar: bytes", sidecar, spoil_bytes, lambda: state(same_state)),
        Kind("sidecar: header", sidecar, either(spoil_header, spoil_metadata), lambda: state(same_state)),
        Kind("ledger", ledger, either(spoil_lines, spoil_bytes), lambda: state(same_ledger)),
        Kind("stored image", store, spoil_bytes, lambda: state(lambda: False)),
        Kind("shard header", shard, spoil_header, base),
        Kind("index", model / "model.safetensors.index.json", either(spoil_json, spoil_bytes), base),
        Kind("config.json", model / "config.json", either(spoil_json, spoil_bytes), base),
        Kind("edits file", edits, either(spoil_lines, spoil_bytes), partial(_input_is_seen, stream, "edit lines")),
    ]


def _pictures(stream: Stream) -> Iterator[Kind]:
    picture = stream.world.root / "img" / "green.png"
    judge = partial(_input_is_seen, stream, "an image")
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        buffer = io.BytesIO()
        Image.effect_noise((24, 24), 90).convert("RGB").save(buffer, form)
        spoil = partial(_spoil_instead, buffer.getvalue())
        yield Kind(f"image: {form}", picture, spoil, judge)


def _spoil_instead(content: bytes, data: st.DataObject, _: bytes) -> bytes:
    return spoil_bytes(data, content)


def spoil_many(tally: Tally, kind: Kind, examples: int, number: int) -> None:
    """Damage one file repeatedly in a fork, and restore it at the end."""

    def work() -> list[list[object]]:
        whole, found = kind.file.read_bytes(), list[list[object]]()

        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def one(data: st.DataObject) -> None:
            content = kind.spoil(data, whole)
            if content == whole:
                return
            kind.file.write_bytes(content)
            started = time.process_time()
            problems = kind.judge()
            found.append([time.process_time() - started, [[problem.kind, problem.text] for problem in problems]])

        try:
            one()
        finally:
            kind.file.write_bytes(whole)
        return found

    ended = forked(work, limit=600 + 60 * examples)
    if ended.value is None:
        tally.add(PART, kind.name, [Problem("hang" if ended.hung else "traceback", f"ended with {ended.code}")])
        return
    for seconds, problems in ended.value:
        tally.add(PART, kind.name, [Problem(*pair) for pair in problems], seconds=seconds, peak=ended.peak)


def _state_is_seen(stream: Stream, sidecar: Path, same: Callable[[], bool]) -> list[Problem]:
    """A state, its ledger or its images: refused, the same, or detected by `verify`."""
    before = tree(sidecar.parent)
    result, problems = attempt("edit", lambda: stream.edit(sidecar))
    if result is not None and result.code != 3:
        problems += unclear("edit", result, (5,))
    for options in ((), ("--deep",)):
        verified, more = attempt("verify", lambda: stream.verify(sidecar, *options))
        problems += more
        if verified is None or verified.code:
            return problems if verified is None else problems + unclear("verify", verified, (5,), spoken=True)
        if _holds(same):
            break
    else:
        problems.append(Problem("silent change", f"{sidecar.name} and what belongs to it"))
    if result is not None and result.code == 3 and tree(sidecar.parent) != before:
        problems.append(Problem("silent change", "a run wrote on"))
        _put_back(sidecar.parent, before)
    return problems


def _holds(same: Callable[[], bool]) -> bool:
    try:
        return same()
    except MoreError:
        return False


def _put_back(root: Path, before: dict[str, bytes | None]) -> None:
    shutil.rmtree(root)
    root.mkdir()
    for name, content in before.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def _base_is_seen(stream: Stream, sidecar: Path) -> list[Problem]:
    """The base: refused by every command, or read as before."""
    problems = []
    for name in ("verify", "status"):
        command = partial(stream.verify, sidecar) if name == "verify" else partial(run, "status", stream.world.model)
        result, more = attempt(name, command)
        problems += more
        if result is not None and result.code:
            problems += unclear(name, result, (5,), spoken=name == "verify")
    result, more = attempt("edit", lambda: stream.edit(sidecar))
    if result is not None and result.code != 3:
        more += unclear("edit", result, (5,))
    return problems + more


def _input_is_seen(stream: Stream, what: str) -> list[Problem]:
    """A user's input: refused as a whole before anything is written, or a valid stream."""
    sidecar = stream.state("fresh")
    result, problems = attempt(what, lambda: stream.edit(sidecar, "--dry-run"))
    if result is not None and result.code:
        problems += refuses(what, lambda: stream.edit(sidecar), (4,))
        if beside(sidecar).exists():
            problems.append(Problem("silent change", f"something was written for {what} that are refused"))
    return problems
