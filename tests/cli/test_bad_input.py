"""Bad input of every kind: the exit code, one line that explains it, and an unchanged disk."""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from more_cli import files
from more_cli.store.lock import writer_lock
from support import tiny
from support.helpers import QUICK, World, forks, in_child, line, run, tree
from support.refused import assert_refused

Argv = tuple[Any, ...]
CASES: list[Any] = []
SITE = "multi_modal_projector.linear_1.weight"
TEXT_SITE = "language_model.model.layers.0.mlp.down_proj"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, text_layers=1)
    world.edits(2)
    return world


def case(code: int, *said: str) -> Callable[[Callable[[World], Argv]], Callable[[World], Argv]]:
    """Add a case to the table: a function that breaks something and returns the command to run on it."""

    def add(spoil: Callable[[World], Argv]) -> Callable[[World], Argv]:
        CASES.append(pytest.param(spoil, code, said, id=spoil.__name__))
        return spoil

    return add


@pytest.mark.parametrize(("spoil", "code", "said"), CASES)
def test_refused(world: World, spoil: Callable[[World], Argv], code: int, said: tuple[str, ...]) -> None:
    argv = spoil(world)
    before = tree(world.root)
    assert_refused(run(*argv), code, *said)
    assert tree(world.root) == before


def edit(world: World, *options: Any) -> Argv:
    return "edit", world.model, "edits.jsonl", *QUICK, *options


def stream(world: World, *lines: Any) -> Argv:
    world.write([line(0), *lines])
    return edit(world)


# --- the command line ---


@case(2, "error: no such option: --colour", "hint: see `more edit --help`")
def unknown_option(world):
    return edit(world, "--colour", "red")


@case(2, "error: no such command 'edits'")
def unknown_command(world):
    return ("edits",)


@case(2, "error: missing argument 'EDITS'")
def missing_argument(world):
    return "edit", world.model


@case(2, "error: missing option '--out'")
def merge_without_a_folder(world):
    return "merge", world.model


@case(2, "error: invalid value for '--limit'")
def limit_of_nothing(world):
    return edit(world, "--limit", 0)


@case(2, "'--on-error'", "'maybe'")
def unknown_choice(world):
    return edit(world, "--on-error", "maybe")


@case(2, "`--device abacus` cannot be used")
def unknown_device(world):
    return edit(world, "--device", "abacus")


@case(2, "`--dtype int4` is not one of auto, float32")
def unknown_dtype(world):
    return edit(world, "--dtype", "int4")


@case(2, "no recipe `lava`", "shipped recipes: ", "llava")
def unknown_recipe(world):
    return "init", world.model, "--recipe", "lava"


@case(2, "bad.toml")
def broken_recipe(world):
    (world.root / "bad.toml").write_text("rank = = 3")
    return "init", world.model, "--recipe", "bad.toml"


@case(2, "`--set rank` has no `=`")
def setting_without_a_value(world):
    return "init", world.model, "--set", "rank"


@case(2, "rang", "rank")
def settings_that_do_not_pass(world):
    return "init", world.model, "--set", "rang=3", "--set", "rank=0"


@case(2, "no model named, and no `*.more` file here")
def no_model_named(world):
    return ("status",)


@case(2, "several `*.more` files are here: a.more, b.more")
def two_states_in_the_folder(world):
    for name in ("a.more", "b.more"):
        (world.root / name).touch()
    return ("status",)


@case(2, "inside the checkpoint folder")
def state_inside_the_model(world):
    return "init", world.model, "--state", world.model / "s.more"


# --- the model ---


@case(5, "nowhere: no such directory", "pass the folder that holds config.json")
def no_model(world):
    return "init", world.root / "nowhere"


@case(5, "no such directory", "hub id and nothing is fetched: hf download llava-hf/llava-1.5-7b-hf")
def hub_id(world):
    return "edit", "llava-hf/llava-1.5-7b-hf", "edits.jsonl"


@case(5, "a file, not a checkpoint directory")
def model_is_a_file(world):
    return "status", world.root / "edits.jsonl"


@case(5, "no config.json")
def model_without_config(world):
    (world.model / "config.json").unlink()
    return edit(world)


@case(5, "only pickled weights", "save_pretrained")
def pickles_only(world):
    tiny.bin_only(world.model)
    return edit(world)


