"""Editors side by side on a panel of small models: the tables of PANEL.md.

    python tests/bench/panel.py run --models LIST --stream mistakes --variant default nll lora --workers 2
    python tests/bench/panel.py run --models LIST --stream mistakes --set margin=1 --set rehearsal.size=8 --name small
    python tests/bench/panel.py show --against lora > more_lab/results/PANEL.md

LIST has a line per model: its name, its folder, the folder of its suites, and its half of the panel, `dev` or `held`
(by default that of tests/worlds/panel/members.toml); `demo` is the embedded model. A stream is a folder of suites
(eval.json, calibration.json, anchors.jsonl, images/; or first.jsonl and second.jsonl, of contradictions) or several,
with `+` between them. Every run starts from the untouched model, and is scored after its last edit. Finished runs are
skipped, unless the code that decides their numbers has changed. The runs use a copy of the code, made when the command
starts.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in every worker

import more_cli
from more_cli.demo.files import demo_model_dir, suite_dir
from more_cli.ops.auto_anchors import AUTO
from panel_runs import FILES, Job, Variant, perform
from panel_show import five, page

RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "panel.jsonl"
FROZEN = "PANEL_FROZEN"
"""Variable that holds the folder of the copy that runs; empty for the working tree itself."""
HALVES = ("dev", "held")
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
"""Of the LoRA, tried on the calibration pool of each model and stream."""
VARIANTS = {
    "base": Variant(editor="none"),
    "default": Variant(),
    "nll": Variant(settings=("loss=nll",)),
    "undamped": Variant(settings=("damping=1e9",)),
    "damping-0.3": Variant(settings=("damping=0.3",)),
    "along-gp": Variant(settings=("conjugate=0",)),
    "no-halvings": Variant(settings=("halvings=0",)),
    "no-watch": Variant(settings=("anchors.watched=0",)),
    "no-anchors": Variant(anchors=""),
    "auto-anchors": Variant(anchors=AUTO),
    "whole-rank": Variant(settings=("rank_share=1",)),
    "auto-whole-rank": Variant(anchors=AUTO, settings=("rank_share=1",)),
    "no-P": Variant(settings=("precondition=false",)),
    "no-P-no-rehearsal": Variant(settings=("precondition=false", "rehearsal.size=0")),
    "rehearsal-0": Variant(settings=("rehearsal.size=0",)),
    "rehearsal-8": Variant(settings=("rehearsal.size=8",)),
    "margin-1": Variant(settings=("margin=1",)),
    "margin-3": Variant(settings=("margin=3",)),
    "anchors-in-writes": Variant(settings=("anchors.keys=false",)),
    "anchors-in-P": Variant(settings=("anchors.size=0",)),
    "consolidated": Variant("consolidated"),
    "batch": Variant("batch"),
    "anew": Variant("anew"),
    "auto-anew": Variant("anew", anchors=AUTO),
    "auto-batch": Variant("batch", anchors=AUTO),
    "mean-key": Variant(settings=("pooling=mean",)),
    "consolidated-4": Variant("consolidated", settings=("consolidation.margin=4", "consolidation.rounds=6")),
    "paper": Variant(editor="more:paper"),
    "lora": Variant("lora"),
    "lora-anchors": Variant("lora", held=8),
    "lora-0.00025": Variant("lora", rate=2.5e-4),
    "lora-0.0005": Variant("lora", rate=5e-4),
    "lora-0.0005, 73 epochs": Variant("lora", rate=5e-4, epochs=73),
    "lora-0.001": Variant("lora", rate=1e-3),
    "lora-20": Variant("lora", epochs=20),
    "lora-40": Variant("lora", epochs=40),
}
PACKAGE = Path(more_cli.__file__).parent
MEMBERS = PACKAGE.parent / "tests" / "worlds" / "panel" / "members.toml"
CODE = {
    "editor": [
        *(PACKAGE / name for name in ("core", "editors", "model", "recipe")),
        *(PACKAGE / "evaluation" / name for name in ("probes.py", "metrics.py", "streams.py")),
        PACKAGE / "ops" / "auto_anchors.py",
        PACKAGE.parent / "recipes",
    ],
    "lora": [PACKAGE / "editors" / "anchors.py"]
    + [PACKAGE.parent / "more_lab" / "editors" / name for name in ("lora.py", "training.py")]
    + [Path(__file__).parent],
}
"""What decides the numbers of an editor's runs, and of the LoRA's."""


def models(given: str) -> Iterator[dict[str, Any]]:
    """Yield name, folder, suites and half of every model of a list."""
    if given == "demo":
        yield {"model": "demo", "path": demo_model_dir(), "suites": suite_dir("e-vqa-mini").parent, "half": "dev"}
        return
    for line in Path(given).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, path, suites, *rest = line.split(maxsplit=3)
            yield {"model": name, "path": Path(path), "suites": Path(suites), "half": half_of(name, " ".join(rest))}


def half_of(name: str, rest: str) -> str:
    """Return a model's half by the rest of its line, or by the table of the panel."""
    table = tomllib.loads(MEMBERS.read_text(encoding="utf-8")) if MEMBERS.is_file() else {}
    for said in (rest, table.get(name, {}).get("half", "")):
        if half := next((half for half in HALVES if said.startswith(half)), ""):
            return half
    raise SystemExit(f"model {name} has no half: add dev or held to its line")


