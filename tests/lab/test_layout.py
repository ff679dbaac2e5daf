"""The pages of `eval`, `compare` and `analyze` on a wide screen and on a phone: by their markup, and in a browser."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from more_cli.render.page import NARROW
from support.browser import MISSING, Browser, chromium
from support.helpers import World, line, run

pytestmark = pytest.mark.slow
in_a_browser = pytest.mark.skipif(bool(MISSING), reason=MISSING)

PHONE, WIDE = 390, 1400
PAGES = ("report", "compare", "analyses")
ASKED = [
    {"question": "is it a dog ?", "answer": "no"},
    {"question": "what is in the image ?", "image": "img/black.png"},
]
CUT = """
for (const fold of document.querySelectorAll('details')) fold.open = true;
const shown = [...document.querySelectorAll('main *')].filter(e => !e.closest('thead') && e.getClientRects().length);
const scrolled = e => e.parentElement.closest('.scroll:not(:has(.cards)), pre');
const outside = e => { const box = e.getBoundingClientRect(); return box.left < -1 || box.right > innerWidth + 1 };
const hidden = e => getComputedStyle(e).overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1;
return shown.filter(e => hidden(e) || outside(e) && !scrolled(e)).map(e => e.outerHTML.slice(0, 200))"""
"""Script: the elements of which a part lies outside the window, or is hidden, and no box of its own scrolls to it."""
FIGURES = """return [...document.querySelectorAll('figure > img')]
.map(e => [Math.round(e.getBoundingClientRect().width), Math.round(e.getBoundingClientRect().height)])"""


class Tables(HTMLParser):
    """The tables of a page: class of the box, class of the table, names of columns, and rows of labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str, list[str], list[list[str]]]] = []
        self._box = ""
        self._heading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self.found.append((self._box, given.get("class") or "", [], []))
        elif tag == "tr":
            self.found[-1][3].append([])
        elif tag == "th":
            self.found[-1][2].append("")
            self._heading = True
        elif tag == "td":
            self.found[-1][3][-1].append(given.get("data-label") or "")
        self._box = given.get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        self._heading = self._heading and tag != "th"

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.found[-1][2][-1] += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three pages of small runs: failed edits, a missed gate, three editors and every analysis."""
    world = World(tmp_path_factory.mktemp("layout") / "world")
    root = world.root
    world.write([line(n, rephrases=["which colour ?"], locality=ASKED) for n in range(4)])
    assert world.edit("--set", "max_steps=1").code in (0, 3)
    gates = ("--gate", "rel.gen_exact>=0.99", "--gate", "loc_image.loc_expkl_answer>=0")
    assert run("eval", world.model, *gates, "--report", root / "report.html").code in (0, 6)
    suite = ("--suite", root / "edits.jsonl", "--cache", root / "cache")
    many = run("compare", "more", "none", "ft-l", "--model", world.model, *suite, "--report", root / "compare.html")
    assert many.code == 0, many.err
    kept = ("--keep-updates", "--keep-states", "--checkpoints", "1,2", "--protocol", "final", "--protocol", "online")
    for editor in ("more", "ft-l"):
        one = run("run", world.model, *suite, "--editor", editor, "--keep", root / editor, *kept)
        assert one.code == 0, one.err
    made = run("analyze", "all", "--run", root / "more", "--run", root / "ft-l", "--out", root / "out")
    assert made.code == 0, made.err
    return dict(zip(PAGES, (root / "report.html", root / "compare.html", root / "out" / "index.html"), strict=True))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_each_table_scrolls_in_its_box_and_a_wide_one_can_be_cards(pages: dict[str, Path], name: str) -> None:
    """Each cell of it knows the name of its column."""
    tables = Tables(pages[name].read_text()).found
    assert any(len(columns) > NARROW for _, _, columns, _ in tables)
    for box, shape, columns, rows in tables:
        assert box == "scroll"
        assert len(columns) <= NARROW or "cards" in shape.split(), columns
        assert rows[1:] == [columns] * (len(rows) - 1)


def test_the_figures_of_the_analyses_have_one_size_on_the_page(pages: dict[str, Path]) -> None:
    """The files have several; the page gives all of them the same box."""
    text = pages["analyses"].read_text()
    images = re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="[^"]*">', text)
    assert len(images) == text.count("<img") > 5, "no picture says a size of its own"
    assert len({Image.open(io.BytesIO(base64.b64decode(data))).size for data in images}) > 1
    (rule,) = re.findall(r"^figure > img \{(.*)\}$", text, re.MULTILINE)
    assert {"width: 100%", "aspect-ratio: 5 / 3", "object-fit: contain"} <= set(re.split("; *", rule.strip(" ;")))


@in_a_browser
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_browser_gives_all_figures_one_size(pages: dict[str, Path], browser: Browser, width: int) -> None:
    browser.open(pages["analyses"].as_uri())
    sizes = browser.script_at(width, FIGURES)
    assert len(sizes) > 5
    (size,) = {tuple(size) for size in sizes}
    assert min(size) > 100


@in_a_browser
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_and_no_page_scrolls_sideways(
    pages: dict[str, Path], browser: Browser, name: str, width: int
) -> None:
    browser.open(pages[name].as_uri())
    assert browser.script_at(width, CUT) == []
    assert browser.width_needed(width) <= width


@in_a_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_a_wide_table_as_cards(pages: dict[str, Path], browser: Browser, name: str) -> None:
    browser.open(pages[name].as_uri())
    rows = "return [...document.querySelectorAll('.cards tbody tr')].map(e => getComputedStyle(e).display)"
    assert set(browser.script_at(PHONE, rows)) == {"flex"}
    assert set(browser.script_at(WIDE, rows)) == {"table-row"}
