"""Texts that try to leave their place, a report that has one of them in every field, and what parsers see of it."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import Element

from markdown_it import MarkdownIt
from markdown_it.token import Token

from more_cli.evaluation.per_edit import EditScores
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.model.batches import Query
from more_cli.render.page import Page, Sentence, Table
from more_cli.render.plots import Bars, Course, Curve, Picture
from more_cli.render.templates import Quoted
from more_cli.store.entry import FailedEdit
from more_cli.store.status import Status
from support.pages import HOSTILE, NINETEEN_OF_TWENTY

TEXTS = (
    HOSTILE,
    "<script>window.ran=1;fetch('{home}')</script><img src={home} onerror=window.ran=1><svg/onload=window.ran=1>",
    "\"><iframe src='{home}'></iframe><link rel=stylesheet href={home}><base href={home}>",
    "<meta http-equiv=refresh content=0;{home}><form action={home}><input autofocus onfocus=window.ran=1>",
    "' style='background:url({home})' onfocus=window.ran=1 autofocus x='",
    "</title></style></pre></textarea><!--><style>@import '{home}';</style>",
    "{{ 7 * 7 }}{% raw %}{# #}${7*7} &lt;b&gt; &#60;script&#62;",
    "![p]({home}) [l](javascript:window.ran=1) <{home}> {home} www.example.org a@b.org @all",
    "~~s~~ **b** _e_ | `c` `` \\| \\` \\",
    "``` \n\n<details open ontoggle=window.ran=1>\n# head\n- item\n| a |\n|---|\n[r]: {home}",
    "]]>&x;<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM '{home}'>]>",
    "\u202egnp.exe\u202c \u2066 \u2069 \u200f \u061c \x00 \x1b[2J \x7f \x9b \ufeff \ufffe",
    "\ud800 \U000e0041 \u2028 \u00ad",
    "\u05d0\u05d1\u05d2 12, \u0645\u06cc\u200c\u0634\u0648\u062f (3)",
)
"""`{home}` stands for an address that must not be asked."""


def page_of(text: str) -> Page:
    """Return a report with this text, of at least one visible character, in every field that may hold one."""
    value = NINETEEN_OF_TWENTY["rel.gen_exact"]
    line = [1.0, 0.5]
    course = [(1, 0.1, 0.2)]
    plots = [Bars(text, {text: value}), Curve(text, line, {2: value}), Course(text, course, 1.0), Picture(text, b"png")]
    table = Table(text, (text, text), [(text, text), (text, text)], text, plots)
    asked = [
        ProbeScore(Probe(text, "rel", Query((), text), text), {"gen_exact": 0.0}, text),
        ProbeScore(Probe(text, "gen_text", Query((), text), text), {"gen_exact": 0.0}, text),
        ProbeScore(Probe(text, "loc_text", Query((), text), None), {"loc_gen_same": 1.0}, text, text),
    ]
    return Page(
        *("more eval", text, text, text, text),
        sentences=[Sentence(("It is ", Quoted(text)), [(Quoted(text),)], good=False)],
        left_out=text,
        tables=[table, replace(table, folded=True)],
        edits=[EditScores(text, tuple(asked), FailedEdit(text, Status.REFUSED, text))],
        base={text: text},
        reproduce={text: {text: [text]}},
        properties={"state": text, "source": text},
        seconds=1.0,
    )


def tree(element: Element) -> list[object]:
    """Return the tags and the names of attributes of an element and all below it."""
    return [element.tag, sorted(element.attrib), [tree(child) for child in element]]


def tokens(text: str) -> list[Token]:
    """Return what a parser of GitHub's Markdown finds, inline parts included."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [token for block in found for token in (block, *(block.children or ()))]


def drawn(text: str) -> str:
    """Return Markdown as HTML."""
    return str(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
