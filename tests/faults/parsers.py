"""Every reader of outside bytes, as a function of bytes that returns or raises MoreError.

An accepted input must also survive storing; the functions check that too.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import fingerprint
from more_cli.errors import StateError
from more_cli.evaluation.gates import parse_gate
from more_cli.files import sha256_bytes
from more_cli.inputs.edits import Edit, iter_edits, read_edits, read_probes
from more_cli.inputs.feeds import Pipe
from more_cli.inputs.forms import raw_records
from more_cli.inputs.images import decode_image
from more_cli.ops.anchors import load_anchors
from more_cli.ops.card import PROVENANCE, Relation, titled
from more_cli.ops.convert import convert_into
from more_cli.ops.provenance import carried, read_provenance, tensor_hashes
from more_cli.options import ConvertOptions
from more_cli.recipe.files import load_recipe, parse_recipe
from more_cli.recipe.settings import apply_setting
from more_cli.store.entry import START, Entry, parse_entry
from more_cli.store.ledger import Ledger
from more_cli.store.project import KEYS, read_settings
from more_cli.store.state import load_meta, load_state
from more_cli.store.statement import MODEL, STATE, TYPE, parsed
from more_cli.suites.annotations import read_pool
from more_cli.suites.mme import read_category
from more_cli.suites.yes_no import parse_answer
from more_cli.text import canonical_json, strict_json
from more_lab.sweep.file import read_sweep

RELATIONS: tuple[Relation, ...] = ("finetune", "adapter")
PARQUET = b"PAR1"
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
    from more_cli.store.status import Status

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


def _csv(data: bytes) -> None:
    with _file("table.csv", data) as path:
        for _ in raw_records(path):
            pass


def _parquet(data: bytes) -> None:
    with _file("table.parquet", PARQUET + data.removeprefix(PARQUET)) as path:
        for _ in raw_records(path):
            pass


def _conversations(data: bytes) -> None:
    with _file("rows.json", data) as path:
        written = io.BytesIO()
        convert_into(path, written, path.parent, ConvertOptions(each_round=True, skip_bad=True))
    for found in iter_edits(Pipe(io.BytesIO(written.getvalue()), "x.jsonl").records(), scratch()):
        assert isinstance(found, Edit), f"a line that was written is refused: {found}"


def _sweep(data: bytes) -> None:
    with _file("sweep.toml", data) as path:
        read_sweep(path)


def _project(data: bytes) -> None:
    with _file("more.toml", data) as path:
        found = read_settings(path)
    assert found.keys() <= KEYS.keys()


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


def _statement(data: bytes) -> None:
    for kind in (STATE, MODEL):
        with suppress(StateError):
            assert parsed(data, kind).predicateType == kind


def _provenance(data: bytes) -> None:
    with _file(f"merged/{PROVENANCE}", data) as path:
        values = read_provenance(path.parent)
    tensor_hashes(values)
    carried(values)


def _card(data: bytes) -> None:
    """A base's model card; what is made of it can be read again."""
    for relation in RELATIONS:
        made = titled(titled(data, relation, "org/name"), relation, "org/name")
        assert titled(made, relation, "org/name") == made, "a card changes each time"


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


def _parquet_file() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    buffer = io.BytesIO()
    table = pa.table({"question": ["q", "r"], "target": ["t", None], "image": [_png(), None], "tags": [[1], [2, 3]]})
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _statement_bytes() -> bytes:
    recipe = {"name": "llava"}
    predicate = {"base": {"headers": START}, "recipe": recipe, "edits": 1, "digest": START, "ledger_head": START}
    predicate |= {"asked": 1, "failed": 0, "lines": 1}
    subject = [{"name": "llava.more", "digest": {"sha256": START}}]
    return json.dumps({"_type": TYPE, "subject": subject, "predicateType": STATE, "predicate": predicate}).encode()


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
    chat = {"id": "c", "image": "1.png", "conversations": [{"from": "human", "value": "<image>\nWhat?"}]}
    chat["conversations"] += [{"from": "gpt", "value": "a tram"}]  # type: ignore[operator]
    message = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image", "image": "1.png"}]}]
    }
    message["messages"] += [{"role": "assistant", "content": "a"}]  # type: ignore[list-item]
    task = {"data": {"image": "/data/local-files/?d=1.png", "question": "q"}, "annotations": [{"result": [
        {"from_name": "target", "type": "textarea", "value": {"text": ["a"]}}]}]}  # fmt: skip
    csv = b'question;target;image\n"What; is it?";a tram;1.png\n\nq;t\n'
    grid = b'editors = ["more", "ft-l"]\nlimits = [2, 4]\nchanges = [[], ["max_steps=3"]]\nseeds = [1]\n'
    grid += b'[settings]\n"default.step" = [0.1, 0.2]\n[settings."ft-l"]\nsteps = [1]\n'
    fleet = b'[fleet]\nmodels = ["embedded:llava"]\nedits = "e.jsonl"\nthen = "merge"\n'
    merged = {"schema": "more.provenance/1", "files": {"model.safetensors": START}, "base": {"headers": START}}
    merged |= {"folds": [{"disk_key": "a", "sha256": START}], "signed": {"statement": "{}", "signature": "x"}}
    card = b"---\nlicense: mit\ntags: [a, &b b, *b]\nmodel-index:\n- name: x\n---\n# Title\n"
    written = ledger.read_bytes()
    uri = b"data:image/png;base64,iVBORw0KGgo="
    return [
        Parser("edit lines", _edit_stream, lines),
        Parser("edits file", _edit_file, arrays),
        Parser("probes", _probe_file, (asked,)),
        Parser("annotations", _annotations, arrays),
        Parser("CSV", _csv, (csv, b"question,target\nq,t\n")),
        Parser("Parquet", _parquet, (_parquet_file(),), 8192),
        Parser("conversations", _conversations, (_spelled(chat), _spelled(message), _spelled(task), *arrays)),
        Parser("sweep", _sweep, (grid, fleet)),
        Parser("more.toml", _project, (b'model = "llava"\ngates = ["rel.gen_exact>=0.95"]\n', b"device='cpu'\n")),
        Parser("statement", _statement, (_statement_bytes(),)),
        Parser("more.json", _provenance, (json.dumps(merged).encode(),)),
        Parser("model card", _card, (card, b"# Title\n")),
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
