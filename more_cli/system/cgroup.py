"""The control groups this process is in: what a container, a service or a batch system may limit."""

from __future__ import annotations

from pathlib import Path, PurePosixPath


def groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the process's group and of those around it, innermost first; some may not be there.

    In version 2 one tree has all controllers, in version 1 each has its own; a limit of any of the groups counts.
    `root` is where `proc` and `sys` are mounted.
    """
    mounted = root / "sys/fs/cgroup"
    trees = {"0": mounted, controller: mounted / controller}
    found = []
    for number, controllers, path in _lines(root / "proc/self/cgroup"):
        for name in (number, *controllers.split(",")):
            if tree := trees.get(name):
                # Of a group beyond a namespace's own top there is nothing to see but that top.
                place = PurePosixPath("" if ".." in path else path.lstrip("/"))
                found += [tree / inner for inner in (place, *place.parents)]
    return found or list(trees.values())


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(errors="replace")  # a name may have any bytes
    except OSError:
        return []
    split = (line.split(":", 2) for line in text.splitlines())
    return [parts for parts in split if len(parts) == 3]
