"""A long stream through `more edit` itself: the cost of an edit by its number, and memory over time.

python tests/bench/long.py run --edits 5000 --out more_lab/results/long.json
python tests/bench/long.py open --lines 100000 --out more_lab/results/ledger.json
python -m more_lab.panel LONG.md

The embedded model with its anchors and the default recipe. The stream repeats the 336 questions of the evaluation pool:
first with their right answers, then in every round with other answers of the same kind, random with a fixed seed, so
that no answer is right already and every edit replaces an earlier one.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from more_cli.clock import running
from more_cli.demo.files import demo_model_dir
from more_cli.editors.more.sites import Sites
from more_cli.files import sha256_bytes
from more_cli.inputs.feeds import Pipe
from more_cli.model.batches import Batch
from more_cli.model.machine import Machine
from more_cli.ops.edit import EditReport, Listener, edit_stream
from more_cli.ops.init import initialise
from more_cli.ops.preparing import Inputs
from more_cli.ops.session import open_session
from more_cli.options import EditOptions
from more_cli.store.entry import START, Entry, with_checksum
from more_cli.store.ledger import Ledger, content_digest
from more_cli.store.state import load_state, save_state
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.suites.embedded import suite_folder
from more_lab.bench.floor import Floor
from more_lab.bench.timing import Stopwatch
from more_lab.panel.long import opened
from more_lab.panel.table import RESULTS

SUITE = suite_folder("e-vqa-mini")
SEED = 0
TAKEN = ("writes", "cost", "wall", "cpu", "alone", "samples", "bare")
"""Of each edit: its writes, its cost in samples, wall and CPU ms, the CPU ms of its writes alone and the samples in
them, and the CPU ms of the bare loop after it."""


def lines(count: int) -> Iterator[dict[str, Any]]:
    """Yield edit lines: the pool in its order, then rounds with other answers of the same kind."""
    rng = random.Random(SEED)
    pool = json.loads((SUITE / "eval.json").read_text(encoding="utf-8"))
    answers: dict[str, list[str]] = {}
    for record in pool:
        answers.setdefault(record["tags"]["kind"], []).append(record["alt"])
    last = [record["pred"] for record in pool]
    for number in range(count):
        turn, place = divmod(number, len(pool))
        record = pool[place]
        kind = sorted({*answers[record["tags"]["kind"]], record["pred"]} - {last[place]})
        last[place] = rng.choice(kind) if turn else record["alt"]
        yield {
            "id": f"r{turn}-{place}",
            "image": record["image"],
            "question": record["src"],
            "target": last[place],
        }


class Watching(Listener):
    """Records every edit when it is durable, and every few edits what the process holds."""

    def __init__(self, every: int, target: Target) -> None:
        self.every = every
        self.target = target
        self.watch = Stopwatch("cpu", time.thread_time)
        self.edits: dict[str, list[float]] = {name: [] for name in TAKEN}
        self.held: list[dict[str, int]] = []
        self._reference: tuple[Floor, Batch] | None = None
        self._restart()

    def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
        cpu, lap = time.process_time() - self._cpu, self.watch.stop()
        samples = sum(len(batch.sequences) for batch in lap.batches)
        bare = self._bare(lap.batches[0]) if lap.batches else 0.0
        row = (len(lap.steps), entry.cost, entry.wall_ms, 1000 * cpu, 1000 * sum(lap.steps), samples, 1000 * bare)
        for taken, value in zip(self.edits.values(), row, strict=True):
            taken.append(round(value or 0.0, 2))
        if (entry.seq - 1) % self.every == 0:
            self.held.append({"edit": entry.seq, **held()})
        self._restart()

    def _bare(self, batch: Batch) -> float:
        """Return the seconds that the first write of all takes as a bare loop: how fast the machine is now."""
        if self._reference is None:
            assert self.watch.runtime is not None
            self._reference = Floor(self.watch.runtime, load_state(self.target.sidecar).meta.sites), batch
        floor, first = self._reference
        with floor.ready(first):
            began = time.thread_time()
            floor.gradients(first)
            return time.thread_time() - began

    def _restart(self) -> None:
        self.watch.start()
        self._cpu = time.process_time()


def held() -> dict[str, int]:
    """Return resident memory in bytes, open descriptors, and hooks on all modules in memory."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)
    replaced = sum("forward" in module.__dict__ for module in modules)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"resident": resident, "descriptors": len(os.listdir("/proc/self/fd")), "hooks": hooks + replaced}


