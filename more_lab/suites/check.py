"""Checks of a suite that need no model: files, counts, images, and overlaps between pools."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.errors import DataError
from more_cli.inputs.edits import EditLine, LocalityProbe
from more_cli.inputs.images import ImageSource
from more_cli.progress import Progress
from more_cli.suites.annotations import EditPool
from more_cli.suites.catalog import FIT, Measured
from more_cli.suites.load import EditSuite, Suite, YesNoSuite
from more_cli.suites.mme import AskedImage

_EXAMPLES = 3


@dataclass(frozen=True)
class CheckedFile:
    """One annotation file."""

    pool: str
    path: str
    size: int
    """Bytes."""
    sha256: str
    records: int
    measured: Measured | None
    """Facts about the published file of this name; None if none are known."""

    @property
    def is_measured(self) -> bool | None:
        """Whether these are the bytes of the published file; None if nothing is known about it."""
        return None if self.measured is None else self.sha256.startswith(self.measured.sha256)


@dataclass(frozen=True)
class Finding:
    """Something that changes what the suite's numbers mean; never a reason to refuse it."""

    name: str
    pool: str
    count: int
    text: str
    examples: tuple[str, ...] = ()


@dataclass
class CheckedImages:
    """The images that the suite names, each once."""

    named: int
    opened: int = 0
    missing: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """The problem with each."""


@dataclass(frozen=True)
class SuiteCheck:
    """The result of a check."""

    files: list[CheckedFile]
    counts: dict[str, dict[str, int]]
    """Per pool or category."""
    findings: list[Finding]
    image_root: str | None
    """Folder that relative image paths start in; None if there are none."""
    images: CheckedImages | None
    """None if no image was opened."""

    @property
    def is_usable(self) -> bool:
        """Whether every image exists and opens."""
        return self.images is None or not (self.images.missing or self.images.unreadable)


def check_suite(suite: Suite, open_images: bool, progress: Progress) -> SuiteCheck:
    """Check a suite; images are compared by their bytes if they were opened, else by their paths."""
    if isinstance(suite, EditSuite):
        return _check_edits(suite, open_images, progress)
    return _check_yes_no(suite, open_images, progress)


def _check_edits(suite: EditSuite, open_images: bool, progress: Progress) -> SuiteCheck:
    named = sorted({image for pool in suite.pools.values() for line in _lines(pool) for image in _images(line)})
    images = suite.pools["evaluation"].images
    report: CheckedImages | None = None
    hashes: dict[str, str] = {}
    if open_images:
        paths = {spelled: images.root / spelled for spelled in named}
        report, hashes = _open_all(paths, images.locate, progress)
    seen = {spelled: hashes.get(spelled, spelled) for spelled in named}
    findings = [finding for name, pool in suite.pools.items() for finding in _within(name, pool, seen)]
    return SuiteCheck(
        [_file(suite, name, pool) for name, pool in suite.pools.items()],
        {name: _counts(pool) for name, pool in suite.pools.items()},
        [*findings, *_absent(suite), *_between(suite.pools, seen)],
        str(images.root),
        report,
    )


def _check_yes_no(suite: YesNoSuite, open_images: bool, progress: Progress) -> SuiteCheck:
    asked = [image for category in suite.categories.values() for image in category]
    report = None
    if open_images:
        by_path = {str(image.path): image for image in asked}
        paths = {spelled: image.path for spelled, image in by_path.items()}
        report, _ = _open_all(paths, lambda spelled: by_path[spelled].image(), progress)
    odd = [f"{image.category}/{image.stem}" for image in asked if not _is_pair(image)]
    absent = [name for name in suite.entry.categories if name not in suite.categories]
    findings = [
        *_found("unpaired", "all", odd, "images without exactly one yes question and one no question"),
        *_found("absent_categories", "all", absent, "categories are missing: totals leave them out"),
    ]
    counts = {
        name: {"images": len(category), "questions": sum(len(image.questions) for image in category)}
        for name, category in suite.categories.items()
    }
    return SuiteCheck([], counts, findings, None, report)


def _is_pair(image: AskedImage) -> bool:
    """Return whether it has exactly one yes question and one no question, as MME promises."""
    return sorted(asked.answer.lower() for asked in image.questions) == ["no", "yes"]


def _open_all(
    paths: Mapping[str, Path], locate: Callable[[str], ImageSource], progress: Progress
) -> tuple[CheckedImages, dict[str, str]]:
    report, hashes = CheckedImages(len(paths)), {}
    for number, (spelled, path) in enumerate(paths.items(), 1):
        try:
            hashes[spelled] = locate(spelled).sha256
            report.opened += 1
        except DataError as error:
            if spelled[:5].lower() != "data:" and not os.path.exists(path):
                report.missing.append(spelled)
            else:
                report.unreadable.append(error.message)
        progress(number, len(paths), "opening images")
    return report, hashes


def _file(suite: EditSuite, name: str, pool: EditPool) -> CheckedFile:
    measured = suite.entry.measured.get(pool.path.name) if suite.entry and suite.source != "embedded" else None
    return CheckedFile(name, str(pool.path), pool.size, pool.sha256, pool.records, measured)


def _lines(pool: EditPool) -> Iterator[EditLine]:
    return (annotation.line for annotation in pool.annotations)


