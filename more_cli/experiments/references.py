"""What locality is held against, on disk: what the untouched base says, or the model just before an edit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from more_cli.editors.base import Editor
from more_cli.errors import StateError
from more_cli.evaluation.names import Yardstick
from more_cli.evaluation.probes import Probe, Reference, ask, ask_base, batches, routed
from more_cli.files import canonical_json, disk_errors, replacing, sha256_bytes
from more_cli.model.runtime import Runtime


class BaseAnswers:
    """What the untouched base says, asked once and kept for every later run on the same base.

    A file each; absent or damaged ones are asked for again.
    """

    def __init__(self, runtime: Runtime, folder: Path, yardstick: Yardstick) -> None:
        self._runtime, self._yardstick = runtime, yardstick
        self._kept = _Kept(folder)
        self.asked = 0
        """Probes that the base had to be asked, so far."""

    def __call__(self, probes: Sequence[Probe]) -> list[Reference]:
        """Return the base's answers, in order."""
        known = [self._kept.read(self._facts(probe)) for probe in probes]
        absent = [probe for probe, reference in zip(probes, known, strict=True) if reference is None]
        fresh = iter(self._ask(absent))
        return [reference or next(fresh) for reference in known]

    def prepare(self, probes: Sequence[Probe], on_progress: Callable[[int, int], None]) -> None:
        """Ask in full batches what is not known yet."""
        locality = [probe for probe in probes if probe.is_locality]
        absent = [probe for probe in locality if not self._kept.has(self._facts(probe))]
        done = 0
        for group in batches(absent):
            done += len(self._ask(group))
            on_progress(done, len(absent))

    def _ask(self, probes: Sequence[Probe]) -> list[Reference]:
        if not probes:
            return []
        found = ask_base(self._runtime, probes, self._yardstick)
        self.asked += len(probes)
        for probe, reference in zip(probes, found, strict=True):
            self._kept.write(self._facts(probe), reference)
        return found

    def _facts(self, probe: Probe) -> list[object]:
        facts: list[object] = [[image.sha256 for image in probe.query.images], probe.query.question]
        facts += [{"gold": probe.gold}] if self._yardstick.prefix == "gold" else []
        return facts + (["everywhere"] if self._yardstick.everywhere else [])


class EarlierAnswers:
    """What the model said to an edit's locality probes just before that edit, until its run is finished."""

    def __init__(self, runtime: Runtime, editor: Editor, folder: Path, yardstick: Yardstick) -> None:
        self._runtime, self._editor, self._yardstick = runtime, editor, yardstick
        self._kept, self._folder = _Kept(folder), folder

    def ask(self, probes: Sequence[Probe]) -> None:
        """Ask the model as it is now; the editor must be attached."""
        for group in batches([probe for probe in probes if probe.is_locality]):
            queries = [routed(self._editor, probe) for probe in group]
            found = ask(self._runtime, queries, group, self._yardstick)
            for probe, reference in zip(group, found, strict=True):
                self._kept.write(_facts_within(probe), reference)

    def __call__(self, probes: Sequence[Probe]) -> list[Reference]:
        """Return what was said, in order.

        Raises:
            StateError: it is not there any more.
        """
        return [self._read(probe) for probe in probes]

    def _read(self, probe: Probe) -> Reference:
        reference = self._kept.read(_facts_within(probe))
        if reference is None:
            raise StateError(f"`{self._folder}` has lost what was said before edit `{probe.edit}`", "use --again")
        return reference

    def forget(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)


class _Kept:
    """References in a folder, a file each, named after what was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, facts: Sequence[object]) -> bool:
        return self._path(facts).exists()

    def read(self, facts: Sequence[object]) -> Reference | None:
        try:
            with safe_open(self._path(facts), framework="pt") as file:
                top = file.get_tensor("top") if "top" in file.keys() else None  # noqa: SIM118 (no mapping)
                return Reference(tuple(file.get_tensor("tokens").tolist()), file.get_tensor("logits"), top)
        except (OSError, SafetensorError):
            return None

    def write(self, facts: Sequence[object], reference: Reference) -> None:
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {"tokens": torch.tensor(reference.tokens), "logits": reference.logits.contiguous()}
        tensors |= {} if reference.top is None else {"top": reference.top.contiguous()}
        with replacing(self._path(facts)) as scratch:
            scratch.write_bytes(save(tensors))

    def _path(self, facts: Sequence[object]) -> Path:
        return self._folder / f"{sha256_bytes(canonical_json(facts).encode())[:32]}.safetensors"


def _facts_within(probe: Probe) -> list[object]:
    """Return what names a probe within a run: two edits may ask the same at different times."""
    return [probe.edit, [image.sha256 for image in probe.query.images], probe.query.question]
