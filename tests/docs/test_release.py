"""What a release checks, the workflows that do it, and the manual page that it ships."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import release
from generator.commands import leaves
from more_cli import __version__
from more_cli.cli.app import app
from support.paths import ROOT

WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
PAGE = ROOT / "docs" / "more-cli.1"
CHANGES = """# Changelog

## 1.3.0 (unreleased)

- Not yet.

## 1.2.0 (2026-12-01)

### Editing

- A thing.

## 1.1.0 (2026-11-01)

- Another.
"""


def test_a_tag_is_released_if_version_citation_and_changelog_agree() -> None:
    def problems(tag: str, version: str, citation: str = "version: 1.2.0\n") -> list[str]:
        return release.problems_of(tag, CHANGES, citation, version)

    assert problems("v1.2.0", "1.2.0") == []
    (other,) = problems("v1.2.1", "1.2.0")
    assert other.startswith("the tag is v1.2.1, and more_cli/__init__.py says 1.2.0")
    cited, dated = problems("v1.3.0", "1.3.0")
    assert "CITATION.cff" in cited
    assert "`## 1.3.0 (unreleased)` has no date" in dated
    assert problems("v2.0.0", "2.0.0", "version: 2.0.0\n") == [
        "CHANGELOG.md has no section: write `## 2.0.0 (YEAR-MONTH-DAY)`"
    ]


def test_notes_are_the_section_of_one_version() -> None:
    assert release.notes_of("1.2.0", CHANGES) == "### Editing\n\n- A thing."
    assert release.notes_of("1.1.0", CHANGES) == "- Another."
    assert release.notes_of("0.9.0", CHANGES) == ""
    whole = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.notes_of(__version__, whole).endswith(whole.splitlines()[-1]), "this version is the first"


def test_this_checkout_lacks_at_most_a_date(capsys: pytest.CaptureFixture[str]) -> None:
    code = release.main(["check", f"v{__version__}"])
    said = [line for line in capsys.readouterr().err.splitlines() if "has no date" not in line]
    assert (bool(code), said) in ((True, []), (False, [""]))
    assert release.main(["publish"]) == 2


def steps(name: str) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_workflows_test_release_and_publish_pages() -> None:
    assert set(WORKFLOWS) == {"docs", "release", "test"}
    for name, path in WORKFLOWS.items():
        text = path.read_text(encoding="utf-8")
        whole = yaml.safe_load(text)
        assert whole["permissions"].get("contents") in ("read", "write"), name
        assert not [step for step in steps(name) if "${{" in step.get("run", "")], "a name with a quote would run"
        assert "secrets." not in text, f"{name}: the package index trusts the workflow, not a password"
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]) for step in steps(name) if "uses" in step)


def test_the_test_workflow_runs_what_contributing_names_on_three_systems() -> None:
    jobs = yaml.safe_load(WORKFLOWS["test"].read_text(encoding="utf-8"))["jobs"]
    systems = {jobs["all"]["runs-on"], *jobs["tool"]["strategy"]["matrix"]["os"]}
    assert {system.split("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}
    ran = "\n".join(step.get("run", "") for step in steps("test"))
    assert ".ci/run" in ran
    assert "pytest -n 2 -m fast" in ran
    (torch,) = re.findall(r'"(torch>=[\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f'"{torch}"' in ran
    assert '--resolution lowest-direct -e ".[test]"' in ran
    assert "-m pytest -n 2 -m fast" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_a_release_is_checked_built_tried_and_only_then_published() -> None:
    jobs = yaml.safe_load(WORKFLOWS["release"].read_text(encoding="utf-8"))["jobs"]
    assert (jobs["try"]["needs"], jobs["publish"]["needs"]) == ("build", "try")
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    ran = [line.strip() for step in steps("release") for line in step.get("run", "").splitlines()]
    order = [
        "docs/release.py check",
        "-m build",
        "twine check",
        "install more-vlm",
        "more-cli demo",
        "gh release create",
    ]
    places = [next(number for number, line in enumerate(ran) if words in line) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(("tags", "leads"), [((), "main"), (("9.0.0", "10.0.0"), "10.0.0")])
def test_pages_of_every_version_stay_and_the_root_leads_to_the_newest(
    tmp_path: Path, tags: tuple[str, ...], leads: str
) -> None:
    """The last step of the workflow, in a repository of its own."""
    step = steps("docs")[-1]
    site, pages, far = tmp_path / "docs" / "build" / "site", tmp_path / "pages", tmp_path / "far.git"
    site.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", "--bare", far], check=True)
    subprocess.run(["git", "clone", "--quiet", far, pages], check=True, capture_output=True)
    subprocess.run(["git", "-C", pages, "checkout", "--quiet", "-b", "gh-pages"], check=True)
    subprocess.run(["git", "-C", pages, "config", "push.autoSetupRemote", "true"], check=True)
    for name in ("main", *(f"v{tag}" for tag in tags)):
        (site / "index.html").write_text(name)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "NAME": name, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert {path.name for path in pages.iterdir() if path.is_dir()} - {".git"} == {"main", *tags}
    assert f"url={leads}/" in (pages / "index.html").read_text()
    assert subprocess.run(["git", "-C", far, "show", "gh-pages:index.html"], capture_output=True).returncode == 0


def test_the_manual_names_every_command_and_option() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("\\-", "-")
    for name, command in leaves(typer.main.get_command(app), "more-cli"):
        assert f'.SS "{name} ' in text, name
        missing = [option for each in command.params for option in each.opts if option.startswith("--")]
        assert [option for option in missing if option not in text] == [], name


def test_the_manual_is_well_formed() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    macros = {line.split()[0] for line in lines if line.startswith(".") and line != "."}
    assert macros <= {'.\\"', ".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".EX", ".EE"}
    if program := shutil.which("mandoc"):
        done = subprocess.run([program, "-T", "lint", "-W", "warning", PAGE], capture_output=True, text=True)
        assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []
    if program := shutil.which("groff"):
        done = subprocess.run([program, "-man", "-Tutf8", "-ww", "-z", PAGE], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
