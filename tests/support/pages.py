"""Values and texts for tests of reports, and a reader of HTML pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from more_cli.evaluation.metrics import estimate

NINETEEN_OF_TWENTY = {"rel.gen_exact": estimate([1.0] * 19 + [0.0])}


HOSTILE = "</td></article>]]><script>alert(1)</script><!ENTITY x SYSTEM 'file:///x'>&x; | `a` ![p](http://e/) @all"
"""A question that tries everything: markup, an entity, the end of a CDATA section, a table's pipe, a remote image."""


CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")
"""A code span of Markdown."""


class Page(HTMLParser):
    """The elements of a page with their attributes, and a check that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def shape(self) -> list[tuple[str, list[str]]]:
        """Elements with the names of their attributes."""
        return [(tag, list(attributes)) for tag, attributes in self.elements]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
