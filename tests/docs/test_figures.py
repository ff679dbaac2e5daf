"""The figures and tables of the results: each is there and on a page, and was made from the results as they are."""

import hashlib
import json
import re

from generator.pages import PAGES, ROOT

IMAGES = ROOT / "docs" / "img"
MANIFEST = json.loads((IMAGES / "manifest.json").read_text(encoding="utf-8"))
FIGURES = [ROOT / path for path in MANIFEST if path.endswith(".svg")]
TABLES = [ROOT / path for path in MANIFEST if path.endswith(".md")]


def test_each_is_there_and_was_made_from_the_results_as_they_are() -> None:
    assert [path for path in MANIFEST if not (ROOT / path).stat().st_size or not MANIFEST[path]] == []
    made_from = {(name, then) for sources in MANIFEST.values() for name, then in sources.items()}
    changed = [name for name, then in made_from if hashlib.sha256((ROOT / name).read_bytes()).hexdigest() != then]
    assert sorted(changed) == [], "run `python docs/figures.py`"


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