def _images(line: EditLine) -> Iterator[str]:
    yield from line.image
    yield from line.image_rephrases
    for probe in (*line.locality, *line.portability):
        yield from probe.image


def _probes(pool: EditPool) -> Iterator[LocalityProbe]:
    return (probe for line in _lines(pool) for probe in line.locality)


def _text_probes(pool: EditPool) -> list[str]:
    return [probe.question for probe in _probes(pool) if not probe.image]


def _image_probes(pool: EditPool) -> list[str]:
    return [image for probe in _probes(pool) for image in probe.image]


def _edit_images(pool: EditPool) -> list[str]:
    return [image for line in _lines(pool) for image in line.image]


def _counts(pool: EditPool) -> dict[str, int]:
    lines = list(_lines(pool))
    counts = {
        "records": pool.records,
        "edits": len(lines),
        "edit images": len(set(_edit_images(pool))),
        "questions": len({line.question for line in lines}),
        "rephrases": sum(len(line.rephrases) for line in lines),
        "image rephrases": sum(len(line.image_rephrases) for line in lines),
        "text locality": len(_text_probes(pool)),
        "image locality": len(_image_probes(pool)),
    }
    hops = Counter(probe.hop or 0 for line in lines for probe in line.portability)
    return counts | {f"portability {hop}-hop" if hop else "portability": hops[hop] for hop in sorted(hops)}


def _within(name: str, pool: EditPool, seen: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings within one pool; `seen` maps each spelling of an image to what identifies it."""
    lines = list(_lines(pool))
    for part, count in sorted(pool.trimmed.items()):
        yield Finding("white_space", name, count, f"texts of `{part}` had white space around them, which was removed")
    if repeats := pool.records - len(lines):
        yield Finding("repeats", name, repeats, "records repeat an edit with the same image, question and target")
    asked = Counter(_subject(line, seen) for line in lines)
    again = [line.question for line in lines if asked[_subject(line, seen)] > 1]
    yield from _found(
        "contradictions", name, again, "edits have image and question of another edit, but another target"
    )
    prompts = Counter(line.question for line in lines)
    shared = [question for question, count in prompts.most_common() for _ in range(count) if count > 1]
    text = f"edits have the same question as another edit ({len(prompts):,} distinct questions)"
    yield from _found("duplicate_prompts", name, shared, text)
    same = [line.question for line in lines if line.question in line.rephrases]
    yield from _found("rephrase_is_question", name, same, "edits have a rephrase that equals the question")
    old = [str(line.tags.get("pred", "")).strip().casefold() for line in lines]
    noop = [line.target for line, answer in zip(lines, old, strict=True) if line.target.casefold() == answer]
    yield from _found("target_is_old_answer", name, noop, "edits have a target that equals the old answer in the data")
    edited = {seen[image] for image in _edit_images(pool)}
    own = sorted({image for image in _image_probes(pool) if seen[image] in edited})
    yield from _found("probe_is_edited", name, own, "image-locality images are also the image of an edit")


def _subject(line: EditLine, seen: Mapping[str, str]) -> tuple[str, ...]:
    return (*(seen[image] for image in line.image), line.question)


def _absent(suite: EditSuite) -> Iterator[Finding]:
    files = suite.entry.files if suite.entry else {}
    absent = {pool: names[:1] for pool, names in files.items() if pool not in {*suite.pools, FIT}}
    for pool, names in absent.items():
        yield from _found("absent_pool", pool, names, "file is missing: overlap between the pools was not checked")


def _between(pools: Mapping[str, EditPool], seen: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what each other pool has in common with the evaluation pool."""
    scored = pools["evaluation"]
    edited, probed, asked = _edit_images(scored), _image_probes(scored), _text_probes(scored)
    for name in (name for name in pools if name != "evaluation"):
        pair = f"{name}, evaluation"
        images, probes = (_distinct(found, seen) for found in (_edit_images(pools[name]), _image_probes(pools[name])))
        both = _shared(edited, images, seen)
        yield from _found("shared_edit_images", pair, both, "edit images are in both")
        both = _shared(probed, probes, seen)
        yield from _found("shared_image_probes", pair, both, "image-locality images are in both")
        both = _shared(probed, images, seen)
        yield from _found("edited_then_probed", pair, both, f"edit images of {name} are locality images in evaluation")
        both = _shared(edited, probes, seen)
        yield from _found("probed_then_edited", pair, both, f"locality images of {name} are edit images in evaluation")
        both = sorted(set(_text_probes(pools[name])).intersection(asked))
        yield from _found("shared_text_probes", pair, both, "text-locality questions are in both")


def _distinct(images: Iterable[str], seen: Mapping[str, str]) -> dict[str, str]:
    """Return one spelling of every image, by what identifies it, in order."""
    return {seen[image]: image for image in images}


def _shared(images: Iterable[str], others: Container[str], seen: Mapping[str, str]) -> list[str]:
    return [image for key, image in _distinct(images, seen).items() if key in others]


def _found(name: str, pool: str, found: Sequence[str], text: str) -> Iterator[Finding]:
    """Yield a finding with its first examples, unless `found` is empty."""
    if found:
        yield Finding(name, pool, len(found), text, tuple(dict.fromkeys(found))[:_EXAMPLES])
