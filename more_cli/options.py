"""The options of the commands, each declared once: for the command line, the Python interface and the operation.

A record is what an operation takes. Its fields say how they are typed on the command line, where `cli/records.py` makes
options of them; the Python interface takes them as keywords of the same names. Nothing heavy is imported here, so that
`more --help` stays instant.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

STATE = "State"
REPORT = "Report and gates"
SUITE = "A suite"
RECIPE = "Recipe"
FILES = "Images"
MACHINE = "Where it runs"
HUB = "The hub"
OUTPUT = "Output"
WHICH = "Which edits"
WRITING = "How they are written"
"""Headings of options in the help of a command that has many."""


@dataclass(frozen=True)
class Typed:
    """How one option is typed and explained."""

    help: str
    names: tuple[str, ...] = ()
    """By default `--field-name`; a switch named here has no `--no-` form."""
    metavar: str | None = None
    panel: str | None = None
    least: int | None = None
    """Smallest number that is accepted."""
    complete: str | None = None
    """Function of `cli/completion.py` that offers values."""
    environment: str | None = None
    repeats: bool = False
    """Each further `-v` counts one more."""


def typed_fields(record: Any) -> list[Field[Any]]:
    """Return the fields of a record, or of its class, that are options, its own before those of its bases."""
    found = [each for each in fields(record) if "typed" in each.metadata]
    own = (record if isinstance(record, type) else type(record)).__annotations__
    return sorted(found, key=lambda each: each.name not in own)


def given(record: Any) -> list[str]:
    """Return the options of a record that differ from their default, as they are typed."""
    changed = [each for each in typed_fields(record) if getattr(record, each.name) != each.default]
    return [name_of(each) for each in changed]


def name_of(each: Field[Any]) -> str:
    """Return an option as it is typed."""
    names: tuple[str, ...] = each.metadata["typed"].names
    return next(iter(names), f"--{each.name.replace('_', '-')}")


def option(default: Any, help: str, *names: str, **typed: Any) -> Any:
    """Declare a field of a record as an option; `typed` are further fields of `Typed`."""
    return field(default=default, metadata={"typed": Typed(help, names, **typed)})


def dry_run_option() -> Any:
    """Declare `--dry-run`."""
    text = "Check everything and say what would be done; write nothing."
    return option(False, text, "--dry-run", "-n", panel=OUTPUT)


@dataclass(frozen=True)
class RecipeOptions:
    """Which numbers a new state has."""

    recipe: str | None = option(
        None,
        "A recipe from `more recipes list`, or a TOML file.",
        metavar="NAME|FILE",
        complete="recipes",
        panel=RECIPE,
    )
    """By default the architecture decides."""
    settings: tuple[str, ...] = option(
        (),
        "Change one value of the recipe (`more recipes show`); repeatable.",
        "--set",
        metavar="KEY=VALUE",
        complete="settings",
        panel=RECIPE,
    )


@dataclass(frozen=True)
class FileOptions:
    """Where the images of a file are."""

    image_root: Path | None = option(
        None,
        "Folder that image paths start from. [default: the folder of the file; of a pipe, the current folder]",
        metavar="DIR",
        panel=FILES,
    )
    strict_paths: bool = option(
        False,
        "Refuse images outside the image root: absolute paths, `..`, symlinks.",
        "--strict-paths",
        panel=FILES,
    )


@dataclass(frozen=True)
class ConvertOptions(FileOptions):
    """How a file of corrections in another form is read."""

    columns: tuple[str, ...] = option(
        (),
        "The column that holds a field, where their names differ; repeatable.",
        "--column",
        metavar="FIELD=COLUMN",
    )
    each_round: bool = option(False, "Make an edit of every round of a conversation.", "--each-round")
    skip_bad: bool = option(False, "Leave bad rows out instead of writing nothing.", "--skip-bad")
    force: bool = option(False, "Replace an existing file.")


@dataclass(frozen=True)
class HubOptions:
    """Whether MODEL is downloaded."""

    fetch: bool = option(
        False,
        "Download MODEL if it is an id on the hub, OWNER/NAME, into the hub's cache. The state is NAME.more in this "
        "folder and names the commit.",
        "--fetch",
        panel=HUB,
    )
    revision: str | None = option(
        None,
        "With --fetch: branch, tag or commit. [default: the state's commit, else main]",
        metavar="NAME",
        panel=HUB,
    )


@dataclass(frozen=True)
class TrackOptions:
    """Whether a service keeps what a run did."""

    track: str | None = option(
        None,
        "Send statuses and numbers to wandb, trackio, mlflow, tensorboard, or a tracker of another package.",
        metavar="NAME",
        complete="trackers",
        panel=REPORT,
    )


@dataclass(frozen=True)
class PushOptions:
    """What is published, and where."""

    private: bool = option(False, "Create a repository that only you can read.", "--private")
    revision: str | None = option(None, "Branch to write to; created if there is none.", metavar="BRANCH")
    images: bool = option(False, "Of a state: publish its pictures too.", "--images")
    yes: bool = option(False, "Do not ask.", "--yes", "-y")
    dry_run: bool = dry_run_option()


class NamedFile(NamedTuple):
    """A file that another file names."""

    path: Path
    place: str
    """The other file and the line, as a message names them."""


@dataclass(frozen=True)
class EditOptions(RecipeOptions, FileOptions):
    """How a stream is applied."""

    on_error: Literal["stop", "skip"] = option(
        "stop", "At a bad line: refuse the whole file, or skip the line.", panel=WHICH
    )
    limit: int | None = option(
        None, "Apply at most the first N edits of the stream.", metavar="N", least=1, panel=WHICH
    )
    save_every: int = option(10, "Write the state every N edits (and every 30 s).", metavar="N", least=1, panel=STATE)
    store_images: bool = option(True, "Keep a copy of every image, for replay and scoring.", panel=STATE)
    anchors: bool = option(
        True,
        "For a new state: take anchors. These are prompts of the recipe, questions that the model asks itself, and "
        "some about the picture of each edit.",
        panel=WRITING,
    )
    anchors_file: NamedFile | None = None
    """For a new state: questions whose answers must not change, in place of those that edits bring; of `more.toml`."""
    consolidate: Literal["off", "run", "all", "anew"] = option(
        "off",
        "After the last edit, write again, together, the edits that do not hold: those of this stream since the last "
        "consolidation (run), or those of the state (all). anew writes all edits again from nothing.",
        panel=WRITING,
    )
    batch: bool = option(False, "Write all edits of the stream together, at its end.", "--batch", panel=WRITING)
    compact: bool = option(
        True,
        "Write all edits anew when as many stand as the recipe says (default: 1,000, then 4,000 and so on). "
        "--no-compact leaves that to a later call.",
        panel=WRITING,
    )
    reapply: bool = option(False, "Apply reverted edits again.", "--reapply", panel=WHICH)
    snapshot_every: int | None = option(
        None,
        "Keep a copy of the state every N edits, until `more gc`. `edit` takes other snapshots by itself.",
        metavar="N",
        least=1,
        panel=STATE,
    )
    dry_run: bool = dry_run_option()


@dataclass(frozen=True)
class FeedOptions:
    """Where the edits come from, beside a file that is complete, and how each is reported."""

    retry: bool = option(
        False,
        "Try failed edits again: all, or those named. --set changes the recipe for this try alone.",
        "--retry",
        panel=WHICH,
    )
    watch: bool = option(False, "Keep reading EDITS as it grows, also after it was replaced.", "--watch", panel=WHICH)
    idle: float | None = option(
        None, "With --watch: end after this time without a new line.", metavar="SECONDS", least=0, panel=WHICH
    )
    json_lines: bool = option(
        False, "Print one JSON object per edit as soon as it is safe on disk.", "--json-lines", panel=OUTPUT
    )


@dataclass(frozen=True)
class MergeOptions:
    """How a checkpoint is merged."""

    force: bool = option(False, "Replace a folder that an earlier merge wrote and that holds nothing else.")
    verify: bool = option(False, "Load the result and score every edit on it.")
    """Its verdict on every edit is compared with the live state's."""
    rounding: Literal["nearest", "stochastic"] = option(
        "nearest", "How merged weights are rounded to the checkpoint's dtype."
    )
    seed: int = option(0, "Seed of stochastic rounding.", metavar="N", least=0)
    link: bool = option(
        False,
        "Hard-link unchanged shards instead of copying them. Base and result then share these files: do not modify "
        "them in place.",
        "--link",
    )
    sha256: bool = option(False, "Store the hash of every shard, for `more verify OUT --deep`.", "--sha256")
    into: Path | None = option(
        None,
        "The full-precision checkpoint that a quantised MODEL was made from. The edits are merged into it and scored "
        "there.",
        metavar="BASE",
    )
    require_all: bool = option(False, "Exit with 3 and write nothing if an edit does not stand.", "--require-all")
    dry_run: bool = dry_run_option()

    @property
    def verifies(self) -> bool:
        """Whether the result is asked the edits: always where it is not the base's own weights that were edited."""
        return (self.verify or self.into is not None) and not self.dry_run


