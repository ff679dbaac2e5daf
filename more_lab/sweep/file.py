"""The file of `more sweep`: a grid of runs on suites, or a fleet of checkpoints, as one TOML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, product
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from more_cli.errors import UsageError
from more_cli.evaluation.streams import Writing
from more_cli.inputs.records import opened
from more_cli.ops.auto_anchors import AUTO
from more_cli.recipe.settings import Filled, filled, parse_toml, spelled, toml_problem
from more_cli.recipe.tables import Table
from more_cli.runner.plan import Preset
from more_cli.runner.protocols import PROTOCOLS, Scored, checked
from more_cli.store.project import line_of
from more_cli.suites.catalog import CATALOG
from more_cli.text import shorten
from more_lab.experiments.presets import preset_of

MAX_BYTES = 1 << 20
"""Largest file that is read, in bytes."""
MAX_TRIALS = 100_000
_TYPED = re.compile(r"--set ('[^']*'|[^\s;,]+)")
"""A setting in a hint, as it is typed."""
_NAMED = re.compile("`([^`]+)`")
"""A name or a value in a message."""
_PAGE = "docs/research/sweeps.md lists all keys"
Count = Annotated[int, Field(ge=0)]
Then = Literal["merge", "export", "none"]


class Grid(Table):
    """Every combination of its lists is one trial."""

    model_config = ConfigDict(strict=True)

    editors: tuple[str, ...] = Field(min_length=1, examples=[("more",)])
    """Editors as in `more compare`: EDITOR or EDITOR@RECIPE; a recipe's file is relative to this one."""
    models: tuple[str, ...] = Field(default=("embedded:llava",), min_length=1)
    """Checkpoint folders, relative to this file; `embedded:llava` is the model of the package."""
    suites: tuple[str, ...] = Field(default=("e-vqa",), min_length=1)
    """Suites of `more suites list`, or files of edits relative to this one. Here, in `anchors` and in `data_root`
    `{model}` stands for the last part of a model's name."""
    limits: tuple[Count, ...] = Field(default=(100,), min_length=1)
    """Numbers of edits, the first of the suite; 0 for all."""
    seeds: tuple[Count, ...] = ()
    """Seeds of the editor, for M-ORE that of the basis; an editor that draws nothing runs once. Default: its own."""
    orders: tuple[Count, ...] = Field(default=(0,), min_length=1)
    """Seeds of the order of the edits; 0 is that of the suite's file."""

    writings: tuple[Writing, ...] = Field(default=("online",), min_length=1)
    """How edits are written: `online`, each as it comes, or together at the end: `batch`, `all` or `anew`, as `more
    run` with --batch, --consolidate all or anew. An editor that writes each edit as it comes runs once."""
    changes: tuple[tuple[str, ...], ...] = Field(default=((),), min_length=1, examples=[(("rank=8",),)])
    """Settings that change together, as `KEY=VALUE`: each list is one way to run the editors, [] the editors' own."""

    protocols: tuple[str, ...] = ()
    """Which edits are scored when, as `run --protocol`. Default: final and online, final alone for edits that are
    written together, or those of `metrics`."""
    checkpoints: tuple[Count, ...] = (1, 10, 100)
    """Numbers of edits at which final and online are reported."""
    lags: tuple[Count, ...] = (10,)
    """Numbers of later edits at which protocol lag scores an edit."""
    metrics: str = ""
    """Preset of metrics, as `eval --metrics`. Default: every metric by its full name."""
    anchors: str = ""
    """Anchors of the editors that use them: a file relative to this one, or `auto`. Default: those of their recipes."""
    data_root: str = ""
    """Folder with the files of the suites, relative to this file. Default: the embedded suites."""
    image_root: str = ""
    """Folder that image paths start from, relative to this file. Default: as `eval --image-root`."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of one trial; other numbers give other last digits. Default: the cores, divided among the workers."""

    @property
    def preset(self) -> Preset | None:
        """The preset of metrics, if one is named."""
        return preset_of(self.metrics) if self.metrics else None

    @property
    def scored(self) -> Scored:
        """What is scored in every trial.

        Raises:
            ValueError: no such protocol.
        """
        return Scored(checked(self.protocols), self.checkpoints, self.lags)


class Fleet(Table):
    """One stream of edits on many checkpoints, each with a state of its own."""

    model_config = ConfigDict(strict=True)

    models: tuple[str, ...] = Field(min_length=1)
    """Checkpoint folders, relative to this file; `embedded:llava` is the model of the package."""
    edits: str
    """JSON Lines file of edits, relative to this one."""
    then: Then = "none"
    """What is written beside each state: a merged checkpoint, a PEFT adapter, or nothing."""
    recipe: str = ""
    """Recipe, by name or as a file relative to this one. Default: by architecture."""
    settings: tuple[str, ...] = Field(default=(), examples=[("rank=8",)])
    """Values of the recipe that change, as `edit --set`: `key=value`."""
    anchors: bool = True
    """Whether a new state makes anchors from the edits."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of one checkpoint. Default: the cores, divided among the workers."""


