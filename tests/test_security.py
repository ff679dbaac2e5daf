"""What SECURITY.md promises about files of somebody else's making."""

from __future__ import annotations

import ast
import base64
import io
import json
import logging
import os
import pickle
import re
import stat
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from more_cli.checkpoint import headers as checkpoint
from more_cli.cli import output as terminal
from more_cli.cli.output import Output
from more_cli.errors import DataError, StateError
from more_cli.inputs import images
from more_cli.inputs.images import locate_image
from more_cli.ops.anchors import read_cache, write_cache
from more_cli.store import state
from more_cli.store.pin import PIN, read_pin
from support.helpers import QUICK, World, line, run, spelled, tree

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "more_cli").rglob("*.py"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of which the edits' folder is a part: what lies beside it is outside."""
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, text_layers=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "img").rename(tmp_path / "in" / "img")
    Image.new("RGB", (28, 28), "pink").save(tmp_path / "secret.png")
    (tmp_path / "in" / "file.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    (tmp_path / "in" / "same.png").symlink_to("img/red.png")
    return world


OUTSIDE = ["{root}/secret.png", "{root}/in/img/red.png", "../secret.png", "img/../img/red.png", "file.png"]
OUTSIDE += ["folder/secret.png"]


# --- links in the folder of a state ---


@pytest.mark.parametrize("name", ["lock", "lock.pid", "images/.part", "snapshots/000002.auto.more", "hub.json"])
def test_a_link_in_the_folder_of_a_state_is_not_written_through(world: World, name: str) -> None:
    edits = world.write([line(0), line(1)], "in/edits.jsonl")
    run("edit", world.model, edits, *QUICK, "--limit", 1)
    victim, link = world.root / "victim", world.folder / name
    victim.write_text("mine\n")
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    before = tree(world.root)
    refused = run("edit", world.model, edits)
    assert refused.code == 5
    assert f"`{link}` is a link to `{victim}`" in refused.err
    assert tree(world.root) == before
    link.unlink()
    assert run("edit", world.model, edits).code in (0, 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("name", ["model.more.current", "model.more.d/anchors.jsonl"])
def test_a_pipe_in_the_place_of_a_file_of_a_state_is_not_waited_for(world: World, name: str) -> None:
    questions = world.write([{"question": "is it day ?", "answer": "no"}], "anchors.jsonl")
    assert run("init", world.model, "--anchors", questions).code == 0
    (world.root / name).unlink(missing_ok=True)
    os.mkfifo(world.root / name)
    done = run("verify", world.model)
    assert done.code == 5
    assert f"`{world.root / name}` is not a file" in done.out + done.err
    os.mkfifo(world.folder / PIN)
    assert read_pin(world.folder) is None


def test_a_link_in_the_place_of_a_cache_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine\n")
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "victim")
    write_cache(tmp_path / "a.safetensors", {"a": torch.zeros(1)})
    assert (tmp_path / "victim").read_text() == "mine\n"
    assert read_cache(tmp_path / "a.safetensors").keys() == {"a"}


# --- --strict-paths ---


@pytest.mark.parametrize("spelled_as", OUTSIDE)
def test_strict_paths_refuses_what_leads_out(world: World, spelled_as: str) -> None:
    name = spelled_as.format(root=world.root)
    edits = world.write([line(0, image=name)], "in/edits.jsonl")
    probes = world.write([{"image": name, "question": "what ?"}], "in/probes.jsonl")
    run("init", world.model, *QUICK)
    before = tree(world.root)
    refused = f"error: {{}}:1: image `{name}` leads out of the image root"
    for argv, source in (
        (("edit", world.model, edits), edits),
        (("edit", world.model, "-", "--image-root", world.root / "in"), "<stdin>"),
        (("eval", world.model, "--probes", probes), probes),
        (("init", world.model, "--state", "new.more", "--anchors", probes), probes),
        (("init", world.model, "--state", "new.more", "--calibrate", edits), edits),
        (("eval", world.model, "--suite", edits), edits),
    ):
        result = run(*argv, "--strict-paths", stdin=spelled(line(0, image=name)))
        assert (result.code, result.out) == (4, ""), argv
        assert refused.format(source) in result.err
        assert "hint: with --strict-paths every image must be below" in result.err
    assert run("suites", "check", edits, "--strict-paths", "--json").json["usable"] is False
    assert tree(world.root) == before
    assert locate_image(name, world.root / "in").sha256, "without --strict-paths it is an image like every other"


def test_strict_paths_takes_what_lies_below_the_root(world: World) -> None:
    uri = "data:image/png;base64," + base64.b64encode((world.root / "in/img/red.png").read_bytes()).decode()
    lines = [line(n, image=name, question=f"is it {n} ?") for n, name in enumerate(["img/red.png", "same.png", uri])]
    edits = world.write(lines, "in/edits.jsonl")
    assert run("edit", world.model, edits, *QUICK, "--strict-paths", "--json").json["applied"] == 3


@pytest.mark.parametrize("there", [True, False])
def test_strict_paths_of_a_suite_that_lists_its_images(world: World, there: bool) -> None:
    category = world.root / "mme" / "existence"
    category.mkdir(parents=True)
    (category / "a.txt").write_text("Is it red?\tYes\nIs it blue?\tNo\n")
    (category / "a.png").symlink_to(world.root / "secret.png" if there else "b.png")
    Image.new("RGB", (28, 28), "red").save(category / "b.png")
    (category / "b.txt").write_text("Is it red?\tYes\nIs it blue?\tNo\n")
    checked = run("suites", "check", "mme", "--data-root", "mme", "--strict-paths", "--json")
    assert checked.json["usable"] is not there
    assert run("suites", "check", "mme", "--data-root", "mme", "--json").json["usable"]


def test_strict_paths_looks_at_the_file_it_has_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and looking, what leads out was put away: the open file is still another one."""
    root, real = world.root / "in", images._open_nonblocking

    def swapped(path: str, flags: int) -> int:
        descriptor = real(path, flags)
        (root / "file.png").unlink()
        (root / "file.png").write_bytes((root / "img" / "red.png").read_bytes())
        return descriptor

    monkeypatch.setattr(images, "_open_nonblocking", swapped)
    with pytest.raises(DataError, match="leads out of the image root"):
        locate_image("file.png", root, strict=True)


# --- no pickle, no code ---


def test_no_module_unpickles_evaluates_or_trusts_code() -> None:
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                )
                assert not {"pickle", "marshal", "shelve", "dill", "joblib", "runpy"} & set(names), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "__import__", "torch.load", "np.load"}, (path, called)
                trusted = [ast.unparse(word.value) for word in node.keywords if word.arg == "trust_remote_code"]
                assert trusted in ([], ["False"]), path
                if called.endswith((".from_pretrained", "Text.from_config")):
                    assert trusted, f"{path}:{node.lineno}: {called} asks the user unless it is told"


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_every_command_works_without_unpickling(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was unpickled")

    edits = world.write([line(0), line(1)], "in/edits.jsonl")
    mark = world.root / "mark"
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (world.model / name).write_bytes(pickle.dumps(Evil(mark)))
    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(owner, name, refuse)
    for argv in (
        ("init", world.model, *QUICK),
        ("edit", world.model, edits),
        ("eval", world.model),
        ("status", world.model),
        ("merge", world.model, "-o", "out", "--verify"),
        ("export", world.model, "-o", "adapter"),
    ):
        assert run(*argv).code in (0, 3), argv
    assert not mark.exists()
    assert not [*(world.root / "out").glob("*.bin"), *(world.root / "out").glob("*.pt")]


def test_code_that_a_checkpoint_brings_is_not_run(world: World) -> None:
    """`auto_map` names classes for transformers to import from the folder."""
    mark = world.root / "mark"
    (world.model / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil:\n    pass\n")
    for file in world.model.glob("*.json"):
        values = json.loads(file.read_text())
        if file.name.endswith("config.json"):
            names = (
                "AutoConfig",
                "AutoModelForImageTextToText",
                "AutoProcessor",
                "AutoTokenizer",
                "AutoImageProcessor",
            )
            values["auto_map"] = dict.fromkeys(names, "evil.Evil") | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
            file.write_text(json.dumps(values))
    edits = world.write([line(0)], "in/edits.jsonl")
    for argv in (("status", world.model), ("edit", world.model, edits, *QUICK), ("eval", world.model)):
        assert run(*argv).code in (0, 3), argv
    assert not mark.exists()
    assert "evil" not in sys.modules


# --- headers ---


def tensor(shape: list[int], start: int, stop: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def with_header(path: Path, header: dict[str, Any], size: int) -> Path:
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + size)  # a sparse file: nothing but holes
    return path


@pytest.mark.parametrize(
    ("header", "size", "said"),
    [
        ({"x" * 501: tensor([1], 0, 4)}, 4, "do not fit each other"),
        ({str(number): tensor([0], 0, 0) for number in range(51)}, 0, "51 tensors, more than 50"),
        ({"a": tensor([1 << 40], 0, 4)}, 4, "do not fit each other"),
        ({"a": tensor([1], 8, 12)}, 12, "does not follow"),
        ({"a": tensor([1], 0, 4)}, 99, "the file has"),
    ],
)
def test_headers_are_bounded_in_shards_and_sidecars(
    world: World, monkeypatch: pytest.MonkeyPatch, header: dict[str, Any], size: int, said: str
) -> None:
    run("init", world.model, *QUICK)
    monkeypatch.setattr(checkpoint, "_TENSORS", 50)
    with_header(world.sidecar, header, size)
    result = run("eval", world.model)
    assert (result.code, said in result.err, "model.more` is damaged" in result.err) == (5, True, True)
    with_header(world.model / "model.safetensors", header, size)
    result = run("status", world.model, "--state", "none.more")
    assert (result.code, said in result.err) == (5, True)


def test_nothing_of_a_sidecar_is_read_before_it_fits_what_it_says_of_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", world.model, *QUICK)
    with io.FileIO(world.sidecar) as file:
        metadata, entries = checkpoint.read_header(file, world.sidecar.name)
    wide, start = {"__metadata__": metadata}, 0
    for entry in entries:
        size = 8 << 20  # rows; some GiB in all, had they been read
        stop = start + size * (4 if entry.dtype == "F32" else 8)
        wide[entry.key] = tensor([size, 1], start, stop, entry.dtype)
        start = stop
    path = with_header(world.root / "wide.more", wide, start)
    monkeypatch.setattr("more_cli.store.sidecar.Sidecar.read", lambda *_: pytest.fail("its tensors were read"))
    with pytest.raises(StateError, match=r"is damaged: `.*` is not"):
        state.load_state(path)


# --- what is shown ---

STEERING = "\x9b2J\u202e\u2066\x7f\u200b"


def test_json_steers_no_terminal_and_says_the_same(world: World) -> None:
    path = world.root / f"s{STEERING}\udcff.more"
    result = run("init", world.model, *QUICK, "--state", path, "--json")
    assert (result.code, result.json["state"]) == (0, str(path))
    assert result.out.rstrip("\n").isprintable()
    result.out.encode()


def test_log_lines_and_progress_steer_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "LOG_SECONDS", 0.0)
    shown = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with redirect_stderr(shown):
        output = Output(verbose=2)
        logging.getLogger("x").warning("a\x1b[31m%s", STEERING)
        with output.progress() as progress:
            progress(1, 2, f"edit {STEERING}\n")
        root.handlers[:] = handlers
        root.setLevel(level)
    assert shown.getvalue().count("\n") == 2
    assert all(letter.isprintable() or letter == "\n" for letter in shown.getvalue())


# --- files ---


@pytest.mark.skipif(os.name == "nt", reason="no umask")
@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_whatever_is_written_follows_the_umask(world: World, umask: int) -> None:
    edits = world.write([line(0)], "in/edits.jsonl")
    before = set(world.root.rglob("*"))
    old = os.umask(umask)
    try:
        for argv in (
            ("edit", world.model, edits, *QUICK),
            ("eval", world.model, "--report", "r.html", "--report", "r.md", "--junit", "r.xml"),
            ("merge", world.model, "-o", "out"),
            ("export", world.model, "-o", "adapter"),
            ("export", world.model, "--format", "delta", "-o", "deltas.safetensors"),
            ("suites", "convert", "e-ic", "-o", "e-ic.jsonl"),
        ):
            assert run(*argv).code in (0, 3), argv
    finally:
        os.umask(old)
    written = [path for path in world.root.rglob("*") if path not in before]
    assert {"model.more", "ledger.jsonl", "r.html", "r.xml", "deltas.safetensors"} <= {path.name for path in written}
    base = {path.name for path in world.model.iterdir()}
    for path in written:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.parent.name == "out" and path.name in base - {"model.safetensors"}:
            continue  # copied with the base's own mode
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, f"{path}: {mode:o}"


# --- the page ---


def test_every_promise_names_a_test_that_there_is() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"\[(test_\w+\.py)\]\(tests/((?:\w+/)*test_\w+\.py)\), `(test_\w+)`", page)
    assert len(named) == page.count("](tests/") >= 10
    for shown, file, test in named:
        assert shown == Path(file).name
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), test
