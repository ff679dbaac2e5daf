"""Text of others in every field of every report: parsers and a browser see it as text, and nothing of it unseen."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from more_cli.ops.card import section
from more_cli.render.html import html
from more_cli.render.junit import junit_xml
from more_cli.render.markdown import markdown
from more_cli.store.entry import FailedEdit
from more_cli.store.status import Status
from more_cli.text import code, plain, shorten, span
from support.browser import MISSING, chromium
from support.hostile import TEXTS, drawn, page_of, tokens, tree
from support.pages import Page

ALPHABET = "|\\`<>&;\"'[]()!#*_~@-+=:/.{}%$ \n\ta1\u202e\u2066\u200d\x1b\x00\u05d0\ud800\u2028"
PIECES = st.sampled_from([*TEXTS, "<script>", "<!--", "-->", "]]>", "```", "|---|", "&#60;", "http://e/", "www.e.org"])
"""What means something to one of the parsers."""
ANY = st.lists(st.text(max_size=8) | st.text(ALPHABET, max_size=8) | PIECES, max_size=6).map("".join)
TEXT = ANY.filter(lambda text: bool(plain(text).strip()))
OURS = {"text", "softbreak", "inline", "code_inline", "html_block", "paragraph", "heading", "strong", "bullet_list"}
OURS |= {"list_item", "table", "thead", "tbody", "tr", "th", "td"}
"""What reports in Markdown are made of."""
MARK = "MARK"


class Read(Page):
    """The texts of a page too, without those of `pre`, which are JSON."""

    def __init__(self, text: str) -> None:
        self.texts: list[str] = []
        super().__init__(text)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "pre":
            self.texts.append(data)


def seen(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


def every_text(test: Any) -> Any:
    for text in TEXTS:
        test = example(text)(test)
    return settings(max_examples=150, deadline=None)(given(TEXT)(test))


@every_text
def test_html_has_the_elements_of_its_template_and_the_text_itself(text: str) -> None:
    raw = html(page_of(text))
    page, usual = Read(raw), Read(html(page_of(MARK)))
    assert page.shape() == usual.shape()
    assert [said for said in page.texts if said.strip()] == [
        said.replace(MARK, plain(text)) for said in usual.texts if said.strip()
    ]
    assert seen(raw)


@every_text
def test_junit_has_the_elements_of_its_schema_and_the_text_itself(text: str) -> None:
    raw = junit_xml(page_of(text))
    root, usual = ElementTree.fromstring(raw.encode()), ElementTree.fromstring(junit_xml(page_of(MARK)))
    assert tree(root) == tree(usual)
    (failure,) = root.iter("failure")
    shown = plain(text)
    assert failure.text == f"question: {shown}\nwanted: {shown}\nanswer: {shown}\nbase: {shown}"
    assert seen(raw)


@every_text
def test_markdown_has_no_markup_but_ours(text: str) -> None:
    raw = markdown(page_of(text))
    found = tokens(raw)
    assert {re.sub("_(open|close)$", "", token.type) for token in found} <= OURS
    blocks = [token.content.splitlines() for token in found if token.type == "html_block"]
    assert [re.sub(">[^<]*<", "><", lines[0]) for lines in blocks] in (
        ["<details><summary></summary>", "</details>"],
        [],
    )
    outside = "".join(token.content for token in found if token.type == "text")
    assert not re.search(r"@|://|www\.|[<>`\[\]|\\]", outside, re.IGNORECASE)
    quoted = [token.content for token in found if token.type == "code_inline"]
    assert quoted.count(shorten(plain(text), 300).strip()) >= 2, "in the sentence and in its item"
    assert seen(raw)


@every_text
def test_a_model_card_has_no_markup_but_ours(text: str) -> None:
    """What a merge adds to the card of its base: the names of the folder, of the recipe and of edits."""
    failed = [FailedEdit(text, Status.REFUSED, "")]
    ledger: Any = SimpleNamespace(
        standing=lambda: [], failed=lambda: failed, asked=lambda: failed, statuses=dict, head="0" * 64
    )
    meta: Any = SimpleNamespace(recipe=SimpleNamespace(name=text), base={"headers": "0" * 64})
    raw = section(meta, ledger, "these weights", {}, text)
    found = tokens(raw)
    assert {re.sub("_(open|close)$", "", token.type) for token in found} <= OURS - {"html_block"}
    assert [token.type for token in found].count("td_open") == 8
    assert seen(raw)


@given(ANY)
def test_a_code_span_is_one_code_span(text: str) -> None:
    for made in (span(text), code(text).replace("\\|", "|")):
        inner = [token for token in tokens(f"x {made} x") if token.type not in ("inline", "text")]
        assert [token.type for token in inner if "paragraph" not in token.type] == ["code_inline"] * bool(made)


# --- in a browser ---


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A server that must not be asked: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()


SEEN = """return [
[...document.querySelectorAll('*')].map(e => e.tagName + ' ' + e.getAttributeNames()), window.ran || 0,
performance.getEntriesByType('resource').map(e => e.name).filter(name => !name.startsWith('data:')), location.href]"""


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_browser_runs_nothing_and_asks_nobody(tmp_path: Path) -> None:
    with listening() as (home, asked), chromium() as browser:

        def look(name: str, text: str) -> list[Any]:
            path = tmp_path / name
            path.write_text(text, encoding="utf-8")
            browser.open(path.as_uri())
            found = browser.script(SEEN)
            assert found.pop() == path.as_uri(), "the page led elsewhere"
            return list(found)

        ran = look("run.html", f"<p><img src={home}careless onerror=window.ran=1><script>window.ran=1</script>")
        assert ran[1:] == [1, [f"{home}careless"]], "a page that runs and asks is noticed"
        browser.wait(lambda: asked == ["/careless"], 10)

        usual = look("x.html", html(page_of("x")))
        assert usual[1:] == [0, []]
        for number, text in enumerate(TEXTS):
            hostile = text.replace("{home}", home)
            assert look(f"{number}.html", html(page_of(hostile))) == usual, text
            shown = browser.script("return [...document.querySelectorAll('td code')].map(e => e.textContent)")
            assert set(shown) == {plain(hostile)}
            isolated = "return [...document.querySelectorAll('code, bdi')].map(e => getComputedStyle(e).unicodeBidi)"
            assert set(browser.script(isolated)) == {"isolate"}
            assert look(f"{number}.md.html", drawn(markdown(page_of(hostile))))[1:] == [0, []], text
            tags = look(f"{number}.xml", junit_xml(page_of(hostile)))[0]
            assert not any("script" in tag or "parsererror" in tag for tag in tags), text
        assert asked == ["/careless"]
