"""Every reader of outside bytes, as a function of bytes that returns or raises MoreError.

An accepted input must also survive storing; the functions check that too.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import fingerprint
from more_cli.evaluation.gates import parse_gate
from more_cli.files import sha256_bytes
from more_cli.inputs.edits import Edit, iter_edits, read_edits, read_probes
from more_cli.inputs.feeds import Pipe
from more_cli.inputs.images import decode_image
from more_cli.ops.anchors import load_anchors
from more_cli.recipe.files import load_recipe, parse_recipe
from more_cli.recipe.settings import apply_setting
from more_cli.store.entry import START, Entry, parse_entry
from more_cli.store.ledger import Ledger
from more_cli.store.state import load_meta, load_state
from more_cli.suites.annotations import read_pool
from more_cli.suites.mme import read_category
from more_cli.suites.yes_no import parse_answer
from more_cli.text import canonical_json, strict_json

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Parser:
    """One reader."""

    name: str
    read: Read
    seeds: tuple[bytes, ...]
    longest: int = 4096
    """Most bytes of an input."""


@cache
def scratch() -> Path:
    """Return a temporary folder, in memory if possible."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="more-fuzz-", dir=memory if memory.is_dir() else None))


@contextmanager
def _file(name: str, data: bytes) -> Iterator[Path]:
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    yield path


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(buffer, "PNG")
    return buffer.getvalue()


# --- lines that a user writes ---


def _edit_stream(data: bytes) -> None:
    for found in iter_edits(Pipe(io.BytesIO(data), "x.jsonl").records(), scratch()):
        if isinstance(found, Edit):
            _check_stored(found)


def _check_stored(edit: Edit) -> None:
    fields = {"question": edit.question, "target": edit.target, "rephrases": list(edit.rephrases), "tags": edit.tags}
    entry = Entry.model_validate(
        {"seq": 1, "prev": START, "id": edit.id, "status": "learnt", "content": edit.content, "time": "now", **fields}
        | {"status": _learnt()}
    )
    again = parse_entry(canonical_json(entry.model_dump(mode="json")).encode(), Path("x"), 1)
    assert again == entry, "an accepted edit is read back as another"


@cache
def _learnt() -> object:
    from more_cli.store.entry import Status

    return Status.LEARNT


def _edit_file(data: bytes) -> None:
    with _file("edits.json", data) as path:
        read_edits(path)


def _probe_file(data: bytes) -> None:
    with _file("probes.jsonl", data) as path:
        read_probes(path)


def _annotations(data: bytes) -> None:
    with _file("pool.json", data) as path:
        read_pool(path, path.parent)


def _questions(data: bytes) -> None:
    with _file("category/1.txt", data) as path:
        read_category("category", path.parent)


def _recipe(data: bytes) -> None:
    with _file("r.toml", data) as path:
        recipe = load_recipe(str(path))
    assert parse_recipe(recipe.canonical(), "again").canonical() == recipe.canonical()


def _setting(data: bytes) -> None:
    values: dict[str, object] = {}
    apply_setting(values, data.decode("utf-8", "replace"))
    parse_recipe(values, "set")