@case(5, "quantised")
def quantised(world):
    for module in ("multi_modal_projector.linear_1", "multi_modal_projector.linear_2", TEXT_SITE):
        tiny.quantised(world.model, module)
    return edit(world)


@case(5, "adapter_config.json inside")
def adapter_inside(world):
    tiny.with_adapter(world.model)
    return edit(world)


@case(5, "model.safetensors", "truncated")
def truncated_shard(world):
    tiny.truncated(world.model)
    return edit(world)


@case(5, "the processor does not load")
def no_processor(world):
    for file in (*world.model.glob("*token*"), *world.model.glob("*processor*")):
        file.unlink()
    return edit(world)


@case(5, "no chat template", "chat_template.jinja")
def no_chat_template(world):
    (world.model / "chat_template.jinja").unlink()
    return edit(world)


# --- the edits ---


@case(4, "file not found: `none.jsonl`")
def no_edits_file(world):
    return "edit", world.model, "none.jsonl"


@case(4, "`img` cannot be read: is a directory")
def edits_are_a_folder(world):
    return "edit", world.model, "img"


@case(4, "edits.jsonl: holds no edits")
def empty_file(world):
    world.write([])
    return edit(world)


@case(4, "edits.jsonl:2: not JSON")
def invalid_json(world):
    return stream(world, '{"question": ')


@case(4, "edits.jsonl:2: not UTF-8: byte 0xff")
def not_utf8(world):
    return stream(world, b'{"question": "\xff"}')


@case(4, "edits.jsonl: is UTF-16", "iconv")
def utf16(world):
    (world.root / "edits.jsonl").write_bytes(json.dumps(line(0)).encode("utf-16"))
    return edit(world)


@case(4, "edits.jsonl:2: `target` is empty")
def empty_target(world):
    return stream(world, line(1, target="  "))


@case(4, "edits.jsonl:2: unknown field `prompt`; did you mean `question`?")
def unknown_field(world):
    return stream(world, line(1, prompt="?"))


@case(4, "edits.jsonl:2: `question` is missing")
def missing_field(world):
    return stream(world, {"target": "x"})


@case(4, "edits.jsonl:2: id `e1` is used in line 1 with other content")
def id_used_twice(world):
    return stream(world, line(0, target="other"))


@case(4, "edits.jsonl:1: id `e1` is in the ledger with other content")
def id_known_to_the_ledger(world):
    run(*edit(world))
    world.write([line(0, target="other")])
    return edit(world)


@case(4, "edits.jsonl:2: `target` has 2,001 characters")
def target_too_long(world):
    return stream(world, line(1, target="x" * 2001))


@case(4, "edits.jsonl:2: question and target take", "the model's context has 512", "shorten")
def target_too_long_for_the_context(world):
    return stream(world, line(1, target="@" * 600))


@case(4, "edits.jsonl:2: image not found: `img/pink.png`", "--image-root")
def missing_image(world):
    return stream(world, line(1, image="img/pink.png"))


@case(4, "edits.jsonl:2: image `https://example.org/a.png` is a URL", "nothing is fetched")
def image_is_a_url(world):
    return stream(world, line(1, image="https://example.org/a.png"))


