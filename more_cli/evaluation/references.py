"""What the untouched base says to probes, asked once and kept on disk for every later run on the same base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from more_cli.evaluation.probes import BATCH, Probe, Reference, ask_base
from more_cli.files import canonical_json, disk_errors, replacing, sha256_bytes
from more_cli.model.runtime import Runtime


class BaseAnswers:
    """The references of locality probes, one file each; absent or damaged ones are asked for again."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self.asked = 0
        """Probes that the base had to be asked, so far."""

    def __call__(self, probes: Sequence[Probe]) -> list[Reference]:
        """Return the base's answers, in order."""
        known = [self._read(probe) for probe in probes]
        absent = [probe for probe, reference in zip(probes, known, strict=True) if reference is None]
        fresh = iter(self._ask(absent))
        return [reference or next(fresh) for reference in known]

    def prepare(self, probes: Sequence[Probe], on_progress: Callable[[int, int], None]) -> None:
        """Ask in full batches what is not known yet, images apart: their sequences differ much in length."""
        locality = [probe for probe in probes if probe.is_locality]
        absent = [probe for probe in locality if not self._path(probe).exists()]
        done = 0
        for images in sorted({len(probe.query.images) for probe in absent}):
            group = [probe for probe in absent if len(probe.query.images) == images]
            for start in range(0, len(group), BATCH):
                done += len(self._ask(group[start : start + BATCH]))
                on_progress(done, len(absent))

    def _ask(self, probes: Sequence[Probe]) -> list[Reference]:
        if not probes:
            return []
        found = ask_base(self._runtime, probes)
        self.asked += len(probes)
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        for probe, reference in zip(probes, found, strict=True):
            tensors = {"tokens": torch.tensor(reference.tokens), "logits": reference.logits.contiguous()}
            with replacing(self._path(probe)) as scratch:
                scratch.write_bytes(save(tensors))
        return found

    def _read(self, probe: Probe) -> Reference | None:
        try:
            with safe_open(self._path(probe), framework="pt") as file:
                return Reference(tuple(file.get_tensor("tokens").tolist()), file.get_tensor("logits"))
        except (OSError, SafetensorError):
            return None

    def _path(self, probe: Probe) -> Path:
        asked = [[image.sha256 for image in probe.query.images], probe.query.question]
        return self._folder / f"{sha256_bytes(canonical_json(asked).encode())[:32]}.safetensors"