def _gate(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert parse_gate(str(parse_gate(text))) == parse_gate(text)


def _strict(data: bytes) -> None:
    try:
        value = strict_json(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        return
    assert strict_json(canonical_json(value)) == value


# --- files that `more` writes ---


def _entry(data: bytes) -> None:
    parse_entry(data, Path("ledger.jsonl"), 1)


def _ledger(data: bytes) -> None:
    with _file("fuzzed.more.d/ledger.jsonl", data) as path:
        ledger = Ledger(path.parent)
        assert len(list(ledger.entries)) == len(ledger.entries)
        ledger.statuses()
        for entry in ledger.standing():
            ledger.edit_of(entry)


def _sidecar(data: bytes) -> None:
    with _file("fuzzed.more", data) as path:
        load_meta(path)
        load_state(path)


def _anchors(data: bytes) -> None:
    with _file("anchors.jsonl", data) as path:
        load_anchors(path.parent, sha256_bytes(data))


# --- a checkpoint ---


def _shard(data: bytes) -> None:
    with _file("single/config.json", b"{}") as config, _file("single/model.safetensors", data):
        _opened(config.parent)


def _index(data: bytes) -> None:
    with _file("two/config.json", b"{}") as config, _file("two/model.safetensors.index.json", data):
        for name in ("a.safetensors", "b.safetensors"):
            (config.parent / name).write_bytes(_tensors(name[0]))
        _opened(config.parent)


def _config(data: bytes) -> None:
    with _file("config/config.json", data) as config, _file("config/model.safetensors", _tensors("a")):
        _opened(config.parent)


def _opened(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    fingerprint(checkpoint, checkpoint.tensors)
    for entry in checkpoint.tensors.values():
        assert 0 <= entry.start <= entry.stop <= (folder / entry.shard).stat().st_size


def _tensors(name: str) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


# --- images ---


def _image(data: bytes) -> None:
    decoded = decode_image(data, "x")
    assert decoded.mode == "RGB"


def _pictures() -> tuple[bytes, ...]:
    found = []
    for form, modes in {
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
        "JPEG": ("L", "RGB", "CMYK"),
        "WEBP": ("RGB", "RGBA"),
        "GIF": ("L", "P"),
        "BMP": ("1", "L", "P", "RGB"),
        "TIFF": ("1", "L", "RGB", "RGBA", "CMYK", "F", "I;16"),
        "PPM": ("1", "L", "RGB", "F"),
    }.items():
        for mode in modes:
            buffer = io.BytesIO()
            Image.new(mode, (5, 3)).save(buffer, form)
            found.append(buffer.getvalue())
    return tuple(found)


def _image_uri(data: bytes) -> None:
    line = json.dumps({"question": "q", "target": "t", "image": data.decode("utf-8", "replace")})
    for _ in iter_edits(Pipe(io.BytesIO(line.encode())).records(), scratch()):
        pass


def _spelled(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parsers(state: Path, ledger: Path, shard: Path, config: Path) -> list[Parser]:
    """Return every reader with real files as seeds; the arguments are files of a small state and its base."""
    (scratch() / "1.png").write_bytes(_png())
    edit = {"id": "e", "image": "1.png", "question": "What is it?", "target": "a tram", "rephrases": ["Which?"]}
    probes = {"locality": [{"question": "Who?"}, {"image": "1.png", "question": "What?", "answer": "x"}]}
    hops = {"portability": [{"question": "Where?", "answer": "y", "hop": 2}], "tags": {"day": [1, None, 0.5]}}
    foreign = {"src": "q", "alt": "a", "rephrase": "r", "image": "1.png", "image_rephrase": "1.png", "pred": "p"}
    foreign |= {"loc": "nq question: x", "loc_ans": "y", "m_loc": "1.png", "m_loc_q": "q", "m_loc_a": "a"}
    foreign |= {"port_new": [{"Q&A": {"Question": "q", "Answer": "a"}, "port_type": "1-hop"}]}
    lines = (_spelled(edit | probes | hops), _spelled(edit, {"question": "q", "target": "t"}), _spelled(foreign))
    arrays = (json.dumps([edit | probes, foreign]).encode(), *lines)
    asked = _spelled({"question": "q"}, {"id": "p", "image": "1.png", "question": "w", "answer": "a"})
    kept = _spelled({"question": "q", "image": None, "answer": "a"}, {"question": "q", "image": START, "answer": None})
    toml = b'description = "x"\nsites = ["text.ffn_out", "re:a.*"]\n[default]\nstep = 0.1\nlambda = 2\n[site."a.*"]\n'
    index = {"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    written = ledger.read_bytes()
    uri = b"data:image/png;base64,iVBORw0KGgo="
    return [
        Parser("edit lines", _edit_stream, lines),
        Parser("edits file", _edit_file, arrays),
        Parser("probes", _probe_file, (asked,)),
        Parser("annotations", _annotations, arrays),
        Parser("MME questions", _questions, (b"Is it?\tYes\nIs it not?\tNo\n",)),
        Parser("recipe", _recipe, (toml, b'extends = "llava"\nmargin = 2.0\n[anchors]\nfile = "a.jsonl"\n')),
        Parser("setting", _setting, (b"default.step=0.5", b"sites=['projector']", b"rehearsal.size=3"), 200),
        Parser("gate", _gate, (b"rel.gen_exact>=0.95", b"loc_image.loc_expkl_answer.low > 9e-1"), 200),
        Parser("JSON", _strict, (b'{"a":[1,2.5e3,null,true,"\\u00e9"]}',)),
        Parser("yes or no", lambda data: parse_answer(data.decode("utf-8", "replace")), (b"Yes, it is.", b"no"), 100),
        Parser("ledger line", _entry, tuple(written.splitlines(keepends=True)[:2])),
        Parser("ledger", _ledger, (written,), 16384),
        Parser("sidecar", _sidecar, (state.read_bytes(),), 65536),
        Parser("anchors", _anchors, (kept,)),
        Parser("shard header", _shard, (_tensors("a"), shard.read_bytes()[:4096])),
        Parser("index", _index, (json.dumps(index).encode(),)),
        Parser("config.json", _config, (config.read_bytes(), b"{}"), 8192),
        Parser("image", _image, _pictures()),
        Parser("image URI", _image_uri, (uri, b"../1.png", b"https://x/y.png", b"data:;base64,AAAA")),
    ]