@dataclass(frozen=True)
class Combination:
    """One cell of a grid, as it is written in the file."""

    model: str
    suite: str
    limit: int
    editor: str
    settings: tuple[str, ...]
    order: int
    seed: int | None = None
    """None for the editor's own."""
    writing: Writing = "online"


@dataclass(frozen=True)
class _Source:
    """A file that is being checked."""

    path: Path
    text: str

    def at(self, key: str) -> str:
        """Return file and line of a key as a message names them; the file alone where the line is not found."""
        line = line_of(key, self.text)
        return f"{self.path}:{line}" if line else str(self.path)


@dataclass(frozen=True)
class SweepFile:
    """A checked file."""

    path: Path
    table: Grid | Fleet
    settings: Mapping[str, tuple[Any, ...]]
    """Values by setting; `EDITOR:KEY` changes this editor alone."""
    text: str
    """All of it."""

    def beside(self, name: str, model: str = "") -> Path:
        """Return a path that the file names; `{model}` in it stands for the last part of the model's name."""
        return self.path.parent / name.replace("{model}", PurePath(model.rpartition(":")[2]).name)

    def suite(self, name: str, model: str) -> str:
        """Return a suite as `load_suite` takes it."""
        path = self.beside(name, model)
        is_file = name not in CATALOG and (path.is_file() or path.suffix in (".json", ".jsonl"))
        return str(path) if is_file else name

    def anchors(self, model: str) -> Path | Literal["auto"] | None:
        """Return the anchors of a grid as `LabOptions` takes them."""
        assert isinstance(self.table, Grid)
        named = self.table.anchors
        return AUTO if named == AUTO else self.beside(named, model) if named else None

    def editor(self, name: str) -> str:
        """Return an editor as `entry_of` takes it."""
        editor, at, recipe = name.partition("@")
        return f"{editor}@{self.recipe(recipe)}" if at else name

    def recipe(self, name: str) -> str:
        """Return a recipe as `load_recipe` takes it."""
        return str(self.beside(name)) if name.endswith(".toml") else name

    def blamed(self, error: UsageError) -> UsageError:
        """Return an error of a setting as one of this file: with its line, and TOML in place of options to type."""
        shown = _TYPED.sub(lambda found: self._spelled(found[1].strip("'")), error.hint)
        problems = error.message.replace("`--set ", "`").split("\nerror: ")
        return UsageError("\nerror: ".join(f"{self._place(problem)}: {problem}" for problem in problems), shown)

    def _place(self, problem: str) -> str:
        """Return file and line of a problem: where a name in it is set or, if none is, where one stands in quotes."""
        words = [word.partition("=")[0].strip() for word in _NAMED.findall(problem)]
        names = "|".join(re.escape(name) for word in words if (name := word.rpartition(".")[2]))
        lines = dict(enumerate(self.text.split("\n"), 1))
        for pattern in (rf"""(?<![\w-])({names})["']?\s*=""", rf"""["']({names})["']"""):
            found = [at for at, line in lines.items() if re.search(pattern, line) and not line.lstrip().startswith("#")]
            if names and found:  # a setting of two editors: the line that has its value too
                return f"{self.path}:{max(found, key=lambda at: sum(word in lines[at] for word in words))}"
        return str(self.path)

    def _spelled(self, setting: str) -> str:
        """Return a setting as `[settings]` takes it, if it is there, else as `changes` or a fleet does."""
        key, _, value = setting.partition("=")
        if key in {name.rpartition(":")[2] for name in self.settings}:
            return f"{key} = [{value}]"
        return f"'{setting}'" if '"' in setting else f'"{setting}"'

    def combinations(self) -> Iterator[Combination]:
        """Yield the cells of the grid without their seeds, in the order of the file: orders change first."""
        grid = self.table
        assert isinstance(grid, Grid)
        for model, suite, limit, editor in product(grid.models, grid.suites, grid.limits, grid.editors):
            for writing, settings, order in product(grid.writings, self._settings_of(editor), grid.orders):
                yield Combination(model, suite, limit, editor, settings, order, writing=writing)

    def _settings_of(self, editor: str) -> Iterator[tuple[str, ...]]:
        own = dict[str, tuple[Any, ...]]()
        for key, values in self.settings.items():
            named = _editor_of(key, self.table)
            if named == editor:
                own[key.removeprefix(f"{editor}:")] = values
            elif named is None and f"{editor}:{key}" not in self.settings:
                own[key] = values
        assert isinstance(self.table, Grid)
        for change, *chosen in product(self.table.changes, *own.values()):
            yield (*change, *(f"{key}={spelled(value)}" for key, value in zip(own, chosen, strict=True)))


