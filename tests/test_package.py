"""The wheel is complete and small: installed in an empty folder it finds its recipes, samples and model."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from more_cli import __version__
from more_cli.errors import DISTRIBUTION, install_hint

ROOT = Path(__file__).resolve().parent.parent


LARGEST_WHEEL = 10 * 10**6  # bytes
LARGEST_SOURCES = 30 * 10**6


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("more_vlm-*.whl")
    return built


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A folder with what `python -m build` makes for a package index: the sources, and a wheel that is made of them."""
    if missing := [name for name in ("build", "twine", "hatchling") if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    folder = tmp_path_factory.mktemp("index")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The wheel unpacked, as pip would do it; dependencies come from the environment that runs the tests."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")
    return wheel.parent / "site"


def test_the_wheel_is_small_and_has_recipes_but_not_how_the_demo_model_is_made(wheel: Path) -> None:
    assert wheel.stat().st_size <= LARGEST_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        files = [PurePosixPath(name) for name in archive.namelist()]
    own = f"more_vlm-{__version__}"
    assert {file.parts[0] for file in files} == {"more_cli", "more_lab", f"{own}.data", f"{own}.dist-info"}
    assert not [file for file in files if {"worlds", "tests"} & set(file.parts)]
    packed = {file.name for file in files if file.is_relative_to("more_cli/_data/recipes")}
    assert packed == {path.name for path in (ROOT / "recipes").glob("*.toml")}
    pages = {file for file in files if {"templates", "static"} & set(file.parts)}
    assert pages == {
        PurePosixPath(path.relative_to(ROOT))
        for path in ROOT.glob("more_*/**/*")
        if path.suffix in (".html", ".css", ".svg") and "_data" not in path.parts
    }


def python(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = dict(os.environ, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_recipes_samples_and_the_model_are_found(installed: Path, tmp_path: Path) -> None:
    code = (
        "from more_cli.recipe.files import shipped_recipes, data_folder; import more_cli;"
        "print(more_cli.__file__); print(*shipped_recipes());"
        "print((data_folder('sample_edits') / 'edits.jsonl').is_file());"
        "from more_cli.demo.files import demo_model_dir; print((demo_model_dir() / 'model.safetensors').is_file())"
    )
    result = python(installed, tmp_path, "-c", code)
    assert result.returncode == 0, result.stderr
    where, recipes, samples, model = result.stdout.splitlines()
    assert where.startswith(str(installed))
    assert {"llava", "paper-llava", "authors-llava"} <= set(recipes.split())
    assert (samples, model) == ("True", "True")


def test_entry_points_and_version(installed: Path, tmp_path: Path) -> None:
    (points,) = installed.glob("more_vlm-*.dist-info/entry_points.txt")
    assert "more = more_cli.__main__:run" in points.read_text()
    assert "more-cli = more_cli.__main__:run" in points.read_text()
    result = python(installed, tmp_path, "-m", "more_cli", "--version")
    assert (result.returncode, result.stdout) == (0, "more 0.1.0\n")


@pytest.mark.slow
def test_sources_and_wheel_can_be_uploaded(index: Path) -> None:
    files = sorted(index.iterdir())
    assert [path.name.removeprefix(f"more_vlm-{__version__}") for path in files] == ["-py3-none-any.whl", ".tar.gz"]
    assert all(path.stat().st_size <= LARGEST_SOURCES for path in files)
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    with tarfile.open(files[1]) as sources:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in sources.getnames()}
    assert {PurePosixPath(name) for name in ("CHANGELOG.md", "LICENSE", "docs/index.md", "more_cli/py.typed")} <= names
    assert not [name for name in names if name.parts[:1] == ("tests",)]


@pytest.mark.slow
def test_installed_by_its_name_in_an_empty_environment_it_runs_the_commands_of_readme(
    index: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    # Its dependencies are those of the environment that runs the tests, behind what is installed here.
    (site,) = (tmp_path / "venv").glob("**/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", index]
    done = subprocess.run([*pip, "--no-deps", "--ignore-installed", DISTRIBUTION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def started(*arguments: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [programs / arguments[0], *arguments[1:]]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    shown = started("more-cli", "demo")
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "more-demo" / "llava-edited" / "model.safetensors").is_file()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (following,) = {line for line in readme.splitlines() if line.startswith("next: ")} & set(shown.stdout.splitlines())
    words = following.removeprefix("next: more ").partition(" shows")[0].split()
    assert words == ["eval", "more-demo/llava", "--report", "demo.html"]
    assert started("more-cli", *words).returncode == 0
    assert "<html" in (tmp_path / "demo.html").read_text(encoding="utf-8")
    where = started("python", "-c", "import more_cli; print(more_cli.__file__)")
    assert str(site) in where.stdout
    assert (tmp_path / "venv" / "share" / "man" / "man1" / "more-cli.1").is_file()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = "|".join(PROJECT["optional-dependencies"])
ASKED = re.compile(rf"[\w./-]+\[(?:{EXTRAS})(?:,\w+)*\]")
"""A requirement that asks for an extra with a name of ours: `name[extra]`."""
OURS = re.compile(rf"(\.|{DISTRIBUTION})\[")
OTHERS = {"ray[tune]", "transformers[serving]"}


def asked(text: str) -> list[str]:
    """Return what lines about pip, and strings in lists of requirements, ask extras of."""
    lines = [line for line in text.splitlines() if "pip install" in line or line.lstrip().startswith(("dev =", '"'))]
    return ASKED.findall("\n".join(lines))


def foreign(text: str) -> list[str]:
    return [found for found in asked(text) if not OURS.match(found) and found not in OTHERS]


def test_no_file_installs_our_extras_from_a_package_of_somebody_else() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    suffixes = {".py", ".md", ".ipynb", ".toml", ".yml", ".html", ".j2", ""}
    names = [name for name in listed.splitlines() if Path(name).suffix in suffixes and name != "tests/test_package.py"]
    if not names:
        pytest.skip("not a checkout")
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    assert {name: found for name, text in texts.items() if (found := foreign(text))} == {}
    assert len([found for text in texts.values() for found in asked(text) if found.startswith(DISTRIBUTION)]) > 10
    assert [
        name for name, text in texts.items() if re.search(r"upgrade more-cli|dependencies = .*more-cli", text)
    ] == []


def test_a_name_of_somebody_else_would_be_found() -> None:
    assert foreign('hint: pip install "more-cli[review]"') == ["more-cli[review]"]
    assert foreign(install_hint("review")) == foreign('pip install -e ".[dev,docs]"') == []
