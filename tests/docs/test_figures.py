"""The figures and tables of the results: each is there and on a page, and was made from the results as they are."""

import hashlib
import json
import re

import pytest

from support.documents import PAGES, ROOT

IMAGES = ROOT / "docs" / "img"
MANIFEST = json.loads((IMAGES / "manifest.json").read_text(encoding="utf-8"))
FIGURES = [ROOT / path for path in MANIFEST if path.endswith(".svg")]
TABLES = [ROOT / path for path in MANIFEST if path.endswith(".md")]


@pytest.mark.parametrize("path", MANIFEST)
def test_it_is_there_and_made_from_the_results_as_they_are(path: str) -> None:
    assert (ROOT / path).stat().st_size > 0
    assert MANIFEST[path], "it is made from something"
    for name, made_from in MANIFEST[path].items():
        now = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        assert now == made_from, f"{name} has changed since: run `python docs/figures.py`"


def test_every_figure_is_made_and_on_a_page_with_a_text_for_who_cannot_see_it() -> None:
    assert len(FIGURES) > 5
    assert sorted(FIGURES) == sorted(IMAGES.glob("*.svg"))
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    texts = {name: text for text, name in re.findall(r"!\[([^\]]+)\]\((?:\.\./)?img/(\w+\.svg)\)", pages)}
    assert set(texts) == {path.name for path in FIGURES}
    assert all(len(text) > 40 for text in texts.values())


def test_every_table_is_named_on_a_page() -> None:
    assert len(TABLES) > 3
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in TABLES if f"`{path.relative_to(ROOT)}`" not in pages] == []
