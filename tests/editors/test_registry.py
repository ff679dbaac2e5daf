"""Editors of other packages: found by their entry points, and each mistake of a package is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import EDITORS, EditorOptions, editor, editor_names, entry_of, package_of
from more_cli.errors import DISTRIBUTION, MoreError, UsageError
from more_lab.editors.none import NoEditor
from support.helpers import run
from support.packages import EDITOR, Packages, outsiders


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Packages]:
    with outsiders(tmp_path) as found:
        yield found


def refused(name: str) -> tuple[str, str]:
    with pytest.raises(UsageError) as raised:
        entry_of(name)
    return raised.value.message, raised.value.hint


def test_an_editor_is_listed_without_its_import_and_made_by_its_name(packages: Packages) -> None:
    packages.bring("near-one", EDITOR.format(name="near"), editors={"near": "near_one:Outsider"})
    assert "near" in editor_names()
    assert "near_one" not in sys.modules
    assert entry_of("near").tries == (("a=1",),)
    assert entry_of("near").make(EditorOptions(demo_model_dir())).name == "near"
    assert package_of("near") == {"near-one": "1.0"}
    assert package_of("lora") == package_of("more@default") == package_of("unheard-of") == {}


def test_the_next_version_of_a_package_is_measured_anew(packages: Packages) -> None:
    packages.bring("dated", EDITOR.format(name="dated"), editors={"dated": "dated"})
    found = run("run", "--editor", "dated", "--suite", "e-vqa", "--limit", 1, "--cache", packages.folder, "--json")
    assert found.code == 0, found.err
    assert found.json["reproduce"]["versions"]["dated"] == "1.0"


def test_two_packages_with_one_name_are_refused_where_it_is_used_and_nowhere_else(packages: Packages) -> None:
    packages.bring("one-lora", EDITOR.format(name="lora"), editors={"lora": "one_lora:Outsider"})
    packages.bring("first", EDITOR.format(name="two"), editors={"two": "first:Outsider"})
    packages.bring("second", EDITOR.format(name="two"), editors={"two": "second:Outsider"})
    assert refused("two") == (
        "`first` and `second` both bring `two` (more.editors)",
        "uninstall `second`, or rename it there",
    )
    assert refused("lora") == (
        f"`{DISTRIBUTION}` and `one-lora` both bring `lora` (more.editors)",
        "uninstall `one-lora`, or rename it there",
    )
    assert entry_of("none").name == "none"
    assert {"two", "lora"} <= set(editor_names())


@pytest.mark.parametrize(
    ("code", "point", "message", "hint"),
    [
        (
            EDITOR.format(name="other"), "odd:Outsider",
            "`odd:Outsider` of package `odd` does not register `named`", 'write @editor("named") above it',
        ),
        (
            "import torch_of_the_future", "odd:Outsider",
            "`named` of package `odd` cannot be loaded: ModuleNotFoundError: No module named 'torch_of_the_future'",
            "its entry point is `odd:Outsider`; MORE_DEBUG=1 shows the traceback",
        ),
        (
            "", "odd:Absent",
            "`named` of package `odd` cannot be loaded: AttributeError: module 'odd' has no attribute 'Absent'",
            "its entry point is `odd:Absent`; MORE_DEBUG=1 shows the traceback",
        ),
        (
            "def (", "odd:Outsider",
            "`named` of package `odd` cannot be loaded: SyntaxError: invalid syntax (odd.py, line 1)",
            "its entry point is `odd:Outsider`; MORE_DEBUG=1 shows the traceback",
        ),
    ],
)  # fmt: skip
def test_a_broken_package_is_one_line(packages: Packages, code: str, point: str, message: str, hint: str) -> None:
    packages.bring("odd", code, editors={"named": point})
    assert refused("named") == (message, hint)
    shown = run("run", "--editor", "named", "--suite", "e-vqa")
    assert (shown.code, shown.err.splitlines()[-2:]) == (2, [f"error: {message}", f"hint: {hint}"])


class Numbers(BaseModel):
    rate: float = 1.0


class Sized(NoEditor):
    def __init__(self, numbers: Numbers, device: str = "cpu") -> None:
        super().__init__()
        self.numbers = numbers


class Wide(NoEditor):
    def __init__(self, rate: float, steps: int) -> None:
        super().__init__()


def test_a_class_takes_one_model_of_numbers_or_nothing(packages: Packages) -> None:
    editor("sized")(Sized)
    made = EDITORS["sized"].make(EditorOptions(demo_model_dir(), settings=("rate=3",)))
    assert isinstance(made, Sized)
    assert made.numbers.rate == 3.0
    with pytest.raises(MoreError, match="editor `wide`: `Wide` takes `rate`, `steps`"):
        editor("wide")(Wide)
    assert "wide" not in EDITORS


def test_a_name_leaves_the_place_behind_an_at_to_the_recipe() -> None:
    with pytest.raises(UsageError, match="editor `a@b`: the part after `@` names a recipe"):
        editor("a@b")
