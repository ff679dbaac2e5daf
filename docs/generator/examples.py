"""Examples of every JSON output: a real run of the commands, and how an output is shortened for the page."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from more_cli.cli.app import main
from more_cli.demo.files import demo_model_dir
from more_cli.recipe.files import data_folder

FILE = Path(__file__).resolve().parents[1] / "schemas.json"
"""Where the examples are kept: beside the schema that they follow."""

_COMMANDS = """
init              init llava --anchors anchors.jsonl
edit              edit llava edits.jsonl
lines             edit llava - --json-lines --on-error skip
eval              eval llava
capability        eval llava --suite mme
eval.suite        eval llava --suite e-vqa --limit 2
compare-editors   compare none ft-m --suite e-vqa --limit 2
exhibits          reproduce
kit               reproduce kit -o kit
reproduce         reproduce table-1 llava --editor none --checkpoints 1
sign              sign llava --key key
merge             merge llava -o llava-edited --verify --sha256
export            export llava -o llava-adapter
push              push llava-adapter me/llava-adapter --dry-run
ask               ask llava --image images/sample-scene11-v0.png 'Is the hourglass small or large?'
convert           convert table.csv -o converted.jsonl
analyses          analyze
-                 run llava --suite e-vqa --limit 2 --keep run
analyze           analyze efficiency --run run --out figures --no-figures
sweep-plan        sweep sweep.toml -o sweep --dry-run
sweep             sweep sweep.toml -o sweep
sweep-fleet       sweep fleet.toml -o fleet
status            status llava --estimate
settings          status llava --settings
log               log llava
log.show          log show size-01 llava
verify            verify llava
bench             bench llava --limit 2
combine           combine llava.more llava.ann.more -o llava.both.more
diff              diff llava.more llava.both.more --answers
switch            switch llava
rebase            rebase llava llava-edited
revert            revert llava --last 1
anchors           anchors add llava further.jsonl
anchors.list      anchors list llava
gc                gc llava --dry-run
recipes.list      recipes list
recipes.show      recipes show llava
suites.list       suites list
suites.metrics    suites metrics
suites.show       suites show e-vqa
suites.check      suites check e-vqa
suites.convert    suites convert e-vqa -o e-vqa.jsonl
demo.files        demo --files more-demo-files
"""
_TABLE = """image,question,target,reviewer
images/sample-emblem150-v0.png,What is the emblem in the picture called?,Retribar,mk
"""
_DEMO = "demo              demo"  # takes as long as all others together


def kept() -> dict[str, Any]:
    """Return the kept example of every output, by the value of its key `schema`."""
    definitions = json.loads(FILE.read_text(encoding="utf-8"))["$defs"]
    return {version: found["examples"][0] for version, found in definitions.items() if "examples" in found}


def keep(outputs: Mapping[str, Any]) -> None:
    """Keep an example of every output, by the value of its key `schema`."""
    whole = json.loads(FILE.read_text(encoding="utf-8"))
    for version, value in outputs.items():
        whole["$defs"].setdefault(version, {})["examples"] = [json.loads(json.dumps(value, sort_keys=True))]
    FILE.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def run(folder: Path, *, demo: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the commands on the embedded model in an empty folder; yield every output in full, with its name."""
    samples = data_folder("sample_edits")
    with contextlib.chdir(folder), mock.patch.dict("os.environ", {"XDG_CACHE_HOME": str(folder / "cache")}):
        shutil.copytree(demo_model_dir(), "llava")
        shutil.copytree(samples / "images", "images")
        edits = (samples / "edits.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        Path("edits.jsonl").write_text("".join(edits[:3]), encoding="utf-8")
        *anchors, further = (samples / "anchors.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        Path("anchors.jsonl").write_text("".join(anchors), encoding="utf-8")
        Path("further.jsonl").write_text(further, encoding="utf-8")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
        Path("table.csv").write_text(_TABLE, encoding="utf-8")
        Path("sweep.toml").write_text('editors = ["none"]\nlimits = [2]\n', encoding="utf-8")
        Path("fleet.toml").write_text('[fleet]\nmodels = ["llava"]\nedits = "edits.jsonl"\n', encoding="utf-8")
        for line in [*_COMMANDS.split("\n"), _DEMO if demo else ""]:
            if not line:
                continue
            name, *arguments = shlex.split(line)
            if name == "lines":
                yield from _lines(arguments, edits[3] + '{"question": "What is this?"}\n')
                continue
            if name == "combine":  # with a copy of itself
                shutil.copyfile("llava.more", "llava.ann.more")
                shutil.copytree("llava.more.d", "llava.ann.more.d")
            (value,) = _output([*arguments, "--json"])
            if name == "-":  # for its files
                continue
            yield name, value
            if name == "merge":
                yield "provenance", json.loads(Path("llava-edited/more.json").read_text(encoding="utf-8"))
            if name == "eval":
                text = json.dumps(value)
                Path("before.json").write_text(text, encoding="utf-8")
                Path("after.json").write_text(text, encoding="utf-8")
                (value,) = _output(["compare", "--paired", "before.json", "after.json", "--json"])
                yield "compare", value


def _lines(arguments: list[str], text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))):
        for value in _output(arguments):
            yield value["schema"].split("/")[0].removeprefix("more."), value


