"""Coverage-guided fuzzing of the parsers with Atheris (libFuzzer), each in its own process.

An input may be accepted or refused with a `MoreError`; anything else, more than ten seconds or more than 1 GiB of
memory is a problem. The first such input of each kind is shown in base64.

    python -m tests.faults.fuzz --seconds 60 [--keep] [PARSER ...]

`--keep` adds to `tests/data/corpus/` what was found: the inputs that reach the most, and all that made a problem. Later
runs begin with them, and a test reads each without the fuzzer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.tally import MEBIBYTES, SECONDS, Problem, Tally

if TYPE_CHECKING:
    from faults.parsers import Parser
    from faults.stream import Stream

PART = "inputs fuzzed"
EVERY = 50
"""Inputs between two progress notes."""
CORPUS = Path(__file__).resolve().parents[1] / "data" / "corpus"
"""A file per parser, an input per line in base64; one that made a problem has a mark before it, and stays."""
MARK = "!"
KEPT = 4500
"""Most bytes of inputs that are kept per parser; those that made a problem are kept besides."""


def corpus_file(parser: str) -> Path:
    """Return where the inputs of a parser are kept."""
    return CORPUS / f"{parser.replace(' ', '-')}.txt"


def kept(parser: str) -> list[bytes]:
    """Return the inputs of a parser that are kept."""
    path = corpus_file(parser)
    return [base64.b64decode(line.removeprefix(MARK)) for line in path.read_text().split()] if path.exists() else []


def fuzzed(stream: Stream, tally: Tally, seconds: float, seed: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """Fuzz parsers, all or those that are named, for so long each, and return what was found by parser."""
    sidecar = stream.state("undisturbed")
    with tempfile.TemporaryDirectory(prefix="more-fuzz-") as folder:
        out = Path(folder, "found.json")
        words = json.dumps([str(sidecar), str(stream.world.model), seconds, seed, str(out), list(names)])
        # A fresh process, where imports can be instrumented.
        command = [sys.executable, "-c", "import sys; from faults.fuzz import instrumented as run; run(sys.argv[1])"]
        paths = [*map(str, Path(__file__).resolve().parents[1:3]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run([*command, words], stderr=subprocess.PIPE, text=True, env=environment)
        if not out.exists():
            raise RuntimeError(done.stderr[-2000:])
        results: dict[str, Any] = json.loads(out.read_text())
    for name, found in results.items():
        problems = [Problem(*pair) for pair in found["problems"]]
        tally.add(PART, name, problems, count=found["inputs"], seconds=found["longest"], peak=found["peak"])
    return results


def instrumented(words: str) -> None:
    """Fuzz parsers and write what was found, in a process that has imported nothing of `more`."""
    import atheris

    with atheris.instrument_imports(include=["more_cli", "more_lab", "yaml"]):
        from faults import parsers
    state, base, seconds, seed, out, names = json.loads(words)
    sidecar, model = Path(state), Path(base)
    folder = parsers.scratch()
    shard = sorted(model.glob("*.safetensors"))[0]
    ledger = sidecar.with_name(f"{sidecar.name}.d") / "ledger.jsonl"
    found = {}
    for parser in parsers.parsers(sidecar, ledger, shard, model / "config.json"):
        if not names or parser.name in names:
            found[parser.name] = _fuzz(parser, folder / "fuzzed" / parser.name.replace(" ", "-"), seconds, seed)
            print(f"{parser.name}: {found[parser.name]['inputs']:,} inputs", flush=True)
    Path(out).write_text(json.dumps(found))
    shutil.rmtree(folder)


def _fuzz(parser: Parser, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    corpus, notes = folder / "corpus", folder / "notes.json"
    corpus.mkdir(parents=True)
    for number, content in enumerate([*parser.seeds, *kept(parser.name)]):
        (corpus / str(number)).write_bytes(content)
    pid = os.fork()
    if pid == 0:
        _child(parser, corpus, notes, seconds, seed)
    _, status, usage = os.wait4(pid, 0)
    found: dict[str, Any] = {"inputs": 0, "longest": 0.0, "problems": [], "bad": []}
    if notes.exists():
        found |= json.loads(notes.read_text())
    code = os.waitstatus_to_exitcode(status)
    if code:  # stopped by libFuzzer: too much time or memory, or a crash of native code
        log = (folder / "log").read_text(errors="replace")
        kind = "hang" if "timeout" in log else "memory" if "out-of-memory" in log else "traceback"
        inputs = [
            path.read_bytes() for path in folder.iterdir() if path.name.startswith(("crash-", "oom-", "timeout-"))
        ]
        found["problems"].append([kind, f"ended with {code}: {log[-300:]} for {[*map(_shown, inputs)]}"])
        found["bad"] += [_spelled(data) for data in inputs]
    found["peak"] = usage.ru_maxrss // 1024
    found["reaching"] = _smallest(corpus, set(map(_spelled, parser.seeds)))
    return found


def _smallest(corpus: Path, known: set[str]) -> list[str]:
    """Return the smallest inputs of libFuzzer's corpus, each of which reaches what no smaller one does."""
    chosen, room = list[str](), KEPT
    for path in sorted(corpus.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        data = path.read_bytes()
        room -= len(data)
        if room < 0:
            break
        if data and _spelled(data) not in known:
            chosen.append(_spelled(data))
    return chosen


def _spelled(data: bytes) -> str:
    return base64.b64encode(data).decode()


def keep(parser: str, found: dict[str, Any]) -> None:
    """Keep what reaches the most in place of what was kept for that, and every input that made a problem."""
    CORPUS.mkdir(exist_ok=True)
    path = corpus_file(parser)
    before = [line for line in path.read_text().split() if line.startswith(MARK)] if path.exists() else []
    lines = {*before, *found["reaching"], *(f"{MARK}{line}" for line in found["bad"])}
    path.write_text("".join(f"{line}\n" for line in sorted(lines)))


def _child(parser: Parser, corpus: Path, notes: Path, seconds: float, seed: int) -> None:
    import atheris

    log = os.open(corpus.parent / "log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    options = [
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed + 1}",
        f"-max_len={parser.longest}",
        f"-timeout={SECONDS:.0f}",
    ]
    limits = [f"-rss_limit_mb={2 * MEBIBYTES}", "-len_control=0", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([parser.name, str(corpus), *options, *limits], _watching(parser.read, notes))
    atheris.Fuzz()


def _watching(read: Callable[[bytes], object], notes: Path) -> Callable[[bytes], None]:
    from more_cli.errors import MoreError

    problems: dict[str, list[str]] = {}
    bad: list[str] = []
    count, longest = 0, 0.0
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def one(data: bytes) -> None:
        nonlocal count, longest
        started = time.process_time()
        try:
            read(data)
        except MoreError as error:
            if not error.message or error.exit_code not in (2, 4, 5, 7):
                problems.setdefault("unclear", ["unclear error", f"{error!r} for {_shown(data)}"])
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            problems.setdefault(where, ["traceback", f"{where}: {str(error)[:100]} for {_shown(data)}"])
        longest = max(longest, time.process_time() - started)
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base > MEBIBYTES << 10:
            problems.setdefault("memory", ["memory", f"more than 1 GiB for {_shown(data)}"])
        count += 1
        if len(problems) > len(bad):
            bad.append(_spelled(data))
        elif count % EVERY:
            return
        values = {"inputs": count, "longest": longest, "problems": list(problems.values()), "bad": bad}
        notes.write_text(json.dumps(values))

    return one


def _shown(data: bytes) -> str:
    return _spelled(data[:600])


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz from a shell; exit 1 if there is a problem."""
    from faults.stream import Stream

    options = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description="Fuzzes the parsers of `more`.")
    options.add_argument("parsers", nargs="*", metavar="PARSER", help="names as the page of results has (default: all)")
    options.add_argument("--seconds", type=float, default=60, help="for each parser (default: 60)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", action="store_true", help=f"keep what was found in {CORPUS}")
    asked = options.parse_args(argv)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="more-faults-") as folder:
        results = fuzzed(Stream(Path(folder, "stream"), 4, 2), tally, asked.seconds, asked.seed, asked.parsers)
    for name, found in results.items() if asked.keep else ():
        keep(name, found)
    for problem in tally.found:
        print(problem)
    print(f"{sum(found['inputs'] for found in results.values()):,} inputs, {len(tally.found)} problems")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
