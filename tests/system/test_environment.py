"""What torch is told before it is imported."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from more_cli.system.environment import KERNEL_CACHES, KERNELS, SPINS, cores_allowed, set_defaults


def mounts(root: Path, own: str = "", **files: str) -> Path:
    """A system whose process is in the groups `own`."""
    for name, content in {"proc/self/cgroup": own, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu.max": "nonsense\n"}, math.inf),
        ({"cpu.max": "100000 0\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, math.inf),
    ],
)
def test_cores_are_those_of_the_control_group(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    assert cores_allowed(mounts(tmp_path, **files)) == cores


V1 = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "c/cpu.max": "100000 100000"}, 1.5),
        ("0::/host/only\n", {"cpu.max": "300000 100000"}, 3),
        ("0::/../../b\n", {"cpu.max": "300000 100000"}, 3),
        ("5:cpuset:/x\n2:cpu,cpuacct:/x/y\n0::/\n", V1 | {"cpu/x/cpu.cfs_quota_us": "1\n"}, math.inf),
        (
            "2:cpu,cpuacct:/x/y\n0::/\n",
            V1 | {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "50000\n"},
            2,
        ),
        ("nonsense\n", {"cpu.max": "300000 100000"}, 3),
    ],
)
def test_every_group_around_counts(tmp_path: Path, own: str, files: dict[str, str], cores: float) -> None:
    assert cores_allowed(mounts(tmp_path, own, **files)) == cores


def test_a_group_may_have_any_name(tmp_path: Path) -> None:
    mounts(tmp_path, **{"cpu.max": "300000 100000"})
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xff\xfe/x\n")
    assert cores_allowed(tmp_path) == 3


@pytest.mark.parametrize(("quota", "threads"), [(0.5, "1"), (1.0, "1"), (2.9, "2"), (4.0, None), (8.0, None)])
def test_there_are_as_many_threads_as_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, threads: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    environment: dict[str, str] = {}
    set_defaults(environment, mounts(tmp_path, **{"cpu.max": f"{100_000 * quota:.0f} 100000"}))
    assert environment.get("OMP_NUM_THREADS") == threads


def test_what_the_user_says_stays(tmp_path: Path) -> None:
    said = {"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "5"} | dict.fromkeys(KERNEL_CACHES, "9")
    environment = dict(said)
    set_defaults(environment, mounts(tmp_path, **{"cpu.max": "50000 100000"}))
    assert environment == said
    environment = {"OMP_WAIT_POLICY": "active"}
    set_defaults(environment, tmp_path / "no limits")
    assert environment == {"OMP_WAIT_POLICY": "active"} | dict.fromkeys(KERNEL_CACHES, str(KERNELS))


@pytest.mark.slow
def test_a_command_says_it_before_torch_is_there() -> None:
    code = (
        "import os, sys; import more_cli.system.environment as t; from more_cli.__main__ import run\n"
        "before = t.set_defaults\n"
        "t.set_defaults = lambda: (print('torch' in sys.modules), before(), print(os.environ['GOMP_SPINCOUNT']))\n"
        "sys.argv = ['more', '--version']; run()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP"))}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.split()[:2] == ["False", SPINS]