@cache
def code(kind: str) -> str:
    """Return a digest of the code of `CODE`, without comments and docstrings."""
    found = hashlib.sha256()
    for root in CODE["lora" if kind == "lora" else "editor"]:
        pattern = "panel_runs.py" if root == Path(__file__).parent else "*.toml" if root.name == "recipes" else "*.py"
        for path in sorted(root.rglob(pattern)) if root.is_dir() else [root]:
            text = path.read_text(encoding="utf-8")
            found.update(meaning(text) if path.suffix == ".py" else json.dumps(tomllib.loads(text)).encode())
    return found.hexdigest()[:12]


def meaning(text: str) -> bytes:
    """Return a module's syntax tree without strings that stand alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree).encode()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of a model's weights."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()[:16]


def key(job: Job, made_by: str = "") -> str:
    """Return what identifies a run: two with the same key have the same numbers."""
    files = [job.path, *job.files]
    if job.variant.anchors and job.variant.anchors != AUTO:
        files += [folder / job.variant.anchors for folder in job.folders]
    facts = [job.model, job.stream, job.pool, job.limit, job.seed, job.dtype, job.name, asdict(job.variant)]
    text = json.dumps([facts, list(map(digest, files)), made_by or code(job.variant.kind)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Results:
    """The runs made so far, in a file with one JSON object a line."""

    def __init__(self, path: Path, any_code: bool = False) -> None:
        self.path, self.any_code = path, any_code
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.runs: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, job: Job) -> dict[str, Any] | None:
        """Return the newest run of a job; with `any_code` also one made by other code."""
        made_by = {run["code"] for run in self.runs} if self.any_code else {code(job.variant.kind)}
        keys = {key(job, one) for one in made_by}
        return next((run for run in reversed(self.runs) if run["key"] in keys), None)

    def add(self, job: Job, made: dict[str, Any]) -> None:
        """Append a run."""
        facts = {name: getattr(job, name) for name in ("model", "half", "stream", "pool", "limit", "seed", "dtype")}
        run = {"key": key(job), "code": code(job.variant.kind), **facts, "variant": job.name}
        run |= {"settings": asdict(job.variant), **made}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        self.runs.append(run)


def next_steps(job: Job, results: Results) -> list[Job]:
    """Return the runs to make next for a job: itself, those it follows from, or none if all are made."""
    variant = job.variant
    if variant.kind == "lora" and not variant.epochs:
        other = replace(job, name=variant.match, variant=VARIANTS[variant.match])
        found = results.find(other)
        if found is None:
            return [other]
        cost = (sum(found["cost"]) + found["once"]) / found["n"]
        variant = replace(variant, epochs=max(1, round(cost / variant.per_epoch(found["n"]))))
    if variant.kind == "lora" and not variant.rate:
        pool = replace(job, pool="calibration", seed=0)
        pool = pool if pool.complete else replace(pool, stream="mistakes")
        tries = [replace(pool, name=f"{job.name}-{rate:g}", variant=replace(variant, rate=rate)) for rate in RATES]
        made = [results.find(one) for one in tries]
        if missing := [one for one, run in zip(tries, made, strict=True) if run is None]:
            return missing
        variant = replace(variant, rate=max(zip(map(five, filter(None, made)), RATES, strict=True))[1])
    job = replace(job, variant=variant)
    return [] if results.find(job) else [job]


def make(jobs: Sequence[Job], results: Results, workers: int) -> int:
    """Make the runs that are missing, and the runs that these follow from; return how many failed."""
    failed: set[Job] = set()
    while True:
        steps = dict.fromkeys(step for job in jobs for step in next_steps(job, results))
        waiting = [step for step in steps if step not in failed]
        if not waiting:
            return len(failed)
        for number, (job, made) in enumerate(performed(waiting, workers), 1):
            if isinstance(made, Exception):
                failed.add(job)
                print(
                    f"{job.model} {job.stream} {job.name}: {type(made).__name__}: {made}", file=sys.stderr, flush=True
                )
            else:
                results.add(job, made)
                tell(results.runs[-1], number, len(waiting))


def performed(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any] | Exception]]:
    """Yield what each run measured, or why it could not be made, as they end."""
    if workers == 1:
        for job in jobs:
            try:
                yield job, perform(job)
            except Exception as error:
                yield job, error
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        started = {pool.submit(perform, job): job for job in jobs}
        for future in as_completed(started):
            error = future.exception()
            yield started[future], error if isinstance(error, Exception) else future.result()


def tell(run: dict[str, Any], number: int, total: int) -> None:
    """Print one line about a run."""
    values = [[value for value in found if value is not None] for found in run["values"].values()]
    means = " ".join(f"{100 * sum(found) / len(found):.1f}" if found else "-" for found in values)
    cost = (sum(run["cost"]) + run["once"]) / run["n"]
    where = f"{run['model']} {run['stream']} {run['pool']} {run['variant']} seed {run['seed']}"
    statuses = ", ".join(f"{count} {status}" for status, count in run["statuses"].items())
    print(f"[{number}/{total}] {where}: {statuses}; {means}; cost {cost:.1f}; {run['wall']} s", flush=True)


def start_again(out: Path) -> None:
    """Start the same command on a copy of the code, so that an edit of the working tree cannot mix two versions."""
    copy = Path(tempfile.mkdtemp(prefix="panel-"))
    shutil.copytree(PACKAGE, copy / "more_cli", ignore=shutil.ignore_patterns("__pycache__"))
    for name, pattern in (("recipes", "*.toml"), ("tests/worlds/panel", "members.toml"), ("tests/bench", "panel*.py")):
        (copy / name).mkdir(parents=True)
        for file in (PACKAGE.parent / name).glob(pattern):
            shutil.copy(file, copy / name)
    words = [sys.executable, str(copy / "tests/bench/panel.py"), *sys.argv[1:], "--out", str(out.resolve())]
    os.execve(sys.executable, words, os.environ | {"PYTHONPATH": str(copy), FROZEN: str(copy)})


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Return the runs that were asked for, model by model."""
    chosen = {name: VARIANTS[name] for name in arguments.variant}
    if arguments.set or arguments.name:
        base = VARIANTS[arguments.start]
        named = arguments.name or ",".join(arguments.set)
        chosen[named] = replace(base, settings=(*base.settings, *arguments.set))
    if not chosen:
        raise SystemExit("nothing to run: name a --variant, or --set key=value")
    if arguments.half != "dev" and arguments.pool == "calibration" and any(v.kind != "lora" for v in chosen.values()):
        raise SystemExit("the held-out half is reported, never chosen on: --pool calibration is for `lora` alone there")
    found = [one for one in models(arguments.models) if arguments.half in (one["half"], "all")]
    if arguments.model:
        found = [one for one in found if one["model"] in arguments.model]
    asked = [
        Job(
            **one,
            stream=stream,
            pool=arguments.pool,
            limit=arguments.limit,
            seed=seed,
            name=name,
            variant=variant,
            dtype=arguments.dtype,
        )
        for one in found
        for stream in arguments.stream
        for seed in arguments.seeds
        for name, variant in chosen.items()
    ]
    for model, stream in dict.fromkeys((job.model, job.stream) for job in asked if not job.complete):
        print(f"{model} has no {stream} ({arguments.pool})", file=sys.stderr)
    return [job for job in asked if job.complete]


