"""The benchmark of long streams, on a short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from more_lab.panel import long as shown
from more_lab.panel.long import read
from support.paths import BENCH, ROOT


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch):
    import long

    yield long
    sys.modules.pop("long", None)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_twelve_edits(tmp_path: Path, long, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "long.json"
    command = [sys.executable, str(BENCH / "long.py"), "run", "--edits", "12", "--out", str(out)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    made = json.loads(out.read_text())
    taken = made["per_edit"]
    assert {len(values) for values in taken.values()} == {12}
    assert made["edits"] == sum(made["statuses"].values()) == 12
    assert sum(writes > 0 for writes in taken["writes"]) >= 10, "the stream is one of real writes"
    for writes, cpu, alone, bare in zip(*(taken[name] for name in ("writes", "cpu", "alone", "bare")), strict=True):
        assert (bare > 0 and 0 < alone < cpu) if writes else bare == alone == 0
    assert made["P_error"] < 1e-11
    first, *_, last = made["held"]
    assert first["hooks"] == last["hooks"]
    assert first["descriptors"] >= last["descriptors"], "the state is open until it is saved for the first time"
    assert made["before"]["descriptors"] == made["after"]["descriptors"]
    assert (made["before"]["hooks"], made["after"]["hooks"]) == (0, 10), "transformers' own, two a vision layer"
    # Its header counts edits and keys, in decimal digits.
    assert abs(made["state_bytes"][1] - made["state_bytes"][0]) < 200
    monkeypatch.setattr(shown, "read", lambda name: made if name == "long.json" else read(name))
    page = "\n".join(shown.page())
    assert page.startswith("# A stream of 12 edits\n")
    assert "nan" not in page


def test_every_edit_of_the_stream_asks_for_another_answer_than_the_last_one(long) -> None:
    answers: dict[tuple[str, str], str] = {}
    ids = set()
    for line in long.lines(1500):
        asked = line["image"], line["question"]
        assert answers.get(asked) != line["target"]
        answers[asked] = line["target"]
        ids.add(line["id"])
    assert len(ids) == 1500
    assert len(answers) == shown.SETTLED
