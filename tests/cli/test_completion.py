"""What the shell offers, asked as the shell asks: through environment variables, at the same entry point."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from more_cli.cli import completion
from more_cli.cli.app import main
from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import editor_names
from more_cli.recipe.files import shipped_recipes
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import keys_of
from more_cli.suites.catalog import CATALOG
from more_cli.system.pager import COMPLETING
from support.helpers import QUICK, World, run

Offer = Callable[..., list[str]]


def asking(*words: str) -> dict[str, str]:
    """Return what bash sets when Tab is pressed behind these words; the last one may be empty."""
    return {COMPLETING: "complete_bash", "COMP_WORDS": " ".join(("more", *words)), "COMP_CWORD": str(len(words))}


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return the words that are offered for the last of some words; nothing else may be printed."""

    def offer(*words: str) -> list[str]:
        for name, value in asking(*words).items():
            monkeypatch.setenv(name, value)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([])
        assert (ended.value.code, err.getvalue()) == (0, "")
        return out.getvalue().split()

    return offer


def test_names(offered: Offer) -> None:
    recipes = list(shipped_recipes())
    assert offered("edit", "model", "--recipe", "") == offered("recipes", "show", "") == recipes
    assert offered("init", "--recipe", "paper-q") == [name for name in recipes if name.startswith("paper-q")]
    assert offered("eval", "--suite", "") == offered("compare", "more", "--suite", "") == list(CATALOG)
    assert offered("suites", "check", "e-") == ["e-vqa", "e-ic"]
    assert offered("run", "--editor", "") == offered("compare", "more", "") == editor_names()
    variants = ["alphaedit:batch", "alphaedit:last_prompt", "alphaedit:loop"]
    assert offered("reproduce", "table-1", "--editor", "alphaedit:") == variants
    assert offered("run", "--editor", "nothing-like-it") == []


def test_keys_of_a_recipe(offered: Offer) -> None:
    assert offered("edit", "model", "--set", "") == [f"{key}=" for key in keys_of(Recipe)]
    assert "rehearsal.size=" in offered("recipes", "show", "default", "--set", "rehearsal.")
    assert offered("edit", "model", "--set", "rank=5") == [], "what stands behind the = is the user's"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A state with three edits, the second of which was reverted."""
    world = World(tmp_path_factory.mktemp("completion"))
    world.edits(3)
    assert world.edit(*QUICK).code in (0, 3)
    assert run("revert", world.model, "e2").code in (0, 3)
    return world


def test_ids_of_edits(world: World, offered: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    assert offered("log", "show", "") == offered("log", "show", "model", "e") == ["e1", "e2", "e3"]
    assert offered("revert", "") == offered("revert", "model", "") == ["e1", "e3"], "in force"
    assert offered("revert", "model", "e1", "") == ["e3"], "named already"
    assert offered("revert", "--state", "model.more", "e") == ["e1", "e3"]
    assert offered("log", "show", "mod") == [], "so that the shell offers the folder"


def test_the_end_of_a_long_ledger(world: World, offered: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    monkeypatch.setattr(completion, "TAIL", len((world.folder / "ledger.jsonl").read_bytes().splitlines()[-1]) + 9)
    assert offered("log", "show", "") == ["e3"]


def _broken(folder: Path, content: bytes | None) -> None:
    """Make a state whose ledger has this content, or is a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "m.more.d").mkdir(parents=True)
    (folder / "m.more").write_bytes(b"\0" * 9)
    if content is None:
        (folder / "m.more.d" / "ledger.jsonl").mkdir()
    else:
        (folder / "m.more.d" / "ledger.jsonl").write_bytes(content)


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (None, []),
        (b"\xff\0\n{\n[]\n3\n" + b"[" * 10_000, []),
        (b'{"kind": "edit", "id": "a"}\n{"kind": "edit", "id"', ["a"]),
        (b'{"kind": "revert", "ids": 3}\n{"kind": "edit", "id": "b"}\n{"id": 4}\n', ["b"]),
        (b'{"kind": "edit", "id": {}}\n{"kind": "edit", "id": "\\u001b[2J"}\n', []),
    ],
)
@pytest.mark.parametrize("command", [("revert",), ("log", "show")])
def test_a_broken_state_offers_less_and_says_nothing(
    command: tuple[str, ...], content: bytes | None, left: list[str], tmp_path: Path, offered: Offer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _broken(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    assert offered(*command, "") == left
    (tmp_path / "other.more").touch()
    assert offered(*command, "") == [], "two states: which one is not said"
    assert offered(*command, "missing/", "") == []


def test_it_loads_nothing_heavy(tmp_path: Path) -> None:
    _broken(tmp_path, json.dumps({"kind": "edit", "id": "e1"}).encode())
    code = (
        "import atexit, sys; from more_cli.__main__ import run_or_page; atexit.register(lambda: print(*sys.modules))\n"
        "sys.argv = ['more']; run_or_page()"
    )
    for words in (("revert", ""), ("run", "--editor", "mor"), ("edit", str(demo_model_dir()), "--recipe", "pa")):
        environment = {**os.environ, **asking(*words)}
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdin=subprocess.PIPE, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        *names, modules = ran.stdout.splitlines()
        assert names
        assert ran.stderr == ""
        assert not {"torch", "transformers", "numpy", "PIL", "rich"} & set(modules.split())