def main() -> None:
    """Make runs, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, show = commands.add_parser("run"), commands.add_parser("show")
    run.add_argument("--models", required=True, help="file that lists the models, or demo")
    run.add_argument("--model", nargs="+", help="names of some of them (default: all)")
    run.add_argument("--variant", nargs="+", default=[], choices=list(VARIANTS))
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a variant of one's own")
    run.add_argument("--name", help="its name")
    run.add_argument("--start", default="default", choices=list(VARIANTS), help="what it starts from")
    run.add_argument("--seeds", nargs="+", type=int, default=[0])
    run.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "auto"])
    run.add_argument("--workers", type=int, default=1, choices=[1, 2])
    run.add_argument("--any-code", action="store_true", help="skip runs that other code made, too")
    show.add_argument("--variant", nargs="+", help="rows, in this order (default: all)")
    show.add_argument("--model", nargs="+")
    show.add_argument("--against", help="variant that the others are compared with, edit by edit")
    show.add_argument("--brief", action="store_true", help="the means over models alone")
    for one in (run, show):
        one.add_argument("--half", default="dev" if one is run else "all", choices=[*HALVES, "all"])
        one.add_argument("--stream", nargs="+", default=["mistakes"] if one is run else None)
        one.add_argument("--pool", default="evaluation", choices=list(FILES))
        one.add_argument("--limit", type=int, default=100, help="first edits of each stream")
        one.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run" and FROZEN not in os.environ:
        start_again(arguments.out)
    if copy := os.environ.get(FROZEN):
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(arguments.out, getattr(arguments, "any_code", False))
    if arguments.command == "run":
        sys.exit(1 if make(jobs_of(arguments), results, arguments.workers) else 0)
    stale = sum(one["code"] != code(one["settings"]["kind"]) for one in results.runs)
    if stale:
        print(f"{stale} of {len(results.runs)} runs were made by other code", file=sys.stderr)
    print("\n".join(page(results.runs, arguments)))


if __name__ == "__main__":
    main()