@case(4, "edits.jsonl:2: image `cut.png` cannot be decoded", "cut short")
def truncated_image(world):
    noise = torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = tiny_png(64, 64, noise.numpy().tobytes())
    (world.root / "cut.png").write_bytes(picture[: len(picture) // 2])
    return stream(world, line(1, image="cut.png"))


@case(4, "edits.jsonl:2: image `bomb.png` has more than 36 megapixels")
def decompression_bomb(world):
    (world.root / "bomb.png").write_bytes(tiny_png(60_000, 60_000, b""))
    return stream(world, line(1, image="bomb.png"))


@case(4, "edits.jsonl:2: image `img` is not a file", "edits.jsonl:3: `edits.jsonl` is not a readable image")
def images_that_are_none(world):
    return stream(world, line(1, image="img"), line(2, image="edits.jsonl"))


@case(4, "edits.jsonl:2", "edits.jsonl:21:", "error: and 5 more")
def every_problem_is_listed(world):
    return stream(world, *(line(1, target="") for _ in range(25)))


@case(4, "file not found: `none.jsonl`")
def no_probes_file(world):
    run("init", world.model)
    return "eval", world.model, "--probes", "none.jsonl"


@case(4, "probes.jsonl:1: unknown field `target`", "probes.jsonl:2: not JSON")
def broken_probes(world):
    run("init", world.model)
    world.write([line(0), "{"], "probes.jsonl")
    return "eval", world.model, "--probes", "probes.jsonl"


def tiny_png(width: int, height: int, pixels: bytes) -> bytes:
    rows = b"".join(b"\0" + pixels[start : start + 3 * width] for start in range(0, len(pixels), 3 * width))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (*chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + body


# --- the state ---


@case(5, "no state at", "more init MODEL")
def no_state(world):
    return "eval", world.model


@case(5, "was made for another base", f"tensor:{SITE} differ")
def another_weight(world):
    run("init", world.model)
    tensors = tiny.read_weights(world.model)
    tensors[SITE][0, 0] += 1
    tiny.write_weights(world.model, tensors)
    return edit(world)


@case(5, "was made for another base", "config.json")
def another_config(world):
    run("init", world.model)
    tiny.set_config(world.model, note="changed")
    return "status", world.model


@case(5, "was made for another base")
def another_model(world):
    run("init", world.model, "--state", "other.more")
    other = tiny.tiny_llava(world.root / "other", text_layers=2, seed=1)
    return "merge", other, "-o", "out"


@case(5, "model.more` is damaged", "the ledger beside it replays every edit")
def truncated_sidecar(world):
    run("init", world.model)
    world.sidecar.write_bytes(world.sidecar.read_bytes()[:-50])
    return edit(world)


@case(5, "model.more` is damaged")
def garbage_sidecar_without_a_folder(world):
    world.sidecar.write_bytes(b"garbage " * 100)
    return edit(world)


@case(5, "model.more` is not a state of `more`")
def sidecar_of_something_else(world):
    save_file({"x": torch.zeros(1)}, world.sidecar)
    return "eval", world.model


@case(5, "has schema 99", "upgrade more-cli")
def newer_schema(world):
    run("init", world.model)
    with safe_open(world.sidecar, "pt") as file:
        meta = json.loads(file.metadata()["more"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, world.sidecar, {"more": json.dumps(meta | {"schema_version": 99})})
    return "status", world.model


@case(5, "was made with another recipe", "--state FILE")
def changed_recipe(world):
    run("init", world.model)
    return "edit", world.model, "edits.jsonl", "--set", "max_steps=7"


@case(5, "was made with another recipe")
def changed_recipe_in_a_dry_run(world):
    return *changed_recipe(world), "--dry-run"


@case(5, "exists, with another recipe (0 edits)")
def another_recipe_for_init(world):
    run("init", world.model)
    return "init", world.model, "--set", "rank=4"


@case(5, "ledger.jsonl:1: line is damaged")
def damaged_ledger(world):
    run(*edit(world))
    spoilt = (world.folder / "ledger.jsonl").read_bytes().replace(b'"seq":1', b'"seq":"x"', 1)
    (world.folder / "ledger.jsonl").write_bytes(spoilt)
    return edit(world)


@case(5, "disagree about the first", "backup")
def shortened_ledger(world):
    run(*edit(world))
    first = (world.folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)[0]
    (world.folder / "ledger.jsonl").write_bytes(first)
    return "status", world.model


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a second process")
def test_a_lock_that_a_living_process_holds(world: World) -> None:
    run("init", world.model)

    def meanwhile() -> bool:
        result = run(*edit(world))
        assert_refused(result, 5, f"is in use by process {os.getppid()}", "kill")
        return False

    with writer_lock(world.folder / "lock"):
        before = tree(world.root)
        assert in_child(meanwhile) == 0
        assert tree(world.root) == before


# --- the result of a merge ---


@case(2, "`out` is not empty", "--force")
def merge_onto_a_full_folder(world):
    run("init", world.model)
    (world.root / "out").mkdir()
    (world.root / "out" / "mine").touch()
    return "merge", world.model, "-o", "out"


@case(2, "holds no `more.json`")
def forced_merge_onto_something_else(world):
    return *merge_onto_a_full_folder(world), "--force"


@case(2, "is, or lies in, the base checkpoint")
def merge_onto_the_base(world):
    run("init", world.model)
    return "merge", world.model, "-o", world.model, "--force"


@case(2, "is, or lies in, the base checkpoint")
def merge_inside_the_base(world):
    run("init", world.model)
    return "merge", world.model, "-o", world.model / "out"


@case(2, "`edits.jsonl` is a file")
def merge_onto_a_file(world):
    run("init", world.model)
    return "merge", world.model, "-o", "edits.jsonl"


@case(2, "stochastic rounding is for bfloat16")
def stochastic_rounding_of_float32(world):
    run(*edit(world))
    return "merge", world.model, "-o", "out", "--rounding", "stochastic"


# --- the machine ---


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """The step-th disk operation fails, once."""
    calls = 0

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                raise OSError(number, os.strerror(number))
            return function(*args)

        return call

    for name in ("_write", "_fsync", "_rename"):
        monkeypatch.setattr(files, name, failing(getattr(files, name)))


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, 7, "no space left on device"),
        (errno.EDQUOT, 7, "quota"),
        (errno.EROFS, 5, "is not writable: read-only file system"),
        (errno.EACCES, 5, "is not writable: permission denied"),
        (errno.EIO, 5, "input/output error"),
    ],
)
def test_a_disk_that_fails_at_the_first_write(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, code: int, said: str
) -> None:
    run("init", world.model, *QUICK)
    before = tree(world.root)
    fail_at(monkeypatch, 1, number)
    assert_refused(run(*edit(world)), code, said)
    changed = {name for name, content in tree(world.root).items() if content != before.get(name)}
    assert changed <= {"model.more.d/images", "model.more.d/images/.part"}


@pytest.mark.parametrize("said_no", ["mkdir", "open"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder(world: World, monkeypatch: pytest.MonkeyPatch, said_no: str, number: int) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    before = tree(world.root)
    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "mkdir", refuse) if said_no == "mkdir" else (files.os, "open", refuse)))
        result = run("init", world.model)
    assert_refused(result, 5, "is not writable", "`--state FILE`")
    assert set(tree(world.root)) - set(before) <= {"model.more.d", "model.more.d/lock"}


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_write(world: World, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed.more"
    run(*edit(world, "--state", undisturbed))
    step, code = 0, 7
    while code == 7:
        step += 1
        sidecar = tmp_path / f"{step}.more"
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, step, errno.ENOSPC)
            result = run(*edit(world, "--state", sidecar))
        code = result.code
        if code == 7:
            assert_refused(result, 7, "no space left", "run the same command again")
        assert run(*edit(world, "--state", sidecar)).code == 3
        assert sidecar.read_bytes() == undisturbed.read_bytes(), f"full at step {step}"
        assert [entry["id"] for entry in world.entries(sidecar)] == ["e1", "e2"]
    assert step > 15


