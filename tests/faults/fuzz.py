"""Coverage-guided fuzzing of the parsers with Atheris (libFuzzer), each in its own process.

An input may be accepted or refused with a `MoreError`; anything else, more than ten seconds or more than 1 GiB of
memory is a problem. The first such input of each kind is shown in base64.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.tally import MEBIBYTES, SECONDS, Problem, Tally

if TYPE_CHECKING:
    from faults.parsers import Parser
    from faults.stream import Stream

PART = "inputs fuzzed"
EVERY = 500
"""Inputs between two progress notes."""


def fuzzed(stream: Stream, tally: Tally, inputs: int, seed: int) -> None:
    """Feed every parser `inputs` inputs, in a fresh process, where imports can be instrumented."""
    sidecar = stream.state("undisturbed")
    with tempfile.TemporaryDirectory(prefix="more-fuzz-") as folder:
        out = Path(folder, "found.json")
        words = (sidecar, stream.world.model, inputs, seed, out)
        command = [sys.executable, "-m", "faults.fuzz", *map(str, words)]
        paths = [*map(str, Path(__file__).resolve().parents[1:3]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if not out.exists():
            raise RuntimeError(done.stderr[-2000:])
        for name, found in json.loads(out.read_text()).items():
            problems = [Problem(*pair) for pair in found["problems"]]
            tally.add(PART, name, problems, count=found["inputs"], seconds=found["longest"], peak=found["peak"])


def main(sidecar: Path, model: Path, inputs: int, seed: int, out: Path) -> None:
    """Fuzz every parser and write the results to `out`."""
    import atheris

    with atheris.instrument_imports(include=["more_cli"]):
        from faults import parsers
    folder = parsers.scratch()
    shard = sorted(model.glob("*.safetensors"))[0]
    ledger = sidecar.with_name(f"{sidecar.name}.d") / "ledger.jsonl"
    found = {}
    for parser in parsers.parsers(sidecar, ledger, shard, model / "config.json"):
        found[parser.name] = _fuzz(parser, folder / "fuzzed" / parser.name.replace(" ", "-"), inputs, seed)
    out.write_text(json.dumps(found))
    shutil.rmtree(folder)


def _fuzz(parser: Parser, folder: Path, inputs: int, seed: int) -> dict[str, Any]:
    corpus, notes = folder / "corpus", folder / "notes.json"
    corpus.mkdir(parents=True)
    for number, content in enumerate(parser.seeds):
        (corpus / str(number)).write_bytes(content)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(parser, corpus, notes, inputs, seed)
    _, status, usage = os.wait4(pid, 0)
    found: dict[str, Any] = (
        json.loads(notes.read_text()) if notes.exists() else {"inputs": 0, "longest": 0.0, "problems": []}
    )
    code = os.waitstatus_to_exitcode(status)
    if code:  # stopped by libFuzzer: too much time or memory, or a crash of native code
        log = (folder / "log").read_text(errors="replace")
        kind = "hang" if "timeout" in log else "memory" if "out-of-memory" in log else "traceback"
        found["problems"].append([kind, f"ended with {code}: {log[-300:]}"])
    found["peak"] = usage.ru_maxrss // 1024
    print(f"{parser.name}: {found['inputs']} inputs, {time.monotonic() - started:.1f} s", file=sys.stderr)
    return found


def _child(parser: Parser, corpus: Path, notes: Path, inputs: int, seed: int) -> None:
    import atheris

    log = os.open(corpus.parent / "log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    options = [f"-runs={inputs}", f"-seed={seed + 1}", f"-max_len={parser.longest}", f"-timeout={SECONDS:.0f}"]
    # libFuzzer counts the inputs it begins with as well.
    limits = [f"-rss_limit_mb={2 * MEBIBYTES}", "-len_control=0", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([parser.name, str(corpus), *options, *limits], _watching(parser.read, notes, inputs))
    atheris.Fuzz()


def _watching(read: Callable[[bytes], object], notes: Path, inputs: int) -> Callable[[bytes], None]:
    from more_cli.errors import MoreError

    problems: dict[str, list[str]] = {}
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
        if count % EVERY == 0 or count >= inputs or len(problems) > noted[0]:
            noted[0] = len(problems)
            notes.write_text(json.dumps({"inputs": count, "longest": longest, "problems": list(problems.values())}))

    noted = [0]
    return one


def _shown(data: bytes) -> str:
    return base64.b64encode(data[:600]).decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