def read_sweep(path: Path) -> SweepFile:
    """Read and check a sweep file; what its names stand for is checked when the trials are made.

    Raises:
        DataError: there is no such file, or it cannot be read.
        UsageError: not TOML, a key or a value that it cannot have, or more than `MAX_TRIALS` trials.
    """
    with opened(path) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise UsageError(f"`{path}` is larger than {MAX_BYTES >> 20} MiB", "a sweep is a short TOML file")
    text = ""
    try:
        text = raw.decode("utf-8")
        values = parse_toml(text)
    except ValueError as error:
        hint = "a sweep is a TOML file; see docs/research/sweeps.md"
        raise UsageError(toml_problem(path, text, error), hint) from None
    source = _Source(path, text)
    if "fleet" in values:
        return SweepFile(path, _fleet(source, values), {}, source.text)
    settings = values.pop("settings", {})
    grid = _checked(Grid, values, source.at)
    found = SweepFile(path, grid, dict(_settings(source, settings, grid)), source.text)
    _check_names(source, grid)
    _check_once(path, found)
    if sum(1 for _ in islice(found.combinations(), MAX_TRIALS + 1)) > MAX_TRIALS:
        raise UsageError(f"{path}: more than {MAX_TRIALS:,} trials", "shorten a list")
    return found


def _fleet(source: _Source, values: dict[str, Any]) -> Fleet:
    fleet = values.pop("fleet")
    if values:
        key = next(iter(values))
        text = f"{source.at(key)}: `{shorten(key)}` is outside of `[fleet]`"
        raise UsageError(text, "a file has either a grid or a fleet: write two files")
    if not isinstance(fleet, dict):
        keys = ", ".join(Fleet.model_fields)
        raise UsageError(f"{source.at('fleet')}: `fleet` is a table; its keys are {keys}", "write [fleet]")
    return _checked(Fleet, fleet, lambda key: f"{source.at(key)}: [fleet]")


def _checked(table: type[Filled], values: Mapping[str, Any], where: Callable[[str], str]) -> Filled:
    return filled(table, {key: _frozen(value) for key, value in values.items()}, where, listed=_PAGE)


def _frozen(value: Any) -> Any:
    """Return lists as tuples: the tables are strict."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _settings(source: _Source, values: Any, grid: Grid, above: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the values of every setting by its dotted name."""
    if not isinstance(values, dict):
        text = f"{source.at('settings')}: `settings` is a table of lists"
        raise UsageError(text, "for example [settings] and below it rank = [8, 16]")
    for name, value in values.items():
        key = above + name
        if isinstance(value, dict):
            yield from _settings(source, value, grid, f"{key}.")
            continue
        if not isinstance(value, list) or not value:
            misfit = f"`{shorten(key)}` cannot be `{shorten(str(value))}`; it takes a list of values"
            text = f"{source.at(name)}: `settings`: {misfit}"
            raise UsageError(text, f"for example {shorten(key)} = [{shorten(str(value)) if value != [] else 1}]")
        if ":" in key and _editor_of(key, grid) is None:
            text = f"{source.at(name)}: `settings`: `{shorten(key)}` names none of the editors"
            raise UsageError(text, f'write "EDITOR:KEY" with one of {", ".join(grid.editors)}')
        yield key, _frozen(value)


def _editor_of(key: str, table: Table) -> str | None:
    """Return the editor that a setting is for; None for all. An editor's name may hold a colon."""
    assert isinstance(table, Grid)
    return max((name for name in table.editors if key.startswith(f"{name}:")), key=len, default=None)


def _check_once(path: Path, sweep: SweepFile) -> None:
    """Check that no setting is given in two places: the last one would count, under a label that names the first."""
    grid = sweep.table
    assert isinstance(grid, Grid)
    places = {
        "`seeds`": {"seed"} if grid.seeds else set[str](),
        "`changes`": {change.partition("=")[0].strip() for changes in grid.changes for change in changes},
        "`settings`": {key.removeprefix(f"{_editor_of(key, grid)}:") for key in sweep.settings},
    }
    for (one, keys), (other, others) in combinations(places.items(), 2):
        if twice := sorted(keys & others):
            raise UsageError(f"{path}: `{twice[0]}` is in {one} and in {other}", "leave it out of one of them")


def _check_names(source: _Source, grid: Grid) -> None:
    try:
        checked(grid.protocols)
    except ValueError as error:
        there = f"there are {', '.join(PROTOCOLS)}"
        text = f"{source.at('protocols')}: `protocols`: unknown protocol `{shorten(str(error))}`"
        raise UsageError(text, there) from None
    try:
        preset = grid.preset
    except UsageError as error:
        raise UsageError(f"{source.at('metrics')}: `metrics`: {error.message}", error.hint) from None
    if preset and grid.protocols:
        named = ", ".join(preset.protocols)
        text = f'{source.at("metrics")}: `metrics = "{grid.metrics}"` sets the protocols itself: {named}'
        raise UsageError(text, "leave `protocols` out")
