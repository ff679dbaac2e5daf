"""README and the pages of docs/: their prose, and the anchors that links to them can have."""

from __future__ import annotations

import re
from pathlib import Path


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *(```+)[^\n]*\n.*?^ *\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the ids that a page's headings and `id`s give, as a forge and the site make them."""
    found = set(re.findall(r'id="([^"]+)"', prose(page))) | set(re.findall(r"\{ ?#([\w-]+) ?\}", prose(page)))
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\{[^}]*\}|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace("`", "").strip()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text)))
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text)))
    return found
