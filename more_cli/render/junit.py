"""A report as JUnit XML, valid under the Windy Road schema and Jenkins' `junit-10`: a case per edit and gate."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from more_cli.evaluation.per_edit import EditScores
from more_cli.files import plain, shorten
from more_cli.render.page import Page


def junit_xml(page: Page) -> str:
    """Return the XML; an edit that does not hold and a gate that was missed are failures."""
    root = Element("testsuites")
    now = datetime.now(UTC)
    edits = page.edits
    measured = sum(len(scores.scores) for scores in edits)
    suite = _suite(root, 0, "edits", len(edits), sum(not scores.good for scores in edits), page, page.seconds, now)
    for scores in edits:
        # Probes are scored in batches: what is known of one edit's time is its share of them.
        _edit_case(suite, scores, page, page.seconds * len(scores.scores) / measured)
    _close(suite)
    missed = sum(not found.met for found in page.gates)
    suite = _suite(root, 1, "gates", len(page.gates), missed, page, 0.0, now)
    for found in page.gates:
        case = _case(suite, str(found.gate), "more.gates", 0.0)
        if not found.met:
            _fail(case, "gate missed", f"measured {found.reason}", "")
    _close(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(
    root: Element, id: int, name: str, tests: int, failures: int, page: Page, seconds: float, now: datetime
) -> Element:
    suite = SubElement(
        root,
        "testsuite",
        id=str(id),
        name=name,
        package="more",
        timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
        hostname="localhost",  # the schema's word for a host that is not told
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


def _close(suite: Element) -> None:
    # The schema wants both, at the end.
    SubElement(suite, "system-out")
    SubElement(suite, "system-err")


def _edit_case(suite: Element, scores: EditScores, page: Page, seconds: float) -> None:
    question, answer = scores.shown.probe.query.question, scores.shown.answer
    case = _case(suite, f"{scores.id}: {shorten(plain(question))}", "more.edits", seconds)
    if not scores.good:
        lines = [f"question: {question}", f"wanted: {scores.wanted}", f"answer: {answer}"]
        lines += [f"before: {page.before[scores.id]}"] if scores.id in page.before else []
        message = f"answered `{answer}`, not `{scores.wanted}`"
        _fail(case, scores.verdict, message, "\n".join(map(plain, lines)))


def _case(suite: Element, name: str, classname: str, seconds: float) -> Element:
    return SubElement(suite, "testcase", name=plain(name), classname=classname, time=f"{seconds:.3f}")


def _fail(case: Element, type: str, message: str, text: str) -> None:
    SubElement(case, "failure", type=type, message=plain(message)).text = text