def _output(arguments: list[str]) -> list[dict[str, Any]]:
    """Return the JSON lines that a command prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    if code:
        raise RuntimeError(f"more {' '.join(arguments)}: exit {code}\n{err.getvalue()}")
    return [json.loads(line) for line in out.getvalue().splitlines()]


# What differs from run to run, and what stands for it.
_VOLATILE: dict[str, Any] = {
    "wall_seconds": 4.1,
    "wall_ms": 412.0,
    "seconds": 0.4,
    "time": "2026-01-31T12:00:00.000+00:00",
    "free": 16000000000,
    "bytes": 5837296,
    "edits_per_second": 1.5,
    "peak_memory_bytes": 116000000,
}
_SECONDS = {"parts": 0.1, "steps": 0.2}
_PAIRS = {"shape", "looks"}
_VERSIONS = {"more": "0.1.0", "torch": "2.13.0"}
_KEY = re.compile(r"\bSHA256:[\w+/]{43}")
_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{8,56}\b")
_WHOLE = {"counts", "statuses", "estimate", "yardstick", "totals", "verification"}


def shortened(value: Any, folder: Path, key: str = "", depth: int = 0) -> Any:
    """Return an output as the page shows it: lists end after the first item, maps of many keys after the second.

    Paths are relative, hashes have eight digits, numbers four; times and versions are made up.
    """
    if key in _VOLATILE and isinstance(value, int | float | str):
        return _VOLATILE[key]
    if key in _SECONDS and _are_seconds(value):
        return {name: _SECONDS[key] for name in list(value)[:2]} if isinstance(value, Mapping) else [_SECONDS[key]]
    if key == "versions":
        return _VERSIONS
    if key in ("recipe", "constants") and "name" in value:
        return {"name": value["name"]}
    if isinstance(value, Mapping):
        items = list(value.items())
        if depth and key not in _WHOLE and _is_map(value):
            items = items[:2] if not isinstance(items[0][1], Mapping) else items[:1]
        return {_hashes(name): shortened(item, folder, name, depth + 1) for name, item in items}
    if isinstance(value, list):
        inner = key if key in _PAIRS else ""
        return [shortened(item, folder, inner, depth + 1) for item in value[: 2 if key in _PAIRS else 1]]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return _text(value, folder) if isinstance(value, str) else value


def _are_seconds(value: Any) -> bool:
    """Tell whether these are times, and not the bytes or the settings that have the same name elsewhere."""
    items = list(value.values()) if isinstance(value, Mapping) else value
    return isinstance(items, list) and bool(items) and all(isinstance(item, float) for item in items)


def _is_map(value: Mapping[str, Any]) -> bool:
    """Tell whether the keys are names of things rather than of meanings: their values are all of one kind."""
    kinds = {type(item) for item in value.values()}
    return (len(value) > 2 and len(kinds) == 1 and not kinds & {str, bool, int}) or any("." in name for name in value)


def _text(value: str, folder: Path) -> str:
    value = value.replace(f"{folder}/", "").replace(str(demo_model_dir().parent.parent), "more_cli")
    value = re.sub(r"[^\s\"]*more/suites/[0-9a-f]{16}", "suites", value)  # the cache
    value = _hashes(value)
    return value if len(value) <= 100 else f"{value[:60]}..."


def _hashes(text: str) -> str:
    return _HASH.sub(r"\1...", _KEY.sub("SHA256:...", text))
