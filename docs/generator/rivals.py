"""`research/rivals/`: a page per rival, of its words in `more_lab/results/rivals.toml`, its entry and measurements."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generator.markdown import page, table
from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import EditorOptions, entry_of
from more_lab.panel.ranked import LEAST, SINGLE
from more_lab.panel.table import FIVE, RESULTS, runs_of, share

WORDS = "rivals.toml"
FOLDER = "research/rivals"
LONGEST = 12
"""Rows of a table of a fit's curve, at most."""
OWN_WORDS = {True: "true", False: "false", None: "none"}

SUITE = "e-vqa"
LLAVA = "rivals.jsonl"
"""Runs on the embedded LLaVA."""


def rivals_pages() -> dict[str, str]:
    """Return the pages by file name: one per rival, and the list of them."""
    words = tomllib.loads((RESULTS / WORDS).read_text(encoding="utf-8"))
    pages = {f"{FOLDER}/{rival['page']}.md": _page(rival, words["grid"]) for rival in words["rival"]}
    return {f"{FOLDER}/index.md": _index(words)} | pages


def single(editor: str) -> dict[str, Any] | None:
    """Return an editor's single edits of the embedded LLaVA, own constants; None if they were not measured."""
    about = {"base": runs_of(LLAVA)[0]["base"], "suite": SUITE, "editor": editor, "constants": _constants(editor)}
    return next((run for run in runs_of(SINGLE) if about.items() <= run.items()), None)


def verdict(run: Mapping[str, Any]) -> str:
    """Return whether a ranking shows the editor of single edits."""
    return "ranked" if run["single"]["Rel"][0] >= LEAST else "in no ranking"


def thinned(curve: Sequence[Any]) -> list[Any]:
    """Return at most `LONGEST` points of a curve at equal distances, the last one among them."""
    step = -(-len(curve) // LONGEST)
    return list(reversed(list(reversed(curve))[::step]))


def _index(words: Mapping[str, Any]) -> str:
    rows = list[Sequence[str]]()
    for rival in words["rival"]:
        for editor in rival["editors"]:
            run = single(editor)
            measured = (_rel(run), _ended(run), verdict(run)) if run else ("not measured", "", "")
            rows.append((f"[{rival['title']}]({rival['page']}.md)", f"`{editor}`", *measured))
    listed = table(("rival", "editor", "Rel", "fit", "ranking"), rows)
    return page(words["title"], _source(), words["head"], words["single"], listed, words["note"])


def _page(rival: Mapping[str, Any], grid: str) -> str:
    parts = (
        f"Editors: {', '.join(f'`{editor}`' for editor in rival['editors'])}. Source: {rival['source']}.",
        f"## As published\n\n{rival['published']}",
        f"## Here\n\n{rival['ours']}",
        "## Departures",
        table(("what", "why"), ((one["what"], one["why"]) for one in rival["departure"])),
        f"## Grid\n\n{grid}",
        *_grids(rival["editors"]),
        *_rules(rival),
        "## Single edits",
        *_measured(rival["editors"]),
        "[All rivals](index.md)",
    )
    return page(rival["title"], _source(), *parts)


def _grids(editors: Sequence[str]) -> Iterator[str]:
    """Yield the settings of each editor that has a grid of its own."""
    grids: dict[Any, list[str]] = {}
    for editor in editors:
        grids.setdefault(entry_of(editor).tries, []).append(editor)
    for tries, names in grids.items():
        own = _constants(names[0])
        keys = dict.fromkeys(text.partition("=")[0] for setting in tries for text in setting)
        rows = [
            (
                f"`{key}`",
                _word(own[key]),
                "; ".join(", ".join(setting) for setting in tries if setting[0].startswith(f"{key}=")),
            )
            for key in keys
        ]
        yield f"{', '.join(f'`{name}`' for name in names)}:"
        yield table(("constant", "own", "tried (several constants together: at the first)"), rows)


def _rules(rival: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the numbers follow from that are in no grid."""
    own, rules = _constants(rival["editors"][0]), rival.get("rule", {})
    if rules:
        yield "Other numbers:"
        yield table(("constant", "own", "rule"), ((f"`{key}`", _word(own[key]), rule) for key, rule in rules.items()))


def _constants(editor: str) -> Mapping[str, Any]:
    return entry_of(editor).make(EditorOptions(demo_model_dir())).constants()


def _measured(editors: Sequence[str]) -> Iterator[str]:
    """Yield what was measured of each editor, and its fit."""
    runs = {editor: single(editor) for editor in editors}
    rows = [
        (
            f"`{editor}`",
            *(share(*run["single"][label][:3]) for label in FIVE),
            str(run["single"]["Rel"][3]),
            verdict(run),
        )
        for editor, run in runs.items()
        if run
    ]
    yield table(("editor", *FIVE, "n", "ranking"), rows)
    missing = [f"`{editor}`" for editor, run in runs.items() if not run]
    if missing:
        yield f"Not measured alone: {', '.join(missing)}."
    for editor, run in runs.items():
        if run and (curve := (run["fit"] or {}).get("facts", {}).get("curve")):
            yield f"## Fit of `{editor}`"
            yield _fit(run["fit"])
            yield table(
                ("iteration", "loss on watched edits"), ((f"{n:,}", f"{loss:.3f}") for n, loss in thinned(curve))
            )


def _fit(fit: Mapping[str, Any]) -> str:
    facts = fit["facts"]
    fell = ", ".join(f"{iteration:,}" for iteration in facts["rate_fell_at"])
    falls = f" The rate fell to a tenth after {fell}." if fell else ""
    best = min(facts["curve"], key=lambda point: point[1])
    done = f"{facts['iterations']:,} iterations of at most {facts['of']:,}; it ended by {facts['ended']}"
    kept = f"The weights are those of iteration {best[0]:,}, of the lowest loss."
    return f"Fitted on {fit['records']} records for {done}.{falls} {kept}"


def _ended(run: Mapping[str, Any]) -> str:
    facts = (run["fit"] or {}).get("facts", {})
    return f"{facts['ended']} at {facts['iterations']:,}" if "ended" in facts else ""


def _rel(run: Mapping[str, Any]) -> str:
    return share(*run["single"]["Rel"][:3])


def _word(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return OWN_WORDS[value]
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _source() -> str:
    return f"more_lab/results/{WORDS} and {SINGLE}"
