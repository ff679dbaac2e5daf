"""Load a suite by name: from a folder of the user's, or the mini suite in the package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.errors import DataError, UsageError
from more_cli.inputs.images import ImageCache
from more_cli.inputs.records import not_found
from more_cli.suites.annotations import EditPool, read_pool
from more_cli.suites.catalog import CATALOG, EditEntry, YesNoEntry
from more_cli.suites.embedded import suite_folder
from more_cli.suites.mme import AskedImage, category_folders, read_category
from more_cli.text import did_you_mean, shorten

_SAMPLED = 20
"""Images that are used to find the folder that image paths start in."""


@dataclass(frozen=True)
class EditSuite:
    """Edits with their probes, in pools that should not overlap."""

    name: str
    source: str
    """`embedded`, or the folder or file it was read from."""
    pools: Mapping[str, EditPool]
    """`evaluation`, and `calibration` and `fit` if they are there."""
    notices: tuple[str, ...] = ()
    """Notes for the reader of its numbers, a line each."""
    entry: EditEntry | None = None
    """None for a file of the user's own."""


@dataclass(frozen=True)
class YesNoSuite:
    """Yes/no questions per category, by image."""

    name: str
    source: str
    categories: Mapping[str, tuple[AskedImage, ...]]
    notices: tuple[str, ...]
    entry: YesNoEntry


Suite = EditSuite | YesNoSuite


def load_suite(
    name: str, data_root: Path | None = None, image_root: Path | None = None, *, strict_paths: bool = False
) -> Suite:
    """Return a suite of the catalog, or the edits of a file; its text is checked, no image is opened.

    Without ``data_root`` a suite is the embedded mini suite. Image paths start at ``image_root``; by default it is
    found below ``data_root``, and for a file it is ``data_root`` or the file's own folder. With ``strict_paths`` no
    image may lie outside of it.

    Raises:
        UsageError: no suite has this name, it is not embedded and no folder was given, or it takes no ``image_root``.
        StreamErrors: problems in its records, all of them listed.
        DataError: the folder or the file is missing, cannot be read, or does not contain the suite.
    """
    for folder in (data_root, image_root):
        if folder is not None and not folder.is_dir():
            raise DataError(f"no such folder: `{folder}`")
    entry = CATALOG.get(name)
    if entry is None:
        return _strictly(_load_file(name, image_root or data_root), strict_paths)
    notices = (entry.notice,) if entry.notice else ()
    source = str(data_root)
    if data_root is None:
        if entry.embedded is None:
            hint = f"download {entry.published}, then pass --data-root DIR"
            raise UsageError(f"suite `{name}` is not included in `more`", hint)
        notices = (f"no --data-root: using the embedded mini suite {entry.embedded}, not {name} itself",)
        data_root, source = suite_folder(entry.embedded), "embedded"
    if isinstance(entry, YesNoEntry):
        if image_root is not None:
            raise UsageError(
                f"--image-root does not apply to {name}: its images lie beside its questions", "leave it out"
            )
        return _load_yes_no(entry, data_root, source, notices, strict_paths)
    return _strictly(_load_edits(entry, data_root, source, notices, image_root), strict_paths)


def _strictly(suite: EditSuite, strict_paths: bool) -> EditSuite:
    """Return a suite that, with `strict_paths`, refuses images outside their root."""
    if not strict_paths:
        return suite
    pools = {n: replace(pool, images=ImageCache(pool.images.root, strict=True)) for n, pool in suite.pools.items()}
    return replace(suite, pools=pools)


def _load_file(name: str, image_root: Path | None) -> EditSuite:
    path = Path(name)
    if not path.is_file():
        if path.suffix in (".json", ".jsonl"):
            raise not_found(path)
        hint = did_you_mean(name, CATALOG) or f"use one of {', '.join(CATALOG)}, or a file of edits"
        raise UsageError(f"unknown suite `{shorten(name)}`", hint)
    return EditSuite(path.stem, str(path), {"evaluation": read_pool(path, image_root or path.parent)})


def _load_edits(
    entry: EditEntry, root: Path, source: str, notices: tuple[str, ...], image_root: Path | None
) -> EditSuite:
    files = {pool: _find(root, entry.folders, names) for pool, names in entry.files.items()}
    if files["evaluation"] is None:
        names = " or ".join(f"`{name}`" for name in entry.files["evaluation"])
        hint = f"searched it and {', '.join(entry.folders[1:])} in it; published as {entry.published}"
        raise DataError(f"`{root}` holds no {names}, so it is not {entry.name}", hint)
    pools = {pool: read_pool(path, root, entry.columns) for pool, path in files.items() if path}
    images = ImageCache(image_root or _image_root(entry, root, list(pools.values())))
    return EditSuite(entry.name, source, {name: replace(p, images=images) for name, p in pools.items()}, notices, entry)


def _find(root: Path, folders: Iterable[str], names: Iterable[str]) -> Path | None:
    tried = (root / folder / name for name in names for folder in folders)
    return next((path for path in tried if path.is_file()), None)


def _image_root(entry: EditEntry, root: Path, pools: Sequence[EditPool]) -> Path:
    """Return the first folder that holds one of the first images, else the data root."""
    named = [image for pool in pools for annotation in pool.annotations for image in annotation.line.image[:1]]
    candidates = [root / folder for folder in entry.image_folders] + [pool.path.parent for pool in pools]
    for candidate in candidates:
        if any(os.path.isfile(candidate / image) for image in named[:_SAMPLED]):
            return candidate
    return root


def _load_yes_no(
    entry: YesNoEntry, root: Path, source: str, notices: tuple[str, ...], strict_paths: bool
) -> YesNoSuite:
    places = (root / folder for folder in entry.folders if (root / folder).is_dir())
    folders = next((found for place in places if (found := category_folders(place, entry.categories))), {})
    read = {category: read_category(category, folder) for category, folder in folders.items()}
    categories = {category: images for category, images in read.items() if images}
    if strict_paths:
        categories = {name: tuple(replace(image, root=root) for image in images) for name, images in categories.items()}
    if not categories:
        shown = ", ".join(entry.categories[:3])
        hint = f"a folder per category ({shown}, ...) with images and `.txt` files; published as {entry.published}"
        raise DataError(f"`{root}` holds no questions of {entry.name}", hint)
    return YesNoSuite(entry.name, source, categories, notices, entry)
