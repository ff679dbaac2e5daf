"""Control groups of this process, by which a container, a service or a batch system sets limits."""

from __future__ import annotations

from pathlib import Path, PurePosixPath


def groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the process's group and of its parents, innermost first; some may not exist.

    Version 2 has one tree for all controllers, version 1 one tree each. A limit of any of these groups applies.
    `root` is the folder in which `proc` and `sys` are mounted.
    """
    mounted = root / "sys/fs/cgroup"
    trees = {"0": mounted, controller: mounted / controller}
    found = []
    for number, controllers, path in _lines(root / "proc/self/cgroup"):
        for name in (number, *controllers.split(",")):
            if tree := trees.get(name):
                # Inside a namespace, of a group above its top only the top is visible.
                place = PurePosixPath("" if ".." in path else path.lstrip("/"))
                found += [tree / inner for inner in (place, *place.parents)]
    return found or list(trees.values())


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(errors="replace")  # a name can have any bytes
    except OSError:
        return []
    split = (line.split(":", 2) for line in text.splitlines())
    return [parts for parts in split if len(parts) == 3]
