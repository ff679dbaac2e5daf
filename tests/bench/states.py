"""Time and memory of commands on states as large as they get: `merge`, `export`, `init`, `status` and `verify`.

python tests/bench/states.py FOLDER [1.5GB] [4GB] [7B]    # 7B: 45 GB of disk there; see SIZES.md

The shapes are real, the weights one block of noise: nothing is asked of the model. Every command runs in a process of
its own, and what is reported is the best of several rounds, less the imports. The floor of `merge` is measured
in the same rounds: the larger of copying the folder and of the product B A of all sites.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import torch

from checkpoints import build
from more_cli.cli.app import main as more
from more_cli.store.state import load_meta, load_state, save_state
from processes import run

ROUNDS = 3
RANKS = (64, 512)
IMPORTS = "import more_cli.cli.app, more_cli.ops.merge, more_cli.ops.session, more_cli.ops.folding, more_cli.ops.export"


def state_of(model: Path, rank: int) -> Path:
    """Make a state whose B is not zero, as if edits had been written."""
    path = model.with_name(f"rank{rank}.more")
    if path.exists():
        return path
    assert more(["init", str(model), "--no-anchors", "--state", str(path), "--set", f"rank={rank}", "-q"]) == 0
    state = load_state(path)
    generator = torch.Generator().manual_seed(0)
    state.B = {name: 0.01 * torch.randn(B.shape, generator=generator) for name, B in state.B.items()}
    save_state(path, state)
    return path


def product(path: Path) -> float:
    """Return the seconds of W + s B A of all sites, one at a time, on all cores."""
    seconds = 0.0
    for site in load_meta(path).sites:
        d_out, d_in = site.shape
        W, B, A = torch.ones(d_out, d_in), torch.ones(d_out, site.rank), torch.ones(site.rank, d_in)
        torch.addmm(W, B, A)
        started = time.perf_counter()
        torch.addmm(W, B, A)
        seconds += time.perf_counter() - started
    return seconds


def measure(model: Path, rank: int) -> dict[str, tuple[float, float]]:
    """Return the least seconds and MB of each command's process, of the imports, and of the two floors."""
    state, out, fresh = state_of(model, rank), model.with_name("out"), model.with_name("fresh.more")
    command = [sys.executable, "-m", "more_cli"]
    named = [str(model), "--state", str(state)]
    ways = {
        "imports": [sys.executable, "-c", IMPORTS],
        "copy": ["cp", "-r", str(model), str(out)],
        "merge": [*command, "merge", *named, "-o", str(out), "-q"],
        "export": [*command, "export", *named, "-o", str(out), "-q"],
        "delta": [*command, "export", *named, "--format", "delta", "-o", str(out), "-q"],
        "init": [*command, "init", str(model), "--no-anchors", "--state", str(fresh), "--set", f"rank={rank}", "-q"],
        "status": [*command, "status", *named, "-q"],
        "log": [*command, "log", *named],
        "verify": [*command, "verify", *named, "-q"],
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, argv in ways.items():
            found[way].append(run(*argv, allowed=(0, 5) if way in ("log", "verify") else (0,)))
            shutil.rmtree(out, ignore_errors=True)
            for path in (out, fresh):
                path.unlink(missing_ok=True)
            shutil.rmtree(fresh.with_name("fresh.more.d"), ignore_errors=True)
    best = {way: (min(t for t, _ in rounds), min(mb for _, mb in rounds)) for way, rounds in found.items()}
    return best | {"product": (min(product(state) for _ in range(ROUNDS)), 0.0)}


def main() -> None:
    """Measure the shapes named, or all, and print one JSON line for each rank."""
    folder = Path(sys.argv[1])
    for shape in sys.argv[2:] or ["1.5GB", "4GB", "7B"]:
        model = folder / shape / "model"
        if not model.exists():
            build(shape, model, repeated=True)
        for rank in RANKS:
            print(json.dumps({"shape": shape, "rank": rank} | measure(model, rank)), flush=True)


if __name__ == "__main__":
    main()
