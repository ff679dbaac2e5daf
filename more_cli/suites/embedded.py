"""The mini suites of the package: one archive each, unpacked into the cache when it is first needed."""

from __future__ import annotations

import os
import shutil
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from more_cli.files import default_cache, disk_errors, sha256_bytes, sha256_file

ARCHIVES = Path(__file__).resolve().parent.parent / "demo" / "suites"


def suite_folder(name: str) -> Path:
    """Return the folder of an embedded suite; another version of the archives has another folder.

    Raises:
        StateError, ResourceError: the cache is not writable.
    """
    folder = default_cache() / "suites" / _version() / name
    if not folder.is_dir():
        with disk_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _unpack(ARCHIVES / f"{name}.zip", folder)
    return folder


@cache
def _version() -> str:
    return sha256_bytes("".join(map(sha256_file, sorted(ARCHIVES.glob("*.zip")))).encode())[:16]


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive in one step: another process sees the whole folder or none."""
    scratch = Path(mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(scratch / "suite")
        try:
            os.rename(scratch / "suite", folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, and has the same files
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
