"""More streams of corrections: made like a suite, with pictures of their own, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import further
from more_cli.demo.files import demo_model_dir, suite_dir
from world.pools import Pool

EDITS = 12


def test_no_picture_of_an_emblem_is_shown_twice() -> None:
    found = [about.name for number in range(9) for about in further.emblem_pictures(Pool.EVALUATION, number)]
    assert len(set(found)) == len(found) == 9 * further.EMBLEMS
    shipped = {path.name for path in (suite_dir("e-vqa-mini") / "images").glob("evaluation-emblem*")}
    assert shipped
    assert not shipped & set(found)


@pytest.mark.slow
@pytest.mark.parametrize("suite", sorted(further.SUITES))
def test_a_stream_is_of_corrections_and_new_emblems_in_pictures_of_its_own(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.CHUNK", 40)
    judge = further.load(demo_model_dir())
    files = []
    for name, number in (("a", 0), ("b", 1), ("again", 0)):
        records = further.SUITES[suite](judge, Pool.CALIBRATION, number, EDITS)
        further.write_suite(tmp_path / name, further.FILE, records)
        files.append((tmp_path / name / further.FILE).read_bytes())
    assert files[0] == files[2]
    # The pool that editors are fitted on is made of such streams.
    folder = suite_dir(f"{suite}-mini")
    fit = (folder / "fit.json").read_text(encoding="utf-8")
    shipped = {path.name for path in (folder / "images").iterdir() if path.name not in fit}
    assert len(shipped) > 500
    taken = [{path.name for path in (tmp_path / name / "images").iterdir()} for name in ("a", "b")]
    assert not taken[0] & taken[1]
    assert not (taken[0] | taken[1]) & shipped
    written = json.loads(files[0])
    assert len(written) == EDITS
    assert all(record["pred"] != record["alt"] for record in written)
    assert sum(record["tags"]["kind"].startswith("new-") for record in written) == EDITS // 3