class Keys:
    """Sums z z^T / lambda over every key that P absorbs, by site, for the closed form of P."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.count = 0
        real = Sites.absorb

        def absorb(sites: Sites, keys: Any) -> None:
            real(sites, keys)
            ridges = {record.name: record.ridge for record in sites.records}
            for name, key in keys.items():
                rows = key.reshape(-1, key.shape[-1]).double()
                assert ridges[name], "a lambda that still follows the keys has no closed form"
                self.sums[name] = self.sums.get(name, 0) + rows.T @ rows / ridges[name]
                self.count += len(rows)

        Sites.absorb = absorb  # type: ignore[method-assign]

    def worst(self, P: dict[str, torch.Tensor]) -> float:
        """Return the largest |P - (I + sum)^-1| over the largest |(I + sum)^-1|, of all sites."""
        errors = []
        for name, found in P.items():
            closed = torch.inverse(torch.eye(len(found), dtype=torch.float64) + self.sums[name])
            errors.append(float((found - closed).abs().max() / closed.abs().max()))
        return max(errors)


def run(count: int, folder: Path) -> dict[str, Any]:
    """Apply the stream and return the measurements."""
    torch.set_num_threads(1)
    target, machine = Target(demo_model_dir(), folder / "long.more"), Machine(dtype="float32")
    keys, listener = Keys(), Watching(max(1, count // 50), target)
    initialise(target, inputs=Inputs(anchors=SUITE / "anchors.jsonl"), machine=machine)
    before, size = held(), target.sidecar.stat().st_size
    stream = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines(count)))
    started = time.perf_counter()
    with running(listener.watch):
        report = edit_stream(target, Pipe(stream), EditOptions(image_root=SUITE), machine, listener=listener)
    seconds = time.perf_counter() - started
    gc.collect()
    return {
        "edits": report.applied,
        "seconds": round(seconds, 1),
        "statuses": dict(Counter(entry.status for entry in report.entries)),
        "standing": standing(report),
        "state_bytes": [size, target.sidecar.stat().st_size],
        "ledger_bytes": (target.folder / "ledger.jsonl").stat().st_size,
        "before": before,
        "after": held(),
        "held": listener.held,
        "P_error": keys.worst(load_state(target.sidecar).P),
        "keys": keys.count,
        "per_edit": listener.edits,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread, torch {torch.__version__}",
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def standing(report: EditReport) -> dict[str, int]:
    """Return the number of edits by their final status."""
    return {str(status): count for status, count in report.counts.items()}


def lengthened(target: Target, count: int) -> None:
    """Repeat a state's edits until its ledger has `count` lines, each about another question."""
    rng, head = random.Random(SEED), START
    real = list(Ledger(target.folder).entries)
    with open(target.folder / "ledger.jsonl", "wb") as file:
        for seq in range(1, count + 1):
            entry = real[seq - 1 if seq <= len(real) else seq % (len(real) - 10) + 10]
            places = {rng.randrange(1, seq) for _ in entry.looks[1:]} if seq > 1 else set()
            margins = [(place, round(rng.uniform(-1, 9), 3)) for place in sorted(places)]
            hashes = {name: sha256_bytes(f"{name} {seq}".encode()) for name in ("content", "subject")}
            about = {"seq": seq, "prev": head, "id": f"r{seq}", "looks": [*margins, (seq, 5.0)], **hashes}
            _, line = with_checksum(entry.model_copy(update=about))
            file.write(line)
            head = sha256_bytes(line)
    state = load_state(target.sidecar)
    state.meta.edits, state.meta.digest = count, content_digest(Ledger(target.folder).entries)
    save_state(target.sidecar, state)


def open_long(count: int, folder: Path) -> dict[str, Any]:
    """Return the seconds of opening a ledger and of resuming a state with it, CPU and wall."""
    target, machine = Target(demo_model_dir(), folder / "long.more"), Machine(dtype="float32")
    stream = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines(40)))
    initialise(target, inputs=Inputs(anchors=SUITE / "anchors.jsonl"), machine=machine)
    edit_stream(target, Pipe(stream), EditOptions(image_root=SUITE), machine)
    lengthened(target, count)

    def resumed() -> None:
        session = open_session(target, machine)
        assert session.behind == 0
        assert len(session.standing.memory.context(count + 1).past) == count

    found: dict[str, Any] = {"lines": count, "bytes": (target.folder / "ledger.jsonl").stat().st_size}
    for name, action in {"open": lambda: Ledger(target.folder), "resume": resumed}.items():
        taken = []
        for _ in range(5):
            cpu, wall = time.process_time(), time.perf_counter()
            action()
            taken.append((time.process_time() - cpu, time.perf_counter() - wall))
        found[name] = [round(float(value), 2) for value in np.median(taken, axis=0)]
    return found | {"load": [round(value, 1) for value in os.getloadavg()]}


def main() -> None:
    """Make a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "open"])
    parser.add_argument("--edits", type=int, default=5000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / ("long.json" if arguments.command == "run" else "ledger.json")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.command == "open":
            found = open_long(arguments.lines, Path(folder))
            out.write_text(json.dumps(found) + "\n", encoding="utf-8")
            print("\n".join(opened(found)))
            return
        made = run(arguments.edits, Path(folder))
    out.write_text(json.dumps(made) + "\n", encoding="utf-8")
    stopped = f", stopped by a signal before {arguments.edits}" if made["edits"] < arguments.edits else ""
    print(f"{made['edits']} edits{stopped} in {made['seconds']} s, P off by {made['P_error']:.1e}")


if __name__ == "__main__":
    main()
