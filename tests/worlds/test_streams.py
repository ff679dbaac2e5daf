"""More streams of corrections: made like a suite, with pictures of their own, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from more_cli.demo.files import demo_model_dir
from more_cli.suites.embedded import suite_folder
from worlds.embedded import join, streams
from worlds.embedded.world.pools import Pool

EDITS = 12


def test_no_picture_of_an_emblem_is_shown_twice() -> None:
    found = [about.name for number in range(9) for about in streams.emblem_pictures(Pool.EVALUATION, number)]
    assert len(set(found)) == len(found) == 9 * streams.EMBLEMS
    shipped = {path.name for path in (suite_folder("e-vqa-mini") / "images").glob("evaluation-emblem*")}
    assert shipped
    assert not shipped & set(found)


@pytest.mark.slow
@pytest.mark.parametrize("suite", sorted(streams.SUITES))
def test_a_stream_is_of_corrections_and_new_emblems_in_pictures_of_its_own(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worlds.embedded.harvest.CHUNK", 40)
    judge = streams.load(demo_model_dir())
    files = []
    for name, number in (("a", 0), ("b", 1), ("again", 0)):
        records = streams.SUITES[suite](judge, Pool.CALIBRATION, number, EDITS)
        streams.write_suite(tmp_path / name, streams.FILE, records)
        files.append((tmp_path / name / streams.FILE).read_bytes())
    assert files[0] == files[2]
    # The pool that editors are fitted on is made of such streams.
    folder = suite_folder(f"{suite}-mini")
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


@pytest.mark.parametrize(
    ("after", "pools"),
    [
        (None, {"eval.json": ["own-0", "own-1", "own-2"], "fit.json": ["2", "10"]}),
        (2, {"eval.json": ["own-0", "own-1", "2", "10"]}),
    ],
)
def test_streams_are_joined_by_number_to_a_copy_of_the_suite(
    after: int | None, pools: dict[str, list[str]], tmp_path: Path
) -> None:
    suite, many = tmp_path / "suite", tmp_path / "streams"
    made = {suite / "eval.json": ["own-0", "own-1", "own-2"]}
    made |= {many / number / streams.FILE: [number] for number in ("10", "2")}
    for path, names in made.items():
        (path.parent / "images").mkdir(parents=True)
        path.write_text(json.dumps([{"src": name} for name in names]), encoding="utf-8")
        for name in names:
            (path.parent / "images" / f"{name}.png").write_bytes(name.encode())

    join.join(suite, many, tmp_path / "out", after)

    written = {path.name: [record["src"] for record in join.read(path)] for path in (tmp_path / "out").glob("*.json")}
    assert written == pools
    pictures = {path.stem: path.read_bytes().decode() for path in (tmp_path / "out" / "images").iterdir()}
    assert pictures == {name: name for name in ("own-0", "own-1", "own-2", "2", "10")}
    assert sorted(path.name for path in suite.iterdir()) == ["eval.json", "images"]
