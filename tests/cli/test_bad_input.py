"""Bad input of every kind: the exit code, one line that explains it, and an unchanged disk."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import struct
import sys
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

EDIT = f"edit model edits.jsonl {' '.join(QUICK)}"
TYPED = {
    f"{EDIT} --colour red": "error: no such option `--colour`\nhint: see `more edit --help`\n",
    "eval model --gat rel.gen_exact>=1": "error: no such option `--gat`\nhint: did you mean `--gate`?\n",
    "--json status model": "error: no such option `--json`\nhint: options come after the command: more COMMAND --json",
    f"{EDIT} --limit": "error: option `--limit` requires an argument\nhint: type: --limit N; see `more edit --help`\n",
    "edti model": "error: no such command `edti`\nhint: did you mean `edit`?\n",
    "frobnicate": "error: no such command `frobnicate`\nhint: see `more --help`\n",
    "suites lst": "error: no such command `lst`\nhint: did you mean `list`?\n",
    "log shwo e1": "error: no such command `shwo`\nhint: did you mean `show`?\n",
    "log model e1": "error: unexpected argument `e1`\nhint: type: more log show model e1; see `more log list --help`\n",
    "anchors model": "error: no such command `model`\nhint: type: more anchors list model\n",
    "recipes paper-llava": "error: no such command `paper-llava`\nhint: type: more recipes show paper-llava\n",
    "status model --tokens 5": "error: --tokens needs --estimate\n",
    "init": (
        "error: missing argument `MODEL`\n"
        "hint: type: more init [OPTIONS] MODEL [EDITS|FOLDER]; see `more init --help`\n"
    ),
    "eval model more": (
        "error: unexpected argument `more`\nhint: type: more eval [OPTIONS] [MODEL]; see `more eval --help`\n"
    ),
    "merge model": "error: missing option `--out` / `-o`\nhint: type: more merge [OPTIONS] [MODEL] -o DIR; ",
    f"{EDIT} --limit 0": "error: `--limit` must be at least 1, not `0`\nhint: see `more edit --help`\n",
    f"{EDIT} --limit ten": "error: `--limit` must be a whole number, not `ten`",
    "log model --status green": "error: `--status`: `green` is not one of `learnt`, `not-learnt`",
    f"{EDIT} --on-error maybe": "error: `--on-error`: `maybe` is not one of `stop`, `skip`",
    f"{EDIT} --device abacus": "`--device abacus` cannot be used",
    f"{EDIT} --device meta": "`--device meta` cannot be used",
    f"{EDIT} --device privateuseone": "`--device privateuseone` cannot be used",
    f"{EDIT} --dtype int4": "`--dtype int4` is not one of auto, float32",
    "init model --recipe lava": "no recipe `lava`\nhint: did you mean `llava`? shipped recipes: ",
    "init model --set rank": "`--set rank` has no `=`",
    "init model --set =3": "error: `--set =3` has no key\nhint: write --set key=value",
    "init model --set rang=3 --set rank=0": (
        "error: recipe `llava`: `rank` cannot be `0`; it takes a whole number >= 1\n"
        "error: recipe `llava`: there is no key `rang`\n"
        "hint: for example --set rank=512; `more recipes show llava` lists all keys\n"
    ),
    "init model --set eta=": (
        "error: recipe `llava`: there is no key `eta`\n"
        "hint: did you mean `default.step`? `more recipes show llava` lists all keys\n"
    ),
    "init model --set rank=": (
        "error: recipe `llava`: `rank` has no value; it takes a whole number >= 1\nhint: for example --set rank=512;"
    ),
    "init model --set rank.size=3": "error: `--set rank.size=3`: `rank` is no table\nhint: write --set rank=value\n",
    "run model --suite e-vqa --editor ft-l --set rat=1 -q": (
        "error: editor `ft-l`: there is no key `rat`\nhint: did you mean `rate`? "
        "its keys are steps, rate, decay, stop, prompts, labels, end_of_sequence\n"
    ),
    "status": "no model named, and no `*.more` file here",
    "convert - -o out.jsonl": "`convert` reads a file, not standard input",
}
"""What is typed wrongly, and what is said to it; the exit code is 2."""


@pytest.mark.parametrize(("typed", "said"), TYPED.items())
def test_misuse(world: World, typed: str, said: str) -> None:
    before = tree(world.root)
    assert_refused(run(*typed.split()), 2, said)
    assert tree(world.root) == before


@case(2, "error: no such command `logs`\nhint: did you mean `log`? `more ./logs` shows the file\n")
def file_named_nearly_like_a_command(world):
    (world.root / "logs").touch()
    return ("logs",)


@case(4, "error: f.csv is CSV, and questions are read from JSON Lines\nhint: write each as {")
def table_of_probes(world):
    run("init", world.model)
    world.write(["question,answer", "what ?,r"], "f.csv")
    return "eval", "model", "--probes", "f.csv"


@case(4, "error: f.csv is CSV, and questions are read from JSON Lines\nhint: write each as {")
def table_of_anchors(world):
    world.write(["question,answer", "what ?,r"], "f.csv")
    return "init", "model", "--anchors", "f.csv", "--state", "new.more"


@case(5, "no state at `")
def model_that_is_named_like_a_command_of_the_log(world):
    (world.root / "lists").mkdir()
    return "log", "lists"


@case(2, "bad.toml")
def broken_recipe(world):
    (world.root / "bad.toml").write_text("rank = = 3")
    return "init", world.model, "--recipe", "bad.toml"


@case(2, "own.toml: `margin` cannot be `wide`; it takes a number > 0\nhint: for example margin = 1; ")
def value_of_an_own_recipe(world):
    (world.root / "own.toml").write_text('margin = "wide"')
    return "init", world.model, "--recipe", world.root / "own.toml"


@case(
    2,
    "`recipes show` needs the name of a recipe\nhint: there are authors-blip2, ",
    "example: more recipes show default",
)
def recipe_without_a_name(world):
    return "recipes", "show"


@case(2, "several `*.more` files are here: a.more, b.more")
def two_states_in_the_folder(world):
    for name in ("a.more", "b.more"):
        (world.root / name).touch()
    return ("status",)


@case(2, "no model named, and no `*.more` file here")
def a_folder_is_no_state(world):
    (world.root / "backup.more").mkdir()
    return ("status",)


@case(5, "edits.jsonl` is not a state", "name a `.more` file")
def edits_as_a_state(world):
    return "status", world.model, "--state", "edits.jsonl"


@case(5, "the state `.` is not a file", "an empty name counts as `.`")
def a_state_without_a_name(world):
    return "edit", world.model, "edits.jsonl", "--state", ""


@case(5, "the state `/` is not a file")
def the_root_as_a_state(world):
    return "edit", world.model, "edits.jsonl", "--dry-run", "--state", "/"


@case(5, "the state `s.more` is not a file")
def a_folder_as_a_state(world):
    (world.root / "s.more").mkdir()
    return "init", world.model, "--state", "s.more"


@case(2, "`--recipe` is empty", "leave it out")
def recipe_of_an_unset_variable(world):
    return "edit", world.model, "edits.jsonl", "--recipe", ""


@case(2, "`--anchors` is empty", "leave it out")
def anchors_of_an_unset_variable(world):
    return "init", world.model, "--anchors", ""


@case(4, "file not found: `edits.jsonl/more.jsonl`", "there is no folder `edits.jsonl`")
def edits_below_a_file(world):
    return "edit", world.model, "edits.jsonl/more.jsonl"


@case(5, "cannot use `edits.jsonl/s.more.d/lock`", "a part of this path is a file")
def a_state_below_a_file(world):
    return "init", world.model, "--state", "edits.jsonl/s.more"


@case(5, "cannot use `edits.jsonl/merged`", "a part of this path is a file")
def a_merge_below_a_file(world):
    world.edit()
    return "merge", world.model, "-o", "edits.jsonl/merged"


@case(5, "`/` is no checkpoint folder")
def the_root_as_a_model(world):
    return "status", "/"


@case(5, ".weight` has shape (", "by `config.json` it is (", "restore the `config.json` of these weights")
def weights_of_another_size(world):
    path = world.model / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["vocab_size"] += 8
    path.write_text(json.dumps(config))
    return "ask", world.model, "what ?"


@case(5, "no tensor for `lm_head.weight`, which would be random values", "download or copy the checkpoint again; or")
def weights_without_a_head(world):
    tensors = tiny.read_weights(world.model)
    del tensors["language_model.lm_head.weight"]
    tiny.write_weights(world.model, tensors)
    return "ask", world.model, "what ?"


@case(5, "no tensor has a name that LlavaForConditionalGeneration loads (`module.", "save the whole model once with")
def weights_of_a_wrapped_model(world):
    tensors = tiny.read_weights(world.model)
    tiny.write_weights(world.model, {f"module.{name}": tensor for name, tensor in tensors.items()})
    return "init", world.model


@case(5, "generation_config.json: not a JSON object", "download or copy the checkpoint again")
def generation_settings_that_are_no_object(world):
    (world.model / "generation_config.json").write_text("[]")
    return "ask", world.model, "what ?"


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


@case(4, "`img` cannot be read: is a directory", "name a file in it")
def edits_are_a_folder(world):
    return "edit", world.model, "img"


@case(4, "`pipe` is a pipe", "save it to a file first")
def anchors_in_a_pipe(world):
    os.mkfifo(world.root / "pipe")
    return "init", world.model, "--anchors", "pipe"


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


@case(4, "edits.jsonl: is compressed (gzip)", "zcat")
def gzipped(world):
    (world.root / "edits.jsonl").write_bytes(gzip.compress(json.dumps(line(0)).encode()))
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
    return stream(world, line(1, id="e1"))


@case(
    4,
    "edits.jsonl:3: gives another answer than line 1 to the same picture and question (`g`, there `r`)",
    "hint: keep one of the two lines",
)
def two_answers_to_one_question(world):
    return stream(world, line(1), line(0, id="other", target="g"))


@case(4, "edits.jsonl:2: gives another answer than line 1 to the same question (`b`, there `a`)")
def two_answers_to_a_question_without_a_picture(world):
    world.write([{"question": "who ?", "target": target} for target in "ab"])
    return edit(world, "--dry-run")


@case(4, "edits.jsonl:1: id `e1` is in the ledger with other content", "edits.jsonl:3: id `e2` is in the ledger with")
def ids_known_to_the_ledger(world):
    run(*edit(world))
    world.write([line(0, target="other"), line(2), line(1, target="other")])
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


@case(4, "edits.jsonl:1: image not found: `img/red.png`", "hint: image paths start at `nowhere`, which is no folder;")
def image_root_that_is_not_there(world):
    return edit(world, "--image-root", "nowhere")


@case(4, "edits.jsonl:2: image `wide.png` is 9000 x 9000, more than 36 megapixels\n", "hint: shrink it")
def an_image_of_many_pixels(world):
    (world.root / "wide.png").write_bytes(tiny_png(9_000, 9_000, b""))
    return stream(world, line(1, image="wide.png"))


@case(4, "edits.jsonl:2: image `long.png` is 40000 x 1, more than 32,768 on one side\n")
def an_image_of_one_long_side(world):
    (world.root / "long.png").write_bytes(tiny_png(40_000, 1, b""))
    return stream(world, line(1, image="long.png"))


@case(4, "edits.jsonl:2: image `bomb.png` has more than 36 megapixels")
def decompression_bomb(world):
    (world.root / "bomb.png").write_bytes(tiny_png(60_000, 60_000, b""))
    return stream(world, line(1, image="bomb.png"))


@case(4, "edits.jsonl:2: image `img` is not a file", "edits.jsonl:3: `edits.jsonl` is not a readable image")
def images_that_are_none(world):
    return stream(world, line(1, image="img"), line(2, image="edits.jsonl"))


@case(
    4, "hint: edits.jsonl:2: leave the image out to ask without one; edits.jsonl:3: the file must hold one JSON object"
)
def each_problem_has_its_hint(world):
    return stream(world, line(1, image=""), "[]", line(2, target=""))


@case(4, "edits.jsonl:2", "edits.jsonl:21:", "error: and 5 more")
def every_problem_is_listed(world):
    return stream(world, *(line(1, target="") for _ in range(25)))


@case(4, "edits.jsonl:2: `tags` must be an object or a list of strings, got 3 in the list")
def tags_that_are_none(world):
    return stream(world, line(1, tags=["night", 3]))


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


@case(5, "no state at", "more edit MODEL EDITS")
def no_state(world):
    return "eval", world.model


@case(5, "was made for another base", f"tensor:{SITE} differ")
def another_weight(world):
    run("init", world.model)
    tensors = tiny.read_weights(world.model)
    tensors[SITE][0, 0] += 1
    tiny.write_weights(world.model, tensors)
    return edit(world)


@case(5, "was made for another base", "more rebase model --state", "-o NAME")
def another_base_to_which_the_edits_can_be_applied(world):
    run("init", world.model)
    tiny.set_config(world.model, note="changed")
    return "eval", "model"


@case(5, "model.more: a state, not a checkpoint directory", "name it with --state")
def a_state_in_place_of_the_model(world):
    run("init", world.model)
    return "verify", world.sidecar


@case(4, "edits.jsonl:1: unknown field `target`", "`more eval` without --probes")
def edit_lines_as_probes(world):
    run("init", world.model)
    world.edits(2)
    return "eval", world.model, "--probes", "edits.jsonl"


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


@case(5, "was made for another base")
def a_copy_of_another_models_state(world):
    run("init", world.model, "--state", "other.more")
    other = tiny.tiny_llava(world.root / "other", text_layers=2, seed=1)
    return "switch", other, "ann", "--create", "--state", "other.more"


@case(5, "model.more` is damaged", "hint: move it away and run `more init MODEL` with the options of the first time")
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


@case(5, "has schema 99", "upgrade more-vlm")
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


@case(5, "exists, with another recipe (0 ledger lines)")
def another_recipe_for_init(world):
    run("init", world.model)
    return "init", world.model, "--set", "rank=4"


@case(5, "exists, with another recipe (1 ledger line)")
def another_recipe_for_init_after_an_edit(world):
    run(*edit(world, "--limit", 1))
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


@case(5, "holds 2 edits, and their ledger `", "is missing\nhint: copy the folder `copy.more.d` beside it too")
def copy_of_a_state_without_its_folder(world):
    run(*edit(world))
    shutil.copy(world.sidecar, world.root / "copy.more")
    return "status", world.model, "--state", "copy.more"


@case(5, "holds 2 edits, and their ledger `", "hint: copy the folder `copy.more.d` beside it too")
def retry_with_a_copy_of_a_state_without_its_folder(world):
    run(*edit(world))
    shutil.copy(world.sidecar, world.root / "copy.more")
    return "edit", world.model, "--retry", "--state", "copy.more"


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_what_is_said_about_a_damaged_state_restores_it(world: World, from_snapshot: bool) -> None:
    world.edits(3)
    anchors = world.write([{"image": "img/white.png", "question": "what is it ?"}], "anchors.jsonl")
    used = "--set", "anchors.size=1", "--set", "anchors.keys=true", "--set", "anchors.prompts=[]", "--anchors", anchors
    first = "init", world.model, *QUICK, *used
    assert run(*first).code == 0
    edited = "edit", world.model, "edits.jsonl", "--snapshot-every", 2
    assert run(*edited).code in (0, 3)
    whole = world.sidecar.read_bytes()
    world.sidecar.write_bytes(whole[:-50])
    assert "copy the newest file of its `.d/snapshots` there" in run("status", world.model).err
    world.sidecar.rename(world.root / "damaged")
    if from_snapshot:
        shutil.copy(max((world.folder / "snapshots").iterdir()), world.sidecar)
    else:
        assert run(*first).code == 0
    again = run(*edited, "--json")
    assert again.code in (0, 3), again.err
    assert (again.json["applied"], again.json["replayed"]) == (0, 1 if from_snapshot else 3)
    assert world.sidecar.read_bytes() == whole
    assert run("verify", world.model).code == 0


def test_the_later_of_two_answers_is_skipped(world: World) -> None:
    world.write([line(0), line(0, id="other", target="g"), line(1, tags=["night", "fleet-a"])])
    done = run(*edit(world, "--on-error", "skip", "--json"))
    assert done.code in (0, 3), done.err
    assert [entry["id"] for entry in world.entries()] == ["e1", "e2"]
    assert world.entries()[1]["tags"] == {"night": True, "fleet-a": True}
    assert len(done.json["problems"]) == 1


def test_a_pipe_may_correct_itself(world: World) -> None:
    world.write([line(0), line(0, id="other", target="g")])
    done = world.edit(*QUICK, edits="-", stdin=(world.root / "edits.jsonl").read_bytes())
    assert done.code in (0, 3), done.err
    assert [entry["id"] for entry in world.entries()] == ["e1", "other"]


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


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="such a link is a path that is not there")
def test_a_link_to_itself_is_no_bug(world: World) -> None:
    (world.root / "loop").symlink_to("loop")
    assert_refused(run("status", world.root / "loop"), 2, "a symbolic link leads to itself: ", "remove it")


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
        assert_refused(run(*argv, *state), 7, "cannot write", "free some space")
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


def test_a_traceback_behind_an_error_leaves_message_and_code(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORE_DEBUG", "1")
    done = run("status", world.root / "nowhere")
    assert done.code == 5
    assert done.err.startswith("Traceback")
    assert "error: " in done.err
    assert "hint: " in done.err


def test_a_bug_keeps_its_traceback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.ops.plan.plan", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("status", world.model)