@dataclass(frozen=True)
class ExportOptions:
    """What an export contains."""

    format: Literal["peft", "delta"] = option("peft", "A PEFT LoRA adapter, or one safetensors file of weight deltas.")
    rank: int | None = option(
        None, "Truncate all modules of an adapter to this rank; the output says what is lost.", metavar="R", least=1
    )
    force: bool = option(False, "Replace what an earlier export wrote.")


@dataclass(frozen=True)
class RevertOptions:
    """Which edits are reverted, beside those named by id."""

    to: int | None = option(None, "Revert all edits after the N-th.", metavar="N", least=0)
    last: int | None = option(None, "Revert the last K edits.", metavar="K", least=1)
    dry_run: bool = dry_run_option()


@dataclass(frozen=True)
class CombineOptions:
    """What a combination does about edits that contradict each other."""

    theirs: bool = option(
        False,
        "Where two edits contradict each other, the later one counts, whoever made it.",
        "--theirs",
    )
    dry_run: bool = dry_run_option()


@dataclass(frozen=True)
class RebaseOptions:
    """How the edits of a state are applied to another base."""

    dry_run: bool = dry_run_option()


@dataclass(frozen=True)
class SuiteOptions(RecipeOptions):
    """How M-ORE runs on a suite."""

    suite: str | None = option(
        None,
        "Run M-ORE on this suite of edits, from the untouched base. If its questions are yes/no, ask base and state "
        "instead.",
        metavar="NAME|FILE",
        complete="suites",
        panel=SUITE,
    )
    data_root: Path | None = option(None, "With --suite: folder with the suite's files.", metavar="DIR", panel=SUITE)
    limit: int = option(100, "With --suite: only the first N edits; 0 for all.", metavar="N", least=0, panel=SUITE)
    anchors: str | None = option(
        None,
        "With --suite: questions whose answers must not change; auto: made from the calibration pool.",
        metavar="FILE|auto",
        panel=SUITE,
    )
    cache: Path | None = option(
        None, "With --suite: folder that caches base answers and finished runs.", metavar="DIR", panel=SUITE
    )
    again: bool = option(
        False, "With --suite: measure again instead of reading an earlier run from the cache.", "--again", panel=SUITE
    )
