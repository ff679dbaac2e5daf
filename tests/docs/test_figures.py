"""The figures of the results page: they show what the results and their pages say, and are as committed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tests" / "bench"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # A dataclass asks for the module of its class.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "figures", module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(figures: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("img")
    figures.draw(folder)
    return folder


def cells(page: str, title: str) -> dict[str, dict[str, str]]:
    """Return a table of a page, by the first cell of its rows and by column."""
    text = (BENCH / page).read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: dict(zip(rows[0], row, strict=False)) for row in rows[1:]}


def shown(point: object) -> str:
    """Return a point as a page prints it, in % with its interval."""
    return f"{point.value:.1f} ({point.low:.1f}-{point.high:.1f})"  # type: ignore[attr-defined]


def near(text: str, other: str) -> bool:
    """Tell whether two printed estimates are the same but for a last digit that was rounded twice."""
    both = [[float(number) for number in re.findall(r"-?\d+\.\d", one)][:3] for one in (text, other)]
    return all(abs(a - b) < 0.11 for a, b in zip(*both, strict=False))


def test_the_committed_figures_are_those_that_the_script_draws(figures: ModuleType, made: Path) -> None:
    assert {path.name for path in figures.IMAGES.glob("*.svg")} == {path.name for path in made.iterdir()}
    for path in made.iterdir():
        assert figures.drawn(figures.IMAGES / path.name) == figures.drawn(path), "run python docs/figures.py"


def test_a_second_run_gives_the_same_bytes_without_a_date(figures: ModuleType, made: Path, tmp_path: Path) -> None:
    figures.draw(tmp_path)
    for path in made.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
        assert b"dc:date" not in path.read_bytes()


def test_every_figure_is_on_a_page_with_a_text_for_who_cannot_see_it(figures: ModuleType) -> None:
    names = "results.md", "unseen-models.md", "speed.md", "claims.md"
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in names)
    images = dict((name, text) for text, name in re.findall(r"!\[([^\]]+)\]\(img/(\w+)\.svg\)", page))
    assert set(images) == set(figures.FIGURES)
    assert all(len(text) > 40 for text in images.values())


def test_editors_are_those_of_their_page(figures: ModuleType) -> None:
    table = cells("EDITORS.md", "e-vqa (nine settings each), final@100")
    for point in figures.editors():
        assert near(shown(point), table[point.row][point.panel]), point


def test_rivals_are_those_of_their_page(figures: ModuleType) -> None:
    table = cells("EDITORS.md", "e-vqa, 1,000 edits, settings chosen among nine, final@1000")
    points = [point for point in figures.rivals() if point.x == 1000]
    assert {point.row for point in points} == set(table) - {"more, own constants"}
    for point in points:
        assert near(shown(point), table[point.row][point.panel]), point


def test_the_means_of_four_models_are_those_of_their_page() -> None:
    whole = cells("EDITORS.md", "Mean of five by suite and model, final@100, own constants")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").split("## Four models")[1].split("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 14
    for line in rows:
        name, *values = (cell.strip() for cell in line.strip("|").split("|"))
        assert values == [cell.strip() for cell in list(whole[name].values())[1:]], name


def test_costs_and_families_are_those_of_their_page(figures: ModuleType) -> None:
    tables = {
        "costs": cells("RETENTION.md", "Records 1-100, three orders"),
        "families": cells("RETENTION.md", "Records 1-100 of each family's own pool"),
    }
    for name, table in tables.items():
        for point in getattr(figures, name)():
            row = table[point.row]
            # The page has no interval of the mean of five.
            assert near(shown(point) if point.panel in figures.FIVE else f"{point.value:.1f}", row[point.panel]), point
            assert point.x == pytest.approx(float(row["cost per edit"]), abs=0.11)


def test_what_p_is_worth_is_what_the_runs_say(figures: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for table, ours, identity, label in (
        ("main", "paper", "naive", "mean of five"),
        ("ablation", "default", "P = I", "mean of five"),
        ("ablation", "default", "P = I", "M-Loc"),
    ):
        one = figures.compare(figures.by_edit(table, ours, label), figures.by_edit(table, identity, label))
        low, value, high = (f"{100 * number:+.1f}" for number in (one.low, one.difference, one.high))
        assert f"| {label} | {value} ({low} to {high}) |" in page


def test_arrivals_are_those_of_their_page(figures: ModuleType) -> None:
    text = (BENCH / "RESULTS.md").read_text(encoding="utf-8").split("## A LoRA trained again")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    table = {row[3]: row for row in rows[: len(figures.RATES)]}
    for point in figures.arrivals():
        row = table[point.row]
        printed = f"{point.value:+.1f} ({point.low:+.1f} to {point.high:+.1f})"
        assert near(printed, row[4 + figures.FIVE.index(point.panel)]), point
        assert point.n == 900


def test_speed_ratios_are_those_of_their_page(figures: ModuleType) -> None:
    text = (BENCH / "RESULTS.md").read_text(encoding="utf-8")
    ratios = [point for point in figures.speed() if point.panel == "write over floor"]
    for point in ratios:
        assert f"{point.value:.2f} ({point.low:.2f}-{point.high:.2f})" in text, point
    assert (min(p.value for p in ratios if "text alone" not in p.row), max(p.value for p in ratios)) == (1.01, 1.38)


def test_long_has_every_edit(figures: ModuleType) -> None:
    parts = figures.panels(figures.long())
    assert sum(point.n for point in parts["ms an edit"]) == 5000
    assert max(point.value for point in parts["resident MiB"]) < 700
