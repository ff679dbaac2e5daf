"""`security.md`: SECURITY.md, with the names of tests in place of links, since the site has no tests."""

from __future__ import annotations

import re
from pathlib import Path

from generator.markdown import page

_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


def security_page(root: Path) -> str:
    """Return the security page of the site."""
    text = (root / "SECURITY.md").read_text(encoding="utf-8")
    title, _, body = text.partition("\n")
    return page(title.removeprefix("# "), "SECURITY.md", _LINK.sub(_target, body))


def _target(link: re.Match[str]) -> str:
    path = link[1]
    return link[0].replace("docs/", "") if path.startswith("docs/") else f"`{path}`"
