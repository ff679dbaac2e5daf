"""A report as one HTML file: tables, plots and a gallery, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.per_edit import EditScores
from more_cli.render.markup import Markup, element, joined
from more_cli.render.page import Page, Table
from more_cli.render.style import STYLE
from more_cli.render.thumbnails import Thumbnails

GALLERY = 200
"""Most edits shown; those that do not hold come first."""
PICTURES = 4
"""Most images shown of one edit."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_VARIANTS = {
    "gen_text.gen_exact": "rephrases",
    "gen_image.gen_exact": "other images",
    "portability.gen_exact": "portability",
    "loc_text.loc_gen_same": "unrelated text kept",
    "loc_image.loc_gen_same": "unrelated images kept",
}


def html(page: Page) -> str:
    """Return the report.

    Raises:
        DataError, StateError: an image of the gallery has vanished or changed since it was scored.
    """
    title = f"{page.command}: {page.subject}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", element("h1", title), *_sections(page)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(page: Page) -> Iterator[Markup]:
    yield element("p", page.headline, class_="lead")
    yield element("p", f"{page.scope}, {page.reading}, 95 % intervals")
    if page.gates:
        yield _section("Gates", _gates(page.gates))
    for part in page.tables:
        yield _section(part.title, *_part(part))
    if page.edits:
        yield _gallery(page)
    details = json.dumps(page.reproduce, indent=2, sort_keys=True, ensure_ascii=False)
    lines = [joined(line, Markup("\n")) for line in details.splitlines()]
    yield element("details", element("summary", "How to reproduce these numbers"), element("pre", *lines))


def _part(part: Table) -> Iterator[Markup]:
    if part.note:
        yield element("p", part.note)
    rows = [(element("code", row[0]), *row[1:]) for row in part.rows]
    plots = [element("figure", element("figcaption", plot.title), plot.draw()) for plot in part.plots]
    yield element("div", *plots, _table(part.columns, rows), class_="pair")


def _gates(gates: Sequence[Judgement]) -> Markup:
    rows = [
        (element("code", found.gate), _verdict("met" if found.met else "missed", found.met), found.reason)
        for found in gates
    ]
    return _table(("gate", "verdict", "measured"), rows)


def _gallery(page: Page) -> Markup:
    shown = sorted(page.edits, key=lambda scores: scores.good)[:GALLERY]
    thumbnails = Thumbnails()
    note = f"{len(shown)} of {len(page.edits)}, " if len(shown) < len(page.edits) else ""
    return _section(
        "Gallery",
        element("p", f"{note}edits that do not hold first; `before` is the answer of the untouched base"),
        element("div", *(_card(page, scores, thumbnails) for scores in shown), class_="gallery"),
    )


def _card(page: Page, scores: EditScores, thumbnails: Thumbnails) -> Markup:
    shown = scores.shown
    before = page.before.get(scores.id, shown.base_answer)
    answers = {"before": before, "target": shown.probe.target, "after": shown.answer}
    return element(
        "article",
        _pictures(scores, thumbnails),
        element("h3", scores.id, " ", _verdict(scores.verdict, scores.good)),
        element("p", shown.probe.query.question),
        element("dl", *(_term(name, text) for name, text in answers.items() if text is not None)),
        _variants(scores),
        class_="good" if scores.good else "bad",
    )


def _pictures(scores: EditScores, thumbnails: Thumbnails) -> Markup:
    images = scores.shown.probe.query.images
    uris = [thumbnails.uri(image) for image in images[:PICTURES]]
    pictures = [element("img", src=uri, alt=f"image of {scores.id}") for uri in uris if uri]
    left = len(images) - len(pictures)
    rest = [element("span", f"{left} more not shown" if pictures else "image not shown")] if left else []
    return element("div", *pictures, *(rest if images else [element("span", "no image")]), class_="pictures")


def _term(name: str, text: str) -> Markup:
    return joined(element("dt", name), element("dd", text or "(nothing)"))


def _variants(scores: EditScores) -> Markup:
    values = scores.values()
    parts = [
        f"{label} {sum(values[name]):.0f}/{len(values[name])}" for name, label in _VARIANTS.items() if name in values
    ]
    return element("p", ", ".join(parts), class_="variants") if parts and scores.rel else joined()


def _verdict(text: str, good: bool) -> Markup:
    return element("span", text, class_="verdict good" if good else "verdict bad")


def _section(title: str, *children: Markup) -> Markup:
    return element("section", element("h2", title), *children)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    top = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    return element("div", element("table", top, element("tbody", *lines)), class_="scroll")
