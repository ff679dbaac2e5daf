"""`--keep DIR`: what a run keeps for `more analyze` beside its journal.

updates/00003.safetensors   edit 3's change of every weight that it wrote, `<module>.left` and `<module>.right`
                            or `<module>.delta`, the change itself
right.safetensors           right factors before the first edit, such as M-ORE's A; updates that lack one share it
states/00010.safetensors    after 10 edits, of every locality probe: hidden state, margin, probability of the answer
answers/00010.json          after 10 edits, the answers to a suite of yes/no questions

Each file is written whole before the journal's line of its edit, so an interrupted run writes it again, the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from more_cli.editors.base import Editor
from more_cli.errors import DataError
from more_cli.evaluation.probes import BATCH
from more_cli.files import sha256_file, write_whole
from more_cli.model.batches import Encoded
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.ops.capability import ask_all, pairs_of
from more_cli.progress import Progress, no_progress
from more_cli.suites.load import YesNoSuite
from more_cli.text import canonical_json
from more_lab.experiments.record import Asked, RunRecord
from more_lab.experiments.updates import compact, minus

UPDATES, STATES, ANSWERS = "updates", "states", "answers"
RIGHT = "right.safetensors"


@dataclass(frozen=True)
class Keep:
    """What a run keeps."""

    folder: Path
    updates: bool = False
    states: bool = False
    questions: YesNoSuite | None = None
    """Yes/no questions that are asked at every checkpoint and before the first edit."""

    @property
    def facts(self) -> list[object]:
        """What decides the files, for the key of the run."""
        return [self.updates, self.states, _asked(self.questions) if self.questions else None]


def _asked(suite: YesNoSuite) -> list[object]:
    """Return what a suite asks, whatever the folder is called."""
    facts: list[object] = [suite.name]
    for image in (image for category in suite.categories.values() for image in category):
        seen = sha256_file(image.path) if image.path.is_file() else ""  # a missing one is refused when it is opened
        facts.append([image.category, seen, [[asked.question, asked.answer] for asked in image.questions]])
    return facts


def numbered(folder: Path, kind: str, t: int, suffix: str = ".safetensors") -> Path:
    """Return the file of a kind for the model after `t` edits."""
    return folder / kind / f"{t:05}{suffix}"


class Keeper:
    """Writes what a run keeps, while it runs."""

    def __init__(self, keep: Keep, record: RunRecord, progress: Progress = no_progress) -> None:
        self._keep, self._record, self._progress = keep, record, progress
        self._marks = {0, *record.schedule.marks}
        self._shared: dict[str, Tensor] = {}
        self._before: dict[str, Change] = {}

    def begin(self, runtime: Runtime, editor: Editor, t: int) -> None:
        """Take the editor as it is after `t` edits, attached; before the first one, keep what the base does."""
        if self._keep.updates:
            path = self._keep.folder / RIGHT
            if t == 0:
                found = editor.changes()
                _write(path, {name: change.right for name, change in found.items() if change.right is not None})
            self._shared = read_tensors(path)
            self._before = self._changes(editor)
        if t == 0:
            self._mark(runtime, 0)

    def after(self, runtime: Runtime, editor: Editor, t: int) -> None:
        """Keep what edit `t` did."""
        if self._keep.updates:
            now = self._changes(editor)
            updates = {path: minus(change, self._before[path]) for path, change in now.items()}
            _write(numbered(self._keep.folder, UPDATES, t), self._tensors(updates))
            self._before = now
        if t in self._marks:
            self._mark(runtime, t)

    def _tensors(self, updates: Mapping[str, Change]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for path, change in updates.items():
            if not bool(change.left.any()):
                continue
            small = compact(change)
            tensors[f"{path}.{'delta' if small.right is None else 'left'}"] = small.left
            if small.right is not None and (change.right is None or change.right is not self._shared.get(path)):
                tensors[f"{path}.right"] = small.right
        return tensors

    def _changes(self, editor: Editor) -> dict[str, Change]:
        """Return copies, since some editors train in place; an unchanged right factor is the shared one itself."""
        found = {}
        for path, change in editor.changes().items():
            right, shared = change.right, self._shared.get(path)
            if right is not None:
                right = right.detach().float().cpu()
                right = shared if shared is not None and torch.equal(right, shared) else right.clone()
            found[path] = Change(change.left.detach().float().cpu().clone(), right)
        return found

    def _mark(self, runtime: Runtime, t: int) -> None:
        with runtime.base() if t == 0 else nullcontext():
            if self._keep.states and self._record.probes:
                found = _states(runtime, self._record.probes)
                if t == 0:
                    found |= _pictures(runtime, self._record)
                _write(numbered(self._keep.folder, STATES, t), found)
            if suite := self._keep.questions:
                answers = ask_all(runtime, suite, self._progress, f"asking {suite.name} after {t} edits")
                pairs = {name: pairs_of(images, answers[name]) for name, images in suite.categories.items()}
                text = canonical_json({"suite": suite.name, "categories": pairs})
                write_whole(numbered(self._keep.folder, ANSWERS, t, ".json"), f"{text}\n".encode())


def _states(runtime: Runtime, probes: Sequence[Asked]) -> dict[str, Tensor]:
    """Return, per probe, what the model does where it begins to answer.

    `state` (n, d) is the last text layer's output at the last token of the prompt, `margin` (n,) the lead of the most
    likely first token's logit over the next, `gold` (n,) the mean probability of the gold answer's tokens, NaN
    without one.
    """
    last = text_layers(runtime.model, runtime.backbone)[-1]
    states, margins, golds = [], [], []
    for start in range(0, len(probes), BATCH):
        group = probes[start : start + BATCH]
        prompts = [runtime.encode(probe.query) for probe in group]
        states += [found[-1].cpu() for (found,) in runtime.read(prompts, [(last, "output")])]
        answers = [_answered(runtime, probe, prompt) for probe, prompt in zip(group, prompts, strict=True)]
        for scored in runtime.score_all(answers):
            first = scored.mask.long().argmax(dim=1)
            logits = scored.logits.float()[torch.arange(len(first), device=first.device), first]
            top = logits.topk(2, dim=-1).values
            margins += (top[:, 0] - top[:, 1]).tolist()
            own = scored.log_probabilities().gather(-1, scored.targets[..., None])[..., 0].exp()
            golds += ((own * scored.mask).sum(dim=1) / scored.mask.sum(dim=1)).tolist()
    missing = torch.tensor([probe.answer is None for probe in probes])
    gold = torch.tensor(golds).masked_fill(missing, torch.nan)
    return {"state": torch.stack(states), "margin": torch.tensor(margins), "gold": gold}


def _answered(runtime: Runtime, probe: Asked, prompt: Encoded) -> Encoded:
    """Return a probe with its gold answer; without one, with a token that is there only to be predicted."""
    if probe.answer is None:
        return prompt.followed_by([runtime.prompter.eos])
    return runtime.encode(probe.query, probe.answer).unended


def _pictures(runtime: Runtime, record: RunRecord) -> dict[str, Tensor]:
    """Return the model's own mean image feature, as it enters the first text layer, of every edit and probe.

    `edit_image` (T, d) and `probe_image` (n, d); NaN without an image, or where the text layers read none as tokens.
    """
    return {"edit_image": _features(runtime, record.edits), "probe_image": _features(runtime, record.probes)}


def _features(runtime: Runtime, asked: Sequence[Asked]) -> Tensor:
    first = text_layers(runtime.model, runtime.backbone)[0]
    rows: list[Tensor | None] = []
    for one in asked:
        prompt = runtime.encode(one.query)
        places = runtime.image_tokens(runtime.batch([prompt]))[0].cpu()
        ((hidden,),) = runtime.read([prompt], [(first, "input")]) if bool(places.any()) else ((None,),)
        rows.append(None if hidden is None else hidden.cpu()[places].mean(dim=0))
    width = next((len(row) for row in rows if row is not None), 1)
    return torch.stack([torch.full((width,), torch.nan) if row is None else row for row in rows])


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_whole(path, save({name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a kept file, in float32.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"`{path}` is missing or damaged", "keep the run again") from error
    return {name: tensor.to(torch.float32) for name, tensor in found.items()}