@forks
@pytest.mark.parametrize("command", ["init", "edit", "merge"])
def test_a_file_that_may_not_grow(world: World, command: str) -> None:
    """The kernel refuses to write in the middle of the sidecar or of a shard."""
    resource = pytest.importorskip("resource")
    run(*edit(world, "--state", "s.more"))
    before = tree(world.root)
    argv = {"init": ("init", world.model), "edit": edit(world), "merge": ("merge", world.model, "-o", "out")}[command]
    state = ("--state", "s.more") if command == "merge" else ()

    def limited() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        assert_refused(run(*argv, *state), 7, "cannot write" if command != "merge" else "", "free some space")
        return False

    assert in_child(limited) == 0
    assert set(tree(world.root)) - set(before) <= {"model.more.d", "model.more.d/lock"}
    assert run(*argv, *state).code in (0, 3)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=["RAM", "GPU"])
def test_no_memory_inside_an_edit(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    run(*edit(world))
    before = world.sidecar.read_bytes()
    world.edits(3)

    def exhausted(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("more_cli.editors.more.sites.Sites.absorb", exhausted)
        assert_refused(run(*edit(world)), 7, "out of memory", "--dtype bfloat16")
    assert world.sidecar.read_bytes() == before
    assert len(world.entries()) == 2
    assert run(*edit(world, "--json")).json["applied"] == 1


def test_no_memory_for_the_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    run("init", world.model, *QUICK)
    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", exhausted)
    assert_refused(run(*edit(world)), 7, "does not fit into memory", "--dtype bfloat16")


def test_a_bug_keeps_its_traceback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.ops.init.plan", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("status", world.model)
