"""Packages of outsiders, installed for one test: a module, and the entry points that name what it brings."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from more_cli.editors.registry import EDITORS, editor_names, entry_of
from more_cli.system.plugins import installed

EDITOR = '''
from more_cli.editors.registry import editor
from more_lab.editors.none import NoEditor

@editor("{name}", tries=(("a=1",),))
class Outsider(NoEditor):
    """An editor of an outsider."""
'''


class Packages:
    """A folder on the path that packages are installed into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def bring(self, package: str, code: str = "", **points: Mapping[str, str]) -> None:
        """Install a package with one module of its name; `editors` and `commands` are its entry points."""
        module = self.folder / f"{package.replace('-', '_').replace('.', '/')}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(code)
        facts = self.folder / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        rows = [
            f"[more.{group}]\n{name} = {value}\n" for group, found in points.items() for name, value in found.items()
        ]
        (facts / "entry_points.txt").write_text("".join(rows))
        importlib.invalidate_caches()
        installed.cache_clear()


@contextmanager
def outsiders(folder: Path) -> Iterator[Packages]:
    """Put a folder of packages on the path; afterwards nothing of them is known."""
    for name in editor_names():  # a module that is imported first in here would not register its editor again
        entry_of(name)
    before = dict(EDITORS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield Packages(folder)
    for name, module in list(sys.modules.items()):
        if folder in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]
    EDITORS.clear()
    EDITORS.update(before)
    installed.cache_clear()
