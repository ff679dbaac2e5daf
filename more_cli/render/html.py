"""A report as one HTML file: tables, plots and a gallery, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.per_edit import EditScores, variants
from more_cli.evaluation.probes import ProbeScore
from more_cli.render.markup import Markup, element, joined
from more_cli.render.page import Page, Phrase, Quoted, Sentence, Table
from more_cli.render.style import STYLE
from more_cli.render.thumbnails import Thumbnails
from more_cli.text import counted

NAMED = 20
"""Most items of a sentence; the gallery has every edit and answer that the sentences cut."""
GALLERY = 200
"""Most edits shown; those that do not hold, or whose other answers moved, come first."""
PICTURES = 4
"""Most images shown of one edit."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


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
    for sentence in page.sentences:
        yield from _sentence(sentence)
    yield element("p", f"{page.scope}, {page.reading}, 95 % intervals")
    if page.left_out:
        yield element("p", page.left_out)
    if page.gates:
        yield _section("Gates", _gates(page.gates))
    for part in page.tables:
        if not part.folded:
            yield _section(part.title, *_part(part))
    if folded := [part for part in page.tables if part.folded]:
        summary = element("summary", ", ".join(part.title for part in folded))
        yield element("details", summary, *(_section(part.title, *_part(part)) for part in folded))
    if page.edits:
        yield _gallery(page)
    details = json.dumps(page.reproduce, indent=2, sort_keys=True, ensure_ascii=False)
    lines = [joined(line, Markup("\n")) for line in details.splitlines()]
    yield element("details", element("summary", "How to reproduce these numbers"), element("pre", *lines))


def _sentence(sentence: Sentence) -> Iterator[Markup]:
    yield element("p", _phrase(sentence.words), class_=None if sentence.good else "bad")
    items = [element("li", _phrase(item)) for item in sentence.items[:NAMED]]
    if len(sentence.items) > NAMED:
        items.append(element("li", f"and {len(sentence.items) - NAMED:,} more"))
    if items:
        yield element("ul", *items)


def _phrase(parts: Phrase) -> Markup:
    return joined(*(element("code", part) if isinstance(part, Quoted) else part for part in parts))


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
    shown = sorted(page.edits, key=lambda scores: (scores.good, not scores.moved))[:GALLERY]
    thumbnails = Thumbnails()
    note = f"{len(shown)} of {len(page.edits)}, " if len(shown) < len(page.edits) else ""
    order = "edits that do not hold first, then those with other answers that moved"
    return _section(
        "Gallery",
        element("p", f"{note}{order}; ", element("code", "before"), " is the answer of the untouched base"),
        element("div", *(_card(page, scores, thumbnails) for scores in shown), class_="gallery"),
    )


def _card(page: Page, scores: EditScores, thumbnails: Thumbnails) -> Markup:
    shown = scores.shown
    before = page.before.get(scores.id, None if scores.rel else shown.base_answer)
    answers = {"before": before, "target": shown.probe.target, "after": shown.answer}
    return element(
        "article",
        _pictures(scores, thumbnails),
        element("h3", scores.id, " ", _verdict(scores.verdict, scores.good)),
        *([element("p", scores.why, class_="why")] if scores.failed else []),
        element("p", shown.probe.query.question),
        element("dl", *(_term(name, text) for name, text in answers.items() if text is not None)),
        *_others(scores, thumbnails),
        class_="good" if scores.good else "bad",
    )


def _pictures(scores: EditScores, thumbnails: Thumbnails) -> Markup:
    images = scores.shown.probe.query.images
    # The images of a question that could not be asked may be what was wrong with it.
    uris = [thumbnails.uri(image) for image in images[:PICTURES] if scores.shown.answer is not None]
    pictures = [element("img", src=uri, alt=f"image of {scores.id}") for uri in uris if uri]
    left = len(images) - len(pictures)
    rest = [element("span", f"{left} more not shown" if pictures else "image not shown")] if left else []
    return element("div", *pictures, *(rest if images else [element("span", "no image")]), class_="pictures")


def _term(name: str, text: str) -> Markup:
    return joined(element("dt", name), element("dd", _shown(text)))


def _shown(answer: str | None) -> str:
    return "(not asked)" if answer is None else answer or "(nothing)"


def _others(scores: EditScores, thumbnails: Thumbnails) -> Iterator[Markup]:
    """Yield the answers to an edit's other questions; those that are as expected have to be opened."""
    if not scores.others:
        return
    yield element("p", variants([scores]), class_="variants")
    if scores.moved:
        cells = (joined(scores.words(score), _small(scores, score, thumbnails)) for score in scores.moved)
        yield _answers(cells, scores.moved)
    if held := [score for score in scores.others if score.holds]:
        summary = element("summary", f"{counted(len(held), 'other answer')} as expected")
        yield element("details", summary, _answers(map(scores.words, held), held))


def _answers(asked: Iterable[str], shown: Sequence[ProbeScore]) -> Markup:
    rows = [
        (what, score.probe.query.question, _shown(score.expected), _shown(score.answer))
        for what, score in zip(asked, shown, strict=True)
    ]
    return _table(("asked", "question", "expected", "answer now"), rows)


def _small(scores: EditScores, score: ProbeScore, thumbnails: Thumbnails) -> Markup:
    """Return the picture that a question is about, if it is another one than the edit's."""
    images = score.probe.query.images
    if not images or score.answer is None or images == scores.shown.probe.query.images:
        return joined()
    uri = thumbnails.uri(images[0])
    return element("img", src=uri, alt=f"image of {scores.id}") if uri else joined()


def _verdict(text: str, good: bool) -> Markup:
    return element("span", text, class_="verdict good" if good else "verdict bad")


def _section(title: str, *children: Markup) -> Markup:
    return element("section", element("h2", title), *children)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    top = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    return element("div", element("table", top, element("tbody", *lines)), class_="scroll")
