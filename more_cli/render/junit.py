"""A report as JUnit XML, valid under the Windy Road schema and Jenkins' `junit-10`: a case per edit and gate."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from more_cli.evaluation.per_edit import EditScores
from more_cli.render.page import Page
from more_cli.text import plain, shorten


def junit_xml(page: Page) -> str:
    """Return the XML; edits that do not hold and missed gates are failures."""
    root = Element("testsuites")
    now = datetime.now(UTC)
    edits = page.edits
    measured = sum(len(scores.scores) for scores in edits)
    bad = sum(not scores.good for scores in edits)
    suite = _suite(root, page, "edits", tests=len(edits), failures=bad, seconds=page.seconds, now=now)
    for scores in edits:
        # Probes are scored in batches: the time of an edit is its share of all probes.
        _edit_case(suite, scores, page, page.seconds * len(scores.scores) / measured)
    _close(suite)
    missed = sum(not found.met for found in page.gates)
    suite = _suite(root, page, "gates", tests=len(page.gates), failures=missed, seconds=0.0, now=now)
    for found in page.gates:
        case = _case(suite, str(found.gate), "more.gates", 0.0)
        if not found.met:
            _fail(case, "gate missed", f"measured {found.reason}", "")
    warnings = [f"{found.gate}: {found.reason}" for found in page.gates if found.warning]
    _close(suite, "\n".join(map(plain, warnings)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(
    root: Element, page: Page, name: str, *, tests: int, failures: int, seconds: float, now: datetime
) -> Element:
    suite = SubElement(
        root,
        "testsuite",
        id=str(len(root)),
        name=name,
        package="more",
        timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
        hostname="localhost",  # the schema's value for an unknown host
        tests=str(tests),
        failures=str(failures),
        errors="0",
        skipped="0",
        time=f"{seconds:.3f}",
    )
    properties = SubElement(suite, "properties")
    for key, value in page.properties.items():
        SubElement(properties, "property", name=key, value=plain(value))
    return suite


def _close(suite: Element, out: str = "") -> None:
    # The schema requires both, at the end, and gives a case that passes no place for a warning.
    SubElement(suite, "system-out").text = out
    SubElement(suite, "system-err")


def _edit_case(suite: Element, scores: EditScores, page: Page, seconds: float) -> None:
    question, answer = scores.shown.probe.query.question, scores.shown.answer
    said = "the model was not asked" if answer is None else f"answered `{answer}`, not `{scores.wanted}`"
    case = _case(suite, f"{scores.id}: {shorten(plain(question))}", "more.edits", seconds)
    if not scores.good:
        lines = [f"question: {question}", f"wanted: {scores.wanted}", f"answer: {'' if answer is None else answer}"]
        lines += [f"base: {page.base[scores.id]}"] if scores.id in page.base else []
        message = f"{said}; {scores.why}" if scores.failed else said
        _fail(case, scores.verdict, message, "\n".join(map(plain, lines)))


def _case(suite: Element, name: str, classname: str, seconds: float) -> Element:
    return SubElement(suite, "testcase", name=plain(name), classname=classname, time=f"{seconds:.3f}")


def _fail(case: Element, type: str, message: str, text: str) -> None:
    SubElement(case, "failure", type=type, message=plain(message)).text = text
