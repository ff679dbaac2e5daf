"""The pipeline of the pages runs as a runner would do it, and their tables say what the code says."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.pages import ROOT, Block, blocks
from generator.session import programs
from more_cli import __version__
from more_cli.cli.demo import SHOWN
from more_cli.cli.failures import EXIT_CODES
from more_cli.demo.files import demo_model_dir
from more_cli.recipe.files import data_folder, shipped_recipes
from support.documents import prose

README = ROOT / "README.md"
PIPELINES = ROOT / "docs" / "pipelines.md"
READ = [page for page in (README, PIPELINES) if page.is_file()]
BLOCKS = [block for page in READ for block in blocks(page)]


def the(language: str, start: str) -> Block:
    """Return the first block of a language with a line that begins like this."""
    return next(block for block in BLOCKS if block.language == language and re.search(f"^{start}", block.text, re.M))


SCRIPT = the("sh", "#!").text
WORKFLOW = yaml.safe_load(the("yaml", "jobs:").text)


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A checkout with the script, and the embedded model and an environment in place of the runner's."""
    samples = data_folder("sample_edits")
    shutil.copytree(demo_model_dir(), tmp_path / "models" / "llava")
    shutil.copytree(samples / "images", tmp_path / "images")
    shutil.copy(samples / "anchors.jsonl", tmp_path)
    edits = (samples / "edits.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "edits.jsonl").write_text("".join(edits[:3]))
    (tmp_path / "correct.sh").write_text(SCRIPT)
    (tmp_path / "opt" / "more").mkdir(parents=True)
    folder = programs(tmp_path / "opt" / "more" / "bin")
    (folder / "more").unlink()  # the name belongs to the pager
    (folder / "activate").write_text(f'PATH={shlex.quote(str(folder))}:"$PATH"\n')
    return tmp_path


def environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """Return what a job's steps see: its variables, with the runner's /models and /opt in this folder."""
    own = {name: re.sub(r"^/(models|opt)\b", rf"{folder}/\1", str(value)) for name, value in variables.items()}
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GITHUB_STEP_SUMMARY": "summary.md"}
    return os.environ | fixed | own


def run_workflow(folder: Path) -> list[int]:
    """Do what the runner does: its `run` steps in order, after a failure only those that always run; the exit codes."""
    (job,) = WORKFLOW["jobs"].values()
    codes: list[int] = []
    for step in job["steps"]:
        if "run" in step and (not any(codes) or step.get("if") == "always()"):
            command = ["bash", "-e", "-c", step["run"]]
            seen = environment(folder, job["env"])
            codes.append(subprocess.run(command, cwd=folder, env=seen, capture_output=True).returncode)
    return codes


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_pipeline_edits_gates_merges_and_publishes(pipeline: Path) -> None:
    assert run_workflow(pipeline) == [0, 0]
    report, merged = pipeline / "report", pipeline / "models" / "llava-edited"
    assert {path.name for path in report.iterdir()} == {
        *("edit.json", "eval.json", "merge.json", "log.json", "more.html", "more.md", "more.xml")
    }
    assert read(report / "edit.json")["applied"] == read(report / "log.json")["total"] == 3
    assert read(report / "merge.json")["verification"]["lost"] == []
    assert read(merged / "more.json")["ledger_head"] == read(report / "log.json")["head"]
    assert (pipeline / "summary.md").read_bytes() == (report / "more.md").read_bytes()

    # A missed gate: the report is published all the same, the checkpoint stays the one before.
    (pipeline / "correct.sh").write_text(SCRIPT.replace("rel.gen_exact>=0.95", "rel.target_nll<=0"))
    before = (merged / "more.json").stat().st_mtime_ns
    assert run_workflow(pipeline) == [6, 0]
    assert read(report / "edit.json")["skipped"] == 3
    assert (merged / "more.json").stat().st_mtime_ns == before

    (pipeline / "edits.jsonl").write_text("{\n")
    assert run_workflow(pipeline) == [4, 0]


@pytest.mark.slow
def test_a_failed_edit_is_never_merged(pipeline: Path) -> None:
    hard = {"id": "hard", "image": "images/sample-scene11-v0.png", "question": "Name the place of the frame."}
    edits = pipeline / "edits.jsonl"
    lines = [*edits.read_text().splitlines()[:2], json.dumps({**hard, "target": "SN-48213-XKQZ-99071-VWPL-3356"})]
    edits.write_text("\n".join(lines))
    assert run_workflow(pipeline) == [6, 0], "the gate counts it"
    assert read(pipeline / "report" / "edit.json")["failed"] == ["hard"]
    for name in ("more.xml", "more.md", "more.html"):
        assert "still wrong after" in (pipeline / "report" / name).read_text(), name

    # A gate that is met all the same.
    (pipeline / "correct.sh").write_text(SCRIPT.replace("rel.gen_exact>=0.95", "rel.gen_exact>=0.5"))
    assert run_workflow(pipeline) == [3, 0]
    assert not (pipeline / "models" / "llava-edited").exists()

    edits.write_text("\n".join([*lines[:2], json.dumps({**hard, "id": "mended", "target": "top left"})]))
    (pipeline / "correct.sh").write_text(SCRIPT)
    assert run_workflow(pipeline) == [0, 0], "its correction supersedes it"


def test_a_missing_environment_is_no_success(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (pipeline / "opt" / "more" / "bin" / "more-cli").unlink()
    assert run_workflow(pipeline)[0] == 127
    shutil.rmtree(pipeline / "opt")
    assert run_workflow(pipeline)[0] in (1, 2, 127)
    assert not (pipeline / "report" / "edit.json").exists()


def gitlab_jobs() -> list[dict[str, Any]]:
    """Return the jobs of a GitLab pipeline on the pages."""
    files = [yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml" and not block.not_run]
    return [job for file in files for job in file.values() if isinstance(job, dict) and "script" in job]


@pytest.mark.slow
def test_the_gitlab_job_runs_too(pipeline: Path) -> None:
    (job,) = gitlab_jobs()
    script = job["script"] if isinstance(job["script"], str) else "\n".join(job["script"])
    seen = environment(pipeline, job.get("variables", {}))
    done = subprocess.run(["bash", "-e", "-c", script], cwd=pipeline, env=seen, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for paths in (job["artifacts"]["paths"], job["artifacts"].get("reports", {}).values()):
        for path in paths:
            assert (pipeline / path).exists(), path


def test_every_recipe_is_in_a_table() -> None:
    text = README.read_text(encoding="utf-8") + (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in shipped_recipes():
        assert f"`{name}`" in text


def test_the_exit_codes_are_those_of_the_pages() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in READ)
    listed = {code for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == set(map(str, EXIT_CODES)) == set("01234567") | {"130"}


def test_the_tour_of_readme_is_executed() -> None:
    lines = [line for block in blocks(README) if block.language == "bash" and not block.not_run
             for line in block.text.splitlines()]  # fmt: skip
    commands = {shlex.split(line, comments=True)[1] for line in lines if line.startswith("more ")}
    assert {"init", "edit", "eval", "merge"} <= commands


def test_the_citation_has_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")
    assert citation["preferred-citation"]["title"] == "Modality-Decoupled Online Recursive Editing"


# --- a page that a stranger reads in a minute ---


def numbers(text: str) -> list[str]:
    """Return the numbers of Markdown: groups of digits outside of fenced blocks, links and tags."""
    bare = re.sub(r"<[^>]*>|\]\([^)]*\)|https?://\S+", " ", text)
    return re.findall(r"\d+(?:[.,]\d+)*", bare)


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
    found = numbers(prose(README))
    assert len(found) <= 40, found


def test_readme_says_what_to_type_and_shows_what_comes_of_it_in_its_first_40_lines() -> None:
    text = "\n".join(README.read_text(encoding="utf-8").splitlines()[:40])
    assert "It is for " in text
    assert "\nmore demo\n" in text
    pictures = re.findall(r'src="(docs/img/[^"]+)"', text)
    assert pictures
    assert all((ROOT / picture).stat().st_size < 200_000 for picture in pictures)


def test_numbers_are_counted_once_and_not_in_links() -> None:
    assert numbers('[5](a-6.md#7) 1,000 of 2.5 <img width="8"> https://x.org/9 3-4') == ["5", "1,000", "2.5", "3", "4"]


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "quickstart.md"], ids=lambda page: page.stem)
def test_pages_show_of_the_demo_what_it_prints(page: Path) -> None:
    (shown,) = [block.text for block in blocks(page) if "still hold after all" in block.text]
    metrics = re.findall(r"^(\w+\.\w+) +\d", shown, re.MULTILINE)
    assert all(metric.endswith(SHOWN) for metric in metrics)
