"""Every link of README and docs leads somewhere, on a forge as on the site."""

import html.parser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from generator.pages import PAGES, ROOT
from support.browser import MISSING, chromium
from support.documents import anchors, prose

DOCS = ROOT / "docs"
CONFIG = DOCS / "zensical.toml"
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:more_cli|more_lab|tests|recipes|docs|sample_edits)/[\w./-]+?)(?:::\w+)?`")


def leads_somewhere(page: Path, link: str) -> bool:
    """Tell whether the file of a link is there, with its anchor."""
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    # The site has no files but those of docs/: others are named, not linked.
    inside = target.is_relative_to(DOCS) or not page.is_relative_to(DOCS)
    return target.exists() and inside and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def test_relative_links_and_anchors_exist() -> None:
    links = [(page, link) for page in DOCUMENTS for link in _LINK.findall(prose(page))]
    relative = [(page, link) for page, link in links if not link.startswith(("http:", "https:", "mailto:"))]
    assert len(relative) > 100
    assert [f"{page.name}: {link}" for page, link in relative if not leads_somewhere(page, link)] == []


def test_files_that_are_named_exist() -> None:
    named = [(page, path) for page in DOCUMENTS for path in _PATH.findall(prose(page))]
    assert len(named) > 50
    missing = [f"{page.name}: `{path}`" for page, path in named if not (ROOT / path).exists()]
    assert [text for text in missing if "`docs/build/" not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    sections = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    listed = [
        page for section in sections for entries in section.values() for entry in entries for page in entry.values()
    ]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS))


class Page(html.parser.HTMLParser):
    """The links, loaded files and ids of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.ids.add(value)
            if key == "href" and tag == "a" and value:
                self.links.append(value)
            elif key in ("src", "href") and value:
                self.loads.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy, so that tests at the same time do not share a cache."""
    pytest.importorskip("zensical", reason='the site is built with the extra "docs"')
    docs = tmp_path_factory.mktemp("site") / "docs"
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("build", ".cache", "__pycache__"))
    command = [sys.executable, "-m", "zensical", "build", "-f", str(docs / CONFIG.name), "-s"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return docs / "build" / "site"


def test_the_site_builds_strictly_and_every_link_in_it_resolves(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_search_finds_pages_that_are_opened_from_disk(site: Path) -> None:
    host = "[...document.querySelectorAll('*')].find(one => one.shadowRoot?.querySelector('input'))"
    found = f"return [...({host}?.shadowRoot.querySelectorAll('a') ?? [])].map(one => one.href)"
    typed = f"const field = {host}.shadowRoot.querySelector('input'); field.value = 'harm budget';"
    with chromium() as browser:
        browser.open((site / "index.html").as_uri())
        browser.script("document.querySelector('.md-search__button').click()")
        browser.wait(lambda: browser.script(f"return Boolean({host})"))
        browser.script(f"{typed} field.dispatchEvent(new Event('input', {{bubbles: true}}))")
        browser.wait(lambda: any("glossary.html" in link for link in browser.script(found)))


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        for link in Page(path).loads:
            assert not urlsplit(link).netloc, f"{path.name}: {link}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text(encoding="utf-8")), path.name
