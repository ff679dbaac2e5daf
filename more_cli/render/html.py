"""An evaluation as one HTML file: tables, plots and a gallery, without scripts and without anything to fetch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from more_cli.evaluation.metrics import Estimate
from more_cli.evaluation.names import is_share
from more_cli.evaluation.per_edit import EditScores
from more_cli.ops.evaluate import EvalReport
from more_cli.render.markup import Markup, element, joined
from more_cli.render.plots import bars
from more_cli.render.style import STYLE
from more_cli.render.thumbnails import Thumbnails

GALLERY = 200
"""Edits shown, at most: those that do not hold come first."""
PICTURES = 4
"""Images shown of one edit."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_VARIANTS = {
    "gen_text.gen_exact": "other words",
    "gen_image.gen_exact": "other images",
    "portability.gen_exact": "what follows",
    "loc_text.loc_gen_same": "unrelated text kept",
    "loc_image.loc_gen_same": "unrelated images kept",
}


def html(report: EvalReport) -> str:
    """Return the report.

    Raises:
        DataError, StateError: an image of the gallery has vanished or changed since it was scored.
    """
    title = f"more eval: {report.target.model.resolve().name}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", element("h1", title), *_sections(report)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(report: EvalReport) -> Iterator[Markup]:
    yield element("p", report.headline, class_="lead")
    yield element(
        "p", f"{report.scope}, protocol {report.protocol}, locality against {report.baseline}, 95 % intervals"
    )
    if report.gates:
        yield _section("Gates", _gates(report))
    if report.estimates:
        shares = {name: value for name, value in report.told.items() if is_share(name)}
        plot = _figure(bars("Every metric between 0 and 1", shares))
        yield _section("Metrics", element("div", plot, _estimates(report.told), class_="pair"))
    if report.retention:
        yield _section(
            "Retention by age",
            element("p", "rel.gen_exact, grouped by how many edits came after"),
            _figure(bars("rel.gen_exact by edits since", report.retention)),
        )
    if report.scores:
        yield _gallery(report, report.per_edit)
    details = json.dumps(report.reproduce, indent=2, sort_keys=True, ensure_ascii=False)
    lines = [joined(line, Markup("\n")) for line in details.splitlines()]
    yield element("details", element("summary", "What is needed to get these numbers again"), element("pre", *lines))


def _gates(report: EvalReport) -> Markup:
    rows = [
        (element("code", found.gate), _verdict("met" if found.met else "missed", found.met), found.reason)
        for found in report.gates
    ]
    return _table(("gate", "verdict", "measured"), rows)


def _estimates(estimates: Mapping[str, Estimate]) -> Markup:
    rows = [
        (element("code", name), f"{v.value:.3f}", f"{v.low:.3f} to {v.high:.3f}", v.interval, v.n)
        for name, v in estimates.items()
    ]
    return _table(("metric", "value", "95 % interval", "kind", "n"), rows)


def _gallery(report: EvalReport, edits: Sequence[EditScores]) -> Markup:
    shown = sorted(edits, key=lambda scores: scores.good)[:GALLERY]
    thumbnails = Thumbnails()
    note = f"{len(shown)} of {len(edits)}, " if len(shown) < len(edits) else ""
    return _section(
        "Gallery",
        element("p", f"{note}those that do not hold first; before is the untouched base's answer"),
        element("div", *(_card(report, scores, thumbnails) for scores in shown), class_="gallery"),
    )


def _card(report: EvalReport, scores: EditScores, thumbnails: Thumbnails) -> Markup:
    shown = scores.shown
    before = report.base_answers.get(scores.id, shown.base_answer)
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


def _figure(svg: Markup) -> Markup:
    return element("figure", svg)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    top = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    return element("div", element("table", top, element("tbody", *lines)), class_="scroll")
