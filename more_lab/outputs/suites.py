"""What `more suites` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from more_cli.outputs.base import LEFT_OUT, FilePath, Part, Printed

if TYPE_CHECKING:
    from more_cli.suites.load import Suite


class PublishedFile(Part):
    """What is known about a file of a suite as it was published."""

    sha256: str
    """first 16 digits of its SHA-256"""
    records: int
    """records in it"""


class _Known(Part):
    name: str
    """name of the suite"""
    title: str
    """what it is"""
    published: str
    """where its files were published"""
    files: dict[str, list[str]] = LEFT_OUT
    """names that the file of each pool may have; not of `mme`, like the next three"""
    image_folders: list[str] = LEFT_OUT
    """folders where images may lie"""
    columns: list[str] = LEFT_OUT
    """keys of a record that are read"""
    measured: dict[str, PublishedFile] = LEFT_OUT
    """the published files by name"""
    folders: list[str]
    """folders below `--data-root` where its files may lie"""
    groups: dict[str, list[str]] = LEFT_OUT
    """`mme`: its categories by group"""
    questions: int = LEFT_OUT
    """`mme`: questions of the published files"""
    embedded: str | None
    """the mini suite used without `--data-root`"""
    notice: str
    """licence notice; may be empty"""


class SuitesListOutput(Printed, schema="more.suites.list/1", command="more suites list --json"):
    """The suites."""

    suites: list[_Known]


class ListedMetric(Part):
    """A metric."""

    name: str
    """second part of a metric's name"""
    what: str
    """what it measures"""
    mask: str
    """which tokens count"""
    told: bool
    """whether it is shown in tables"""


class _Yardstick(Part):
    baseline: str
    """what locality compares with"""
    prefix: str
    """answer that locality is scored on: the baseline's `own`, or `gold`"""
    everywhere: bool
    """whether every position counts"""


class _MetricsPreset(Part):
    name: str
    """name for `--metrics`"""
    title: str
    """what it reproduces"""
    columns: dict[str, str]
    """our metric for each of the source's columns"""
    protocols: list[str]
    """its protocols"""
    yardstick: _Yardstick
    averaged: bool
    """whether values are averaged per edit first"""
    notices: list[str]
    """what could not be reproduced"""


class SuitesMetricsOutput(Printed, schema="more.suites.metrics/1", command="more suites metrics --json"):
    """The metrics, and the presets of them."""

    kinds: list[str]
    """kinds of questions, the first part of a metric's name"""
    metrics: list[ListedMetric]
    """the metrics"""
    presets: list[_MetricsPreset]


class _Suite(Part):
    suite: str
    """name of the suite"""
    source: str
    """`embedded`, or the folder of `--data-root`"""
    notices: list[str]
    """what to know before using a score"""


class _File(Part):
    path: FilePath
    """path of the file"""
    pool: str
    """pool it holds"""
    size: int
    """bytes"""
    sha256: str
    """SHA-256 of the file"""
    records: int
    """records in it"""
    measured: PublishedFile | None
    """the published file of this name, if one is known"""
    is_measured: bool | None
    """whether it equals the published file"""


def named(suite: Suite) -> dict[str, Any]:
    """Return the keys that all outputs about a suite have."""
    return {"suite": suite.name, "source": suite.source, "notices": suite.notices}


class _Held(_Suite):
    files: list[_File]
    counts: dict[str, dict[str, int]]
    """records, edits, questions, images and probes by pool"""
    image_root: str | None
    """folder where image paths start"""


class SuitesShowOutput(_Held, Printed, schema="more.suites.show/1", command="more suites show NAME --json"):
    """What a suite has."""

    first: list[dict[str, Any]]
    """its first edits, as edit lines"""


class _Images(Part):
    named: int
    """images that the suite names"""
    opened: int
    """images that were opened"""
    missing: list[str]
    """paths of those that are missing"""
    unreadable: list[str]
    """those that cannot be read, and why"""


class _Finding(Part):
    name: str
    """name of the finding"""
    pool: str
    """pool it is about"""
    count: int
    """how often"""
    text: str
    """what it means for a score"""
    examples: list[str]
    """the first few"""


class SuitesCheckOutput(_Held, Printed, schema="more.suites.check/1", command="more suites check NAME --json"):
    """Whether a suite can be used, and what to know of its scores."""

    usable: bool
    """whether every record and image can be read"""
    images: _Images | None
    """images that were opened; `null` with `--no-images`"""
    findings: list[_Finding]


class SuitesConvertOutput(
    _Suite, Printed, schema="more.suites.convert/1", command="more suites convert NAME -o FILE --json"
):
    """The lines that were written."""

    out: FilePath
    """file that was written"""
    pool: str
    """pool that was converted"""
    lines: int
    """lines written"""
    reader: str
    """command that reads the file"""
