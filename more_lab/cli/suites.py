"""`more suites`: lists, checks and converts suites."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli.help import Command, Group
from more_cli.cli.output import ROWS, Output, fail
from more_cli.cli.records import command
from more_cli.cli.suite_source import loaded_suite
from more_cli.errors import DataError
from more_cli.options import FileOptions
from more_cli.text import counted

if TYPE_CHECKING:
    from more_lab.suites.check import CheckedFile, SuiteCheck

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, check and convert the suites that score editors.",
)


class PoolName(StrEnum):
    """The pools of a suite of edits."""

    evaluation = "evaluation"
    calibration = "calibration"
    fit = "fit"


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A suite from `more suites list`, or a file of edits.",
        autocompletion=completion.suites,
    ),
]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder with the suite's files. [default: the embedded mini suite]", metavar="DIR")
]
ImageRoot = Annotated[
    Path | None,
    typer.Option(help="Folder that image paths start from. [default: searched below the data root]", metavar="DIR"),
]
StrictPaths = Annotated[
    bool,
    typer.Option("--strict-paths", help="Refuse images outside the image root: absolute paths, `..`, symlinks."),
]


@app.command("list", cls=Command)
@command
def list_(*, output: Output) -> None:
    """List the suites.

    \b
    Examples:
      more suites list
    """
    from more_cli.suites.catalog import CATALOG
    from more_lab.outputs.suites import SuitesListOutput

    output.json(SuitesListOutput.model_validate({"suites": list(CATALOG.values())}))
    output.table(
        ("suite", "contents", "without --data-root"),
        [(entry.name, entry.title, entry.embedded or "not available") for entry in CATALOG.values()],
    )
    output.line("a file of edits (JSON Lines, or records of MMEdit, VLKEB or MMKE-Bench) is a suite too")


@app.command(cls=Command)
@command
def metrics(*, output: Output) -> None:
    """List the metrics, and the presets for `more run --suite NAME --metrics PRESET`.

    \b
    Examples:
      more suites metrics
    """
    from more_cli.evaluation.names import METRICS, all_groups
    from more_lab.experiments.presets import PRESETS
    from more_lab.outputs.suites import ListedMetric, SuitesMetricsOutput

    described = [ListedMetric.of(metric, told=metric.listed) for metric in METRICS.values()]
    output.json(SuitesMetricsOutput.of(None, kinds=all_groups(), metrics=described, presets=list(PRESETS.values())))
    output.table(
        ("metric", "computed over", "what it is"),
        [(metric.name, metric.mask, metric.what) for metric in METRICS.values()],
    )
    output.line()
    output.line(f"full names are KIND.METRIC, such as rel.gen_exact; kinds are {', '.join(all_groups())}")
    output.line(
        "loc_* compare with a baseline model, on its greedy answer (with end token) or on the gold answer (without)"
    )
    output.line()
    output.table(
        ("--metrics", "protocol", "baseline", "answer", "what it computes"),
        [
            (preset.name, ", ".join(preset.protocols), preset.yardstick.baseline, preset.yardstick.prefix, preset.title)
            for preset in PRESETS.values()
        ],
    )


@app.command(cls=Command)
@command
def show(
    name: Name,
    data_root: DataRoot = None,
    image_root: ImageRoot = None,
    strict_paths: StrictPaths = False,
    *,
    output: Output,
) -> None:
    """Show what a suite contains, and its first lines. Opens no image.

    \b
    Examples:
      more suites show e-vqa
      more suites show vlkeb --data-root data/vlkeb
    """
    from more_lab.outputs.suites import SuitesShowOutput, named
    from more_lab.suites.check import check_suite
    from more_lab.suites.commands import first_lines

    suite = loaded_suite(output, name, data_root, FileOptions(image_root, strict_paths))
    with output.progress() as progress:
        report = check_suite(suite, False, progress)
    first = first_lines(suite)
    output.json(SuitesShowOutput.of(report, **named(suite), first=first))
    output.line(f"{suite.name}, {suite.entry.title if suite.entry else 'a file of edits'}")
    output.line(f"from {suite.source}" + (f"; published as {suite.entry.published}" if suite.entry else ""))
    _show_files(output, report)
    _show_counts(output, report)
    output.line()
    for line in first:
        asked = line["question"], line.get("target", line.get("answer"))
        image = line.get("image", "no image")
        output.line(f"{image if isinstance(image, str) else ', '.join(image)}: {asked[0]} -> {asked[1]}")


@app.command(cls=Command)
@command
def check(
    name: Name,
    data_root: DataRoot = None,
    image_root: ImageRoot = None,
    strict_paths: StrictPaths = False,
    images: Annotated[bool, typer.Option(help="Open every image.")] = True,
    *,
    output: Output,
) -> None:
    """Check every record and image of a suite, and what its pools share.

    Compares the annotation files with the published ones, opens every image, and lists what changes the meaning of a
    score: images and probes that are in both calibration and evaluation, repeated questions, trimmed texts.

    \b
    Examples:
      more suites check e-ic
      more suites check e-vqa --data-root data/mmedit
    """
    from more_lab.outputs.suites import SuitesCheckOutput, named
    from more_lab.suites.check import check_suite

    suite = loaded_suite(output, name, data_root, FileOptions(image_root, strict_paths))
    with output.progress() as progress:
        report = check_suite(suite, images, progress)
    output.json(SuitesCheckOutput.of(report, **named(suite), usable=report.is_usable))
    _show_files(output, report)
    _show_counts(output, report)
    _show_findings(output, report)
    _show_images(output, report)
    if not report.is_usable:
        assert report.images is not None
        bad = len(report.images.missing) + len(report.images.unreadable)
        text = f"{suite.name}: {bad:,} of {counted(report.images.named, 'image')} missing or unreadable"
        fail(DataError(text, "put them below the data root, or give their folder with `--image-root DIR`"))
        raise typer.Exit(DataError.exit_code)


@app.command(cls=Command)
@command
def convert(
    name: Name,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON Lines file to write.", metavar="FILE")] = ...,  # type: ignore[assignment]
    data_root: DataRoot = None,
    image_root: ImageRoot = None,
    strict_paths: StrictPaths = False,
    pool: Annotated[
        PoolName, typer.Option(metavar="|".join(PoolName), help="Which edits to write.")
    ] = PoolName.evaluation,
    force: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    *,
    output: Output,
) -> None:
    """Write a suite as JSON Lines: edits for `more edit`, yes/no questions for `more eval --probes`.

    Image paths become relative to the new file. Images are neither copied nor opened.

    \b
    Examples:
      more suites convert e-vqa --data-root data/mmedit -o e-vqa.jsonl
    """
    from more_lab.outputs.suites import SuitesConvertOutput, named
    from more_lab.suites.commands import convert as run

    suite = loaded_suite(output, name, data_root, FileOptions(image_root, strict_paths))
    done = run(suite, out, pool.value, force=force)
    output.json(SuitesConvertOutput.of(done, **named(suite)))
    output.line(f"wrote {done.out}: {counted(done.lines, 'line')} for `{done.reader}`")


def _show_files(output: Output, report: SuiteCheck) -> None:
    output.table(
        ("pool", "file", "bytes", "sha256", "as published"),
        [(file.pool, file.path, f"{file.size:,}", file.sha256[:16], _as_published(file)) for file in report.files],
        numbers=("bytes",),
    )


def _as_published(file: CheckedFile) -> str:
    if file.measured is None:
        return "unknown"
    return "yes" if file.is_measured else f"no, the published file has {counted(file.measured.records, 'record')}"


def _show_counts(output: Output, report: SuiteCheck) -> None:
    names = list(dict.fromkeys(name for counts in report.counts.values() for name in counts))
    cells = {(name, pool): f"{counts.get(name, 0):,}" for pool, counts in report.counts.items() for name in names}
    pools = list(report.counts)
    output.line()
    if len(pools) < len(names):  # the narrower layout
        output.table(("", *pools), [(name, *(cells[name, pool] for pool in pools)) for name in names], numbers=pools)
    else:
        output.table(("", *names), [(pool, *(cells[name, pool] for name in names)) for pool in pools], numbers=names)


def _show_findings(output: Output, report: SuiteCheck) -> None:
    if report.findings:
        output.line()
    output.table(
        ("pool", "count", "finding", "examples"),
        [
            (finding.pool, f"{finding.count:,}", finding.text, "; ".join(finding.examples))
            for finding in report.findings
        ],
        numbers=("count",),
    )


def _show_images(output: Output, report: SuiteCheck) -> None:
    output.line()
    if report.images is None:
        output.line("images were not opened")
        return
    below = f" below {report.image_root}" if report.image_root else ""
    output.line(f"{report.images.opened:,} of {counted(report.images.named, 'image')} open{below}")
    for word, names in (("missing", report.images.missing), ("unreadable", report.images.unreadable)):
        for name in names[:ROWS]:
            output.line(f"{word}: {name}")
        if len(names) > ROWS:
            output.line(f"and {len(names) - ROWS:,} more {word}")
