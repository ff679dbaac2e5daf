"""SERAC: corrections are kept as they are; questions that fall under one are answered by another network.

Mitchell et al. 2022, "Memory-Based Model Editing at Scale", in the form for vision-language models that LiveEdit (Chen
et al. 2025) compares with: the scope test reads the image too. It reads questions only, never an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from more_cli.editors.base import Capability, EditContext, Editor, EditOutcome, EditRequest, FitData
from more_cli.editors.outcome import outcome, score_edit
from more_cli.editors.registry import EditorOptions, editor, entry_of, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.model.taps import Rows, Tap
from more_lab.editors.attached import AttachedEditor
from more_lab.editors.serac.examples import input_embeddings
from more_lab.editors.serac.learning import learn
from more_lab.editors.serac.nets import SeracNets, Words, make_nets, similarity, width_within
from more_lab.editors.serac.tuning import SeracTuning


@dataclass(frozen=True)
class Kept:
    """One correction in the memory."""

    vector: Tensor
    """(3 width,) its vector of the scope encoder."""
    words: Words
    """Its question and target."""


SERAC = tries(none=(5.0, 7.0, 14.0, 20.0), rate=(0.001, 0.006), locality=(0.02, 1.0))


@editor("serac", tries=SERAC)
class SeracEditor(AttachedEditor[dict[int, Words]]):
    """A memory of corrections, a scope encoder that picks one for a question, and a network that answers from it."""

    capabilities: frozenset[Capability] = frozenset({"fit"})
    grows: ClassVar[bool] = True
    tuning: SeracTuning

    def __init__(self, tuning: SeracTuning) -> None:
        self.tuning = tuning
        self._nets: SeracNets | None = None
        self._memory: dict[int, Kept] = {}

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Answer by the counterfactual network where a correction is close enough; on leaving, the model is restored.

        Raises:
            StateError: the model is an encoder-decoder, or its image is no part of the text layers' input.
        """
        _require_one_sequence(runtime)
        layers = text_layers(runtime.model, runtime.backbone)
        if self._nets is not None:
            self._nets.to(runtime.device)
        self._memory = {number: _moved(kept, runtime.device) for number, kept in self._memory.items()}
        # What the last layer puts out goes through the model's own norm and head: replacing it replaces the logits.
        parts = [Tap(layers[0], self._listen, "input"), Tap(layers[-1], self._answer)]
        with self.working_on(runtime, {}), runtime.attached(parts, self):
            yield

    @property
    def nets(self) -> SeracNets:
        """Both networks, after the fit."""
        assert self._nets is not None, "fit the editor first"
        return self._nets

    def fit(self, data: FitData) -> dict[str, Any]:
        """Train both networks on a pool of corrections."""
        size = self.runtime.model.config.get_text_config(decoder=True).hidden_size
        most = self.tuning.share * sum(weight.numel() for weight in self.runtime.model.parameters())
        width = width_within(size, most, self.tuning) if most else self.tuning.width
        self._nets = make_nets(size, self.tuning, width).to(self.runtime.device)
        facts = learn(self.runtime, self._nets.train(), data, self.tuning)
        self._nets.eval()
        return facts | {"width": width, "parameters": sum(weight.numel() for weight in self._nets.parameters())}

    def fitted(self) -> dict[str, Tensor]:
        """Return the weights of both networks."""
        return {} if self._nets is None else dict(self._nets.state_dict())

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        """Restore the weights of both networks."""
        assert self._attached is None, "detach the editor first"
        width, size = tensors["scope.into.into.weight"].shape
        self._nets = make_nets(size, self.tuning, width)
        self._nets.load_state_dict(tensors)
        self._nets.eval()

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Keep one correction; those before it that no longer stand are dropped."""
        encoded = self.runtime.encode(request.query, request.target)
        self._memory = {number: kept for number, kept in self._memory.items() if number in context.past}
        first = score_edit(self.runtime, encoded)
        (embeddings,) = input_embeddings(self.runtime, [encoded])
        with torch.no_grad():
            (vector,) = self.nets.scope([embeddings])
        self._memory[context.number] = Kept(vector, Words(embeddings, len(encoded.target)))
        return outcome(self.runtime, first, score_edit(self.runtime, encoded), writes=1, passes=2, cost=2 / 3)

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[int | None]:
        """Return the number of the correction that each question falls under; None if it falls under none."""
        if not self._memory:
            return [None] * len(prompts)
        numbers = list(self._memory)
        kept = torch.stack([self._memory[number].vector for number in numbers])
        with torch.no_grad():
            close = similarity(self.nets.scope(input_embeddings(self.runtime, prompts)), kept)
        best, places = close.max(dim=1)
        return [
            numbers[place] if value >= self.tuning.none else None
            for value, place in zip(best.tolist(), places.tolist(), strict=True)
        ]

    def _listen(self, hidden: Tensor, rows: Rows) -> Tensor:
        """Keep the input embeddings of the questions that are answered from a correction, with their answers so far."""
        _, heard = self.working
        if rows.prompt.any():
            heard.clear()
        for row in rows.routed:
            if rows.prompt.any():
                prompt = rows.prompt[row].nonzero()[:, 0]
                words = hidden[row, int(prompt[0]) :], hidden.shape[1] - 1 - int(prompt[-1])
            else:  # a later step of a generation
                asked = heard[row]
                words = torch.cat([asked.embeddings, hidden[row].float()]), asked.answer + hidden.shape[1]
            heard[row] = Words(words[0].float(), words[1])
        return hidden

    def _answer(self, hidden: Tensor, rows: Rows) -> Tensor:
        """Put the counterfactual network's hidden states in the place of the base's."""
        _, heard = self.working
        changed = hidden.clone() if rows.routed else hidden
        for row in rows.routed:
            edit, asked = self._memory[rows.routes[row]].words, heard[row]
            last = min(len(asked.embeddings), hidden.shape[1])
            with torch.no_grad():
                (found,) = self.nets.counterfactual([edit], [asked], last)
            changed[row, -last:] = found.to(changed)
        return changed

    def reset(self) -> None:
        """Forget every correction; the networks stay."""
        assert self._attached is None, "detach the editor first"
        self._memory = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the vector, the input embeddings and the target's length of every correction, by its number."""
        found = dict[str, Tensor]()
        for number, kept in self._memory.items():
            values = kept.vector, kept.words.embeddings, torch.tensor(kept.words.answer)
            found |= {f"{number}.{part}": value.cpu() for part, value in zip(_PARTS, values, strict=True)}
        return found

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._memory = {}
        for number in sorted({int(name.partition(".")[0]) for name in tensors}):
            vector, embeddings, answer = (tensors[f"{number}.{part}"] for part in _PARTS)
            self._memory[number] = Kept(vector, Words(embeddings, int(answer)))


PUBLISHED = "share=0.03", "copier=false"


@editor("serac:small", tries=SERAC)
def small(options: EditorOptions) -> Editor:
    """Make SERAC with networks in the proportion of the published ones, and without what lets ours copy at once."""
    return entry_of("serac").make(options.with_settings(*PUBLISHED))


_PARTS = ("vector", "embeddings", "answer")


def _moved(kept: Kept, device: torch.device) -> Kept:
    return Kept(kept.vector.to(device), Words(kept.words.embeddings.to(device), kept.words.answer))


def _require_one_sequence(runtime: Runtime) -> None:
    """Refuse models in which image, question and answer are not one sequence of input embeddings."""
    text = runtime.model.config.get_text_config(decoder=True)
    if runtime.prompter.decoder_start is not None:
        reason = "an encoder-decoder's question and answer are two sequences"
    elif getattr(text, "cross_attention_layers", None):
        reason = "this model reads images by cross-attention, where its scope test cannot see them"
    else:
        return
    raise StateError(f"editor `serac` does not work on this model: {reason}", "choose another editor")
