"""A sweep file: what it can say, and what is said of one that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from more_lab.sweep.file import read_sweep
from support.helpers import World, line, run

RECIPES = Path(__file__).parents[3] / "recipes" / "sweeps"


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_a_setting_with_an_editor_before_it_changes_this_editor_alone(tmp_path: Path) -> None:
    text = """
    editors = ["more", "more:paper", "more:paper@own.toml"]
    orders = [0, 2]
    [settings]
    last = [1, 2]
    default.lambda = [10.0]
    "more:paper:rank" = [4]
    "more:system" = ["a:b"]
    "more:sites" = [["projector"]]
    """
    found = list(read_sweep(written(tmp_path, text)).combinations())
    assert [cell.order for cell in found] == [0, 2] * 6
    settings = {
        editor: {cell.settings for cell in found if cell.editor == editor} for editor in {c.editor for c in found}
    }
    both = {("last=1", "default.lambda=10"), ("last=2", "default.lambda=10")}
    assert settings["more"] == {(*each, 'system="a:b"', 'sites=["projector"]') for each in both}
    assert settings["more:paper"] == {(*each, "rank=4") for each in both}
    assert settings["more:paper@own.toml"] == both


def test_a_setting_of_one_editor_stands_in_place_of_that_of_all_wherever_it_is_written(tmp_path: Path) -> None:
    lines = ["rank = [4]", '"more:rank" = [8, 16]']
    for settings in (lines, lines[::-1]):
        text = "\n".join(['editors = ["more", "more:paper"]', "[settings]", *settings])
        found = read_sweep(written(tmp_path, text)).combinations()
        ways = [(cell.editor, *cell.settings) for cell in found]
        assert ways == [("more", "rank=8"), ("more", "rank=16"), ("more:paper", "rank=4")]


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = read_sweep(written(tmp_path, 'editors = ["more@own.toml", "more@llava"]\nsuites = ["a.jsonl", "e-ic"]'))
    assert found.editor("more@own.toml") == f"more@{tmp_path / 'own.toml'}"
    assert found.editor("more@llava") == "more@llava"
    assert [found.suite(name, "m") for name in ("a.jsonl", "e-ic")] == [str(tmp_path / "a.jsonl"), "e-ic"]
    assert found.suite("{model}/a.jsonl", "models/A1") == str(tmp_path / "A1" / "a.jsonl")
    assert found.suite("{model}.jsonl", "embedded:llava") == str(tmp_path / "llava.jsonl")


def test_settings_that_change_together_and_ways_to_write_are_combined(tmp_path: Path) -> None:
    text = """
    editors = ["more"]
    writings = ["online", "batch"]
    changes = [[], ["margin=1", "rehearsal.size=0"]]
    [settings]
    rank = [8]
    """
    found = list(read_sweep(written(tmp_path, text)).combinations())
    each = [("rank=8",), ("margin=1", "rehearsal.size=0", "rank=8")]
    ways = [(way, one) for way in ("online", "batch") for one in each]
    assert [(cell.writing, cell.settings) for cell in found] == ways


def test_the_shipped_files_can_be_run(tmp_path: Path) -> None:
    paths = sorted(RECIPES.glob("*.toml"))
    assert paths
    for path in paths:
        planned = run("sweep", path, "-o", tmp_path / path.stem, "--dry-run")
        assert planned.code == 0, (path.name, planned.err)
        assert "to run" in planned.out, path.name
        assert "cannot run" not in planned.out, path.name


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("editors = [", ":1: not TOML: invalid value", "a sweep is a TOML file"),
        ("", "`editors` is missing; it takes a list of text", "docs/research/sweeps.md lists all keys"),
        ("editors = []", "`editors` cannot be `[]`; it takes a list of text", ""),
        ('editors = "more"', "`editors` cannot be `more`; it takes a list of text", ""),
        ('editor = ["more"]', "there is no key `editor`", "did you mean `editors`?"),
        ('editors = ["none"]\nseeds = ["1"]', "`seeds", "docs/research/sweeps.md"),
        ('editors = ["none"]\nlimits = [-1]', "`limits` cannot be `-1`; it takes a list of whole numbers >= 0", ""),
        ('editors = ["none"]\nlags = [-1]', "`lags` cannot be `-1`; it takes a list of whole numbers >= 0", ""),
        ('editors = ["more"]\nchanges = [["rank=8"], []]\n[settings]\nrank = [16]',
         "`rank` is in `changes` and in `settings`", "leave it out of one of them"),
        ('editors = ["more"]\nseeds = [1]\n[settings]\n"more:seed" = [7]',
         "`seed` is in `seeds` and in `settings`", "leave it out of one of them"),
        ('editors = ["none"]\nthreads = 0', "`threads` cannot be `0`; it takes a whole number >= 1", ""),
        ('editors = ["none"]\nprotocols = ["onlin"]', "unknown protocol `onlin`", "there are final, online"),
        ('editors = ["none"]\nmetrics = "paper"', "`metrics`: unknown metrics `paper`", "did you mean `paper-"),
        ('editors = ["none"]\nmetrics = "mmedit"\nprotocols = ["final"]', "sets the protocols itself", "leave"),
        ('editors = ["none"]\n[settings]\nrank = 8', "`rank` cannot be `8`; it takes a list of values", "rank = [8]"),
        ('editors = ["none"]\n[settings]\nrank = []', "`rank` cannot be `[]`; it takes a list of values", "rank = [1]"),
        ('editors = ["none"]\nsettings = 3', "`settings` is a table of lists", "for example [settings]"),
        ('editors = ["none"]\n[settings]\n"more:rank" = [8]', "`more:rank` names none of the editors", '"EDITOR:KEY"'),
        ('editors = ["moer"]', "unknown editor `moer`", "did you mean `more`?"),
        ('editors = ["ft-l"]\n[settings]\nrank = [8]', "editor `ft-l`: there is no key `rank`", "its keys are"),
        ('editors = ["more"]\n[settings]\nrank = ["x"]', "`rank` cannot be `x`", "for example rank = [512];"),
        ('editors = ["more"]\nchanges = [["rank=x"]]', "`rank` cannot be `x`", 'for example "rank=512";'),
        ('editors = ["more"]\nchanges = [["rank"]]', "`rank` has no `=`", 'write "key=value", for instance "max_'),
        ('editors = ["more"]\nchanges = "rank=8"', "takes a list of lists of text", 'example changes = [["rank=8"]];'),
        ('editors = ["none"]\nsuites = ["e-vqb"]', "unknown suite", "did you mean `e-vqa`?"),
        ('editors = ["none"]\nsuites = ["mme"]', "suite `mme` has no edits, only questions", "name a suite of edits"),
        ('editors = ["none"]\nmodels = ["embedded:blip"]', "there is no `embedded:blip`", "embedded:llava"),
        ('editors = ["none"]\n[fleet]\nmodels = ["a"]\nedits = "e"', "`editors` is outside of `[fleet]`", "two files"),
        ('fleet = 3', "`fleet` is a table; its keys are models, edits", "write [fleet]"),
        ('[fleet]\nmodels = ["a"]\nedits = "e"\nthen = "serve"', "`then` cannot be `serve`", "docs/research/sweeps.md"),
        (
            f'editors = ["none"]\norders = {list(range(401))}\nlimits = {list(range(1, 252))}',
            "more than 100,000 trials",
            "shorten a list",
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_file_key_and_value_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str, hint: str
) -> None:
    monkeypatch.setattr("more_cli.runner.run.load_runtime", None)
    path = written(tmp_path, text)
    refused = run("sweep", path, "-o", tmp_path / "out")
    assert (refused.code, refused.out) == (2, ""), refused.err
    error, *rest = refused.err.splitlines()
    assert error.startswith(f"error: {path}")
    assert said in error + "".join(rest)
    assert hint in "".join(rest)
    assert not (tmp_path / "out").exists()


def test_a_mistake_names_its_line(tmp_path: Path) -> None:
    for text, place in {
        'models = ["m"]\n\neditor = ["more"]': "3: there is no key `editor`",
        'editors = ["none"]\nlags = [-1]': "2: `lags` cannot be",
        'editors = ["none"]\n[settings]\nrank = 8': "3: `settings`: `rank` cannot be",
        'editors = ["none"]\nmetrics = "paper"': "2: `metrics`: unknown metrics",
        '[fleet]\nmodels = ["m"]\nedits = "e"\nthn = "merge"': "4: [fleet]: there is no key `thn`",
    }.items():
        refused = run("sweep", written(tmp_path, text), "-o", tmp_path / "out")
        assert refused.code == 2
        assert f"error: {tmp_path / 'sweep.toml'}:{place}" in refused.err, refused.err


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('[settings]\n# rank = ["x"]\nrank = ["x"]', ["4: recipe `llava`: `rank` cannot be `x`"]),
        ('[settings]\nmax_rank = [8]\nrnk = [8]', ["3: ", "4: recipe `llava`: there is no key `rnk`"]),
        ('[settings.default]\nlambda = [-1.0]', ["3: recipe `llava`: `default.lambda` cannot be `-1`"]),
        ('[settings]\ndefault.lambda = [-1.0]', ["3: recipe `llava`: `default.lambda` cannot be `-1`"]),
        ('[settings]\nrank = [8]\n"more:rank" = ["x"]', ["4: recipe `llava`: `rank` cannot be `x`"]),
        ('changes = [\n  ["rank=8"],\n  ["rank=x"],\n]', ["4: recipe `llava`: `rank` cannot be `x`"]),
        ('changes = [["rank"]]', ["2: `rank` has no `=`"]),
        ('suites = ["e-vqb"]', ["2: unknown suite"]),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, text: str, places: list[str]) -> None:
    path = written(tmp_path, f'editors = ["more"]\n{text}')
    refused = run("sweep", path, "-o", tmp_path / "out")
    errors = [line for line in refused.err.splitlines() if line.startswith("error: ")]
    assert (refused.code, len(errors)) == (2, len(places)), refused.err
    for error, place in zip(errors, places, strict=True):
        assert error.startswith(f"error: {path}:{place}"), refused.err


def test_a_setting_of_a_fleet_is_checked_for_every_checkpoint_before_anything_runs(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.edits(1)
    path = written(world.root, '[fleet]\nmodels = ["model"]\nedits = "edits.jsonl"\nsettings = ["rnk=3"]')
    for options in ((), ("--dry-run",)):
        refused = run("sweep", path, "-o", tmp_path / "out", *options)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(
            f"error: {path}:4: recipe `llava`: there is no key `rnk`\nhint: did you mean `rank`?"
        )
        assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    written(tmp_path, "")
    refused = run("sweep", tmp_path / "swep.toml", "-o", tmp_path / "out")
    assert (refused.code, refused.out) == (4, "")
    assert "did you mean" in refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpus-per-trial", 1), "`--gpus-per-trial` needs `--address`"),
        (("--workers", 2, "--address", "auto"), "`--workers` and `--address` were both given"),
        (("--device", "quantum"), "`--device quantum` cannot be used"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: tuple[object, ...], said: str) -> None:
    refused = run("sweep", written(tmp_path, 'editors = ["none"]'), "-o", tmp_path / "out", *options)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {said}")


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "results.jsonl").write_text("a year of work")
    (mine / "report.html").write_text("mine")
    for options in ((), ("--dry-run",)):
        refused = run("sweep", written(tmp_path, 'editors = ["none"]'), "-o", mine, *options)
        assert (refused.code, refused.out) == (2, "")
        said = f"error: `{mine}` is not empty and holds no sweep\nhint: name an empty folder with -o\n"
        assert refused.err == said
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        "results.jsonl": "a year of work",
        "report.html": "mine",
    }
    is_file = run("sweep", tmp_path / "sweep.toml", "-o", mine / "report.html")
    assert (is_file.code, "is a file" in is_file.err) == (2, True)


def test_a_sweep_continues_in_a_folder_in_which_none_of_its_jobs_was_done(tmp_path: Path) -> None:
    path = written(tmp_path, 'editors = ["none"]\nmodels = ["broken"]')
    for _ in range(2):
        failed = run("sweep", path, "-o", tmp_path / "out")
        assert (failed.code, "error: 1 of 1 trial failed" in failed.err) == (3, True), failed.err
    planned = run("sweep", path, "-o", tmp_path / "out", "--dry-run")
    assert (planned.code, "to run" in planned.out) == (3, False), "nothing would run: no time is said"
    assert planned.err.endswith("hint: the lines `cannot run` say why\n")
    (tmp_path / "out" / "notes.txt").write_text("not of the sweep")
    assert run("sweep", path, "-o", tmp_path / "out").code == 2


def test_bad_edits_of_a_fleet_are_named_before_any_model_is_read(tmp_path: Path) -> None:
    world = World.at(tmp_path)
    world.write([{**line(0), "image": "img/none.png"}], "fixes.jsonl")
    path = written(tmp_path, '[fleet]\nmodels = ["model"]\nedits = "fixes.jsonl"')
    refused = run("sweep", path, "-o", tmp_path / "out")
    assert (refused.code, refused.out) == (4, "")
    assert "fixes.jsonl:1: " in refused.err
