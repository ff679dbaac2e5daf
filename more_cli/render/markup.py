"""HTML and SVG built from escaped text: everything that is not `Markup` is escaped when it is added."""

from __future__ import annotations

import html

from more_cli.text import plain

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; `class_` becomes `class` and `aria_label` `aria-label`, an attribute of None is left out."""
    head = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{head}>" if tag in _VOID else f"<{tag}{head}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Return the children, concatenated."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def _escaped(text: object) -> str:
    return html.escape(plain(text))
