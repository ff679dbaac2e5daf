"""A loaded model for editing: it scores targets, answers questions and carries branches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList

from more_cli.checkpoint.folder import GENERATION
from more_cli.checkpoint.norms import weight_norm
from more_cli.checkpoint.reader import Checkpoint
from more_cli.clock import timed
from more_cli.errors import StateError
from more_cli.model.activations import Activations, Pass
from more_cli.model.batches import Batch, Encoded, Query, Span, collate
from more_cli.model.branches import Part, attached
from more_cli.model.prefix import PrefixCache
from more_cli.model.prompts import Prompter
from more_cli.model.scored import Scored
from more_cli.model.structure import (
    find_backbone,
    frozen_text_layers,
    frozen_vision_layers,
    read_vision_layers,
    text_layers,
)
from more_cli.model.taps import Router, Rows, Side, Tap
from more_cli.model.vision import VisionCache, replaced_forward
from more_cli.model.widened import halves, widened
from more_cli.text import first_line

logger = logging.getLogger(__name__)

LOSS_SCALE = 1024.0
"""Factor on the loss of a float16 model before its backward pass, a power of two.

Output gradients of a nearly learnt edit lie below the smallest float16: unscaled, a loss of 0.01 nats on the demo
model gives a G that is wrong by 8 %, one of 0.001 by half.
"""
_IDS = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("_from_model_config", "transformers_version"),
}
"""What every checkpoint has among its generation settings."""
_GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
_GREEDY |= {"return_dict_in_generate": False, "penalty_alpha": None, "prompt_lookup_num_tokens": None}
"""Generation settings that make `generate` return the tokens of one greedy answer, whatever the checkpoint sets."""
_UNCHANGED = _IDS | {
    *_GREEDY,
    *("max_length", "max_new_tokens"),
    *("temperature", "top_k", "top_p", "min_p", "length_penalty"),
    *("use_cache", "cache_implementation", "output_attentions", "output_hidden_states"),
}
"""Generation settings that do not change which token is the most likely one, that we set ourselves, or that greedy
generation does not use."""
_NEUTRAL = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0}
SMALL = 1 << 28
"""Parameters of a model that is computed in float32 where `Runtime.in_float32` is asked to: a gigabyte then."""


class Runtime:
    """A model with its prompts; at most one editor is attached at a time."""

    def __init__(self, model: Any, prompter: Prompter, checkpoint: Checkpoint | None = None) -> None:
        self.model = model
        self.prompter = prompter
        self.checkpoint = checkpoint
        self.device = self._device(model.get_input_embeddings())
        self.loss_scale = LOSS_SCALE if model.dtype == torch.float16 else 1.0
        self.backbone = find_backbone(model)
        """Its parts as they were loaded: an editor may replace or wrap modules."""
        self._vision: VisionCache | None = None
        self._prefix: PrefixCache | None = None
        self._branches: tuple[Part, ...] = ()
        self._router: Router | None = None
        self._prepared: dict[tuple[Query, str | None], Encoded] = {}
        self._encoding = threading.Lock()
        self.activations = Activations.of(model, ())

    @contextmanager
    def attached(self, branches: Sequence[Part], router: Router | None = None) -> Iterator[None]:
        """Attach an editor's parts, and what decides how they act on a prompt; one editor at a time.

        Outputs of the vision layers before the first edited one are cached across passes, those of the text layers
        before it from one pass of a batch to the next.
        """
        assert not self._branches, "another editor is attached"
        # Computed before anything is attached: a part may replace its module.
        modules = [part.module for part in branches]
        caches = self._caches(modules)
        self.activations = Activations.of(self.model, modules)
        with attached(self.model, branches):
            self._branches, self._router = tuple(branches), router
            self._vision, self._prefix = caches
            self._scale(self.loss_scale)
            try:
                yield
            finally:
                self._branches, self._vision, self._prefix, self._router = (), None, None, None

    def _caches(self, modules: Sequence[str]) -> tuple[VisionCache | None, PrefixCache | None]:
        """Return empty caches of what edits of these modules cannot change."""
        vision = prefix = None
        if frozen := frozen_vision_layers(self.model, self.backbone, modules):
            kept = read_vision_layers(self.model, self.backbone, frozen)
            vision = VisionCache(self.model, frozen, kept, text_layers(self.model, self.backbone)[0])
        if frozen := frozen_text_layers(self.model, self.backbone, modules):
            prefix = PrefixCache(self.model, frozen)
        return vision, prefix

    def _scale(self, loss_scale: float) -> None:
        self.loss_scale = loss_scale
        for branch in self._branches:
            branch.loss_scale = loss_scale

    def device_of(self, module: str) -> torch.device:
        """Return the device that a Linear computes on."""
        return self._device(self.model.get_submodule(module))

    @staticmethod
    def _device(module: Any) -> torch.device:
        device: torch.device = module.weight.device
        if device.type != "meta":
            return device
        return torch.device(module._hf_hook.execution_device)  # offloaded: accelerate brings the weight there

    def norm(self, module: str, disk_key: str) -> float:
        """Return |W|_F of a Linear, from its file: an offloaded weight is in memory only while it is used."""
        if self.checkpoint is None:
            return float(torch.linalg.vector_norm(self.model.get_submodule(module).weight.detach().float()))
        return weight_norm(self.checkpoint, disk_key)

    @contextmanager
    def base(self) -> Iterator[None]:
        """Run without the attached branches: the checkpoint as it was."""
        enabled = [branch for branch in self._branches if branch.enabled]
        router, self._router = self._router, None
        for branch in enabled:
            branch.enabled = False
        try:
            yield
        finally:
            self._router = router
            for branch in enabled:
                branch.enabled = True

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute a small bfloat16 or float16 model on a CPU in float32, for what a network learns before an edit.

        No gradient is rounded, and no product converts its weights. Afterwards the weights are those of before, bit for
        bit.
        """
        if self.device.type != "cpu" or sum(half.numel() for half in halves(self.model)) > SMALL:
            yield
            return
        scale, caches = self.loss_scale, (self._vision, self._prefix)
        self._scale(1.0)
        self._vision, self._prefix = self._caches([part.module for part in self._branches])
        try:
            with widened(self.model):
                yield
        finally:
            self._scale(scale)
            self._vision, self._prefix = caches

    @contextmanager
    def remembering(self, capacity: int) -> Iterator[None]:
        """Keep what the text layers before the first edited one put out for many batches, not only for the last one.

        `capacity` is in bytes. A batch is recognised by its sequences, the very same objects.
        """
        if self._prefix is None:
            yield
            return
        self._prefix.capacity = capacity
        try:
            yield
        finally:
            self._prefix.capacity = 0
            self._prefix.trim(0)

    def encode(self, query: Query, target: str | None = None) -> Encoded:
        """Tokenise one question, as the attached editor asks it, with its target when there is one."""
        if self._router is not None:
            query = self._router.rewrite(query)
        with self._encoding:
            return self._prepared.pop((query, target), None) or self.prompter.encode(query, target)

    def prepare(self, query: Query, target: str) -> None:
        """Encode ahead, from any thread, and keep the result for the next `encode` of this question and target."""
        with self._encoding:
            self._prepared[query, target] = self.prompter.encode(query, target)

    def batch(self, sequences: Sequence[Encoded]) -> Batch:
        """Pad encoded sequences into the tensors of one pass."""
        tokenizer = self.prompter.tokenizer
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        return collate(sequences, padding, self.device)

    def image_tokens(self, batch: Batch) -> Tensor:
        """Return (N, T) bool, true where the sequence that ends in the answer holds image features.

        Nowhere in the decoder of an encoder-decoder, which reads them in its cross-attention.
        """
        if self._image_token is None or "decoder_input_ids" in batch.inputs:
            return torch.zeros_like(batch.answer)
        places: Tensor = batch.inputs["input_ids"] == self._image_token
        return places

    @property
    def _image_token(self) -> int | None:
        config = self.model.config
        token: int | None = getattr(config, "image_token_id", None)
        return getattr(config, "image_token_index", None) if token is None else token

    def parts(self, samples: Iterable[Encoded], kind: Pass) -> Iterator[list[Encoded]]:
        """Split samples, in order, into passes that fit into memory."""
        return self.activations.parts(samples, kind, lambda sample: len(sample.input_ids))

    @timed("forward")
    def score(
        self,
        batch: Batch,
        *,
        keys: bool = False,
        record: bool = False,
        add: bool = False,
        states: Sequence[Tensor] | None = None,
    ) -> Scored:
        """Run one pass and return the logits that predict the targets.

        With `keys`, the attached branches keep their coordinates. With `record` they do, and the result can be
        differentiated: the only gradients that exist are those of the branches. With `add` these are added to those
        of the passes before, so that a batch can be run in parts. With `states`, what `read` found at the input of the
        first text layer with a part, the pass begins there.
        """
        if states is not None:
            assert self._prefix is not None, "no text layer lies before the attached parts"
            padded = pad_sequence(list(states), batch_first=True, padding_side="left")
            self._prefix.hold(batch.sequences, padded.to(self.model.dtype))
        self._start_pass(batch)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad() if record else torch.no_grad())
            stack.enter_context(self._serving(batch))
            if self._prefix is not None:
                stack.enter_context(self._prefix.serving(batch.sequences))
            if keys or record:  # behind the others: to serve pictures the tower may run, which is not recorded
                stack.enter_context(self._recording(add))
            output = self._forward(batch)
        return Scored(output, batch.targets, batch.mask)

    def score_all(self, samples: Iterable[Encoded]) -> Iterator[Scored]:
        """Score samples, in order, as many at a time as fit into memory; a pass runs when its result is asked for."""
        return (self.score(self.batch(part)) for part in self.parts(samples, "forward"))

    @contextmanager
    def _recording(self, add: bool) -> Iterator[None]:
        for branch in self._branches:
            branch.start_recording(add=add)
        try:
            yield
        finally:
            for branch in self._branches:
                branch.recording = False

    @timed("backward")
    def backward(self, loss: Tensor) -> float:
        """Send the loss of a recorded pass back to the branches, and return it."""
        (self.loss_scale * loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def top_tokens(self, sample: Encoded, ranks: int) -> Tensor:
        """Return the ids of the most likely tokens at every position of one sequence, (T, ranks), on the CPU.

        In an encoder-decoder these are the positions of the answer's own sequence. One sequence at a time: all its
        logits are in memory.
        """
        batch = self.batch([sample])
        self._start_pass(batch)
        with torch.no_grad(), self._serving(batch):
            logits: Tensor = self._asked(batch)(**batch.inputs, use_cache=False).logits[0]
        return logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices.cpu()

    def read(self, samples: Sequence[Encoded], places: Sequence[tuple[str, Side]]) -> list[list[Tensor]]:
        """Return what modules take in or put out for each sample, one (T, d) float32 tensor per place.

        The forward pass ends behind the last of these modules.
        """
        return [row for part in self.parts(samples, "forward") for row in self._read(self.batch(part), places)]

    def finish(self, hidden: Tensor) -> Tensor:
        """Return the logits that the model makes of what its last text layer puts out, by its own norm and head.

        `hidden` is (N, T, d), the logits are (N, T, vocabulary) and can be differentiated. Nothing that is attached
        acts on them. Not for an encoder-decoder.
        """
        alone = self.prompter.family.language_model
        model = self.model.get_submodule(alone) if alone else self.model
        tokens = torch.full(hidden.shape[:2], self.prompter.eos, device=self.device)  # which ones makes no difference
        with self.base(), ExitStack() as stack:
            for path in text_layers(self.model, self.backbone):
                layer = self.model.get_submodule(path)
                stack.enter_context(replaced_forward(layer, lambda *_, **__: hidden.to(self.model.dtype)))
            logits: Tensor = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
        return logits.to(self.device)

    def _read(self, batch: Batch, places: Sequence[tuple[str, Side]]) -> list[list[Tensor]]:
        self._start_pass(batch)
        found = dict[int, Tensor]()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._serving(batch))
            for place, (module, side) in enumerate(places):
                keep = partial(_keep, found, place, len(places))
                tap = Tap(module, keep, side)
                tap.start_pass(batch, [None] * len(batch))
                stack.callback(tap.insert(self.model))
            stack.enter_context(suppress(_Enough))
            self._asked(batch)(**batch.inputs, use_cache=False)
        for place, hidden in found.items():  # OPT's feed-forward part takes all tokens of a batch in one dimension
            found[place] = hidden.reshape(len(batch.sequences), -1, hidden.shape[-1])
        lengths = [len(sequence.answering[0]) for sequence in batch.sequences]
        return [[found[place][row, -length:] for place in range(len(places))] for row, length in enumerate(lengths)]

    def _start_pass(self, batch: Batch) -> None:
        taps = [part for part in self._branches if isinstance(part, Tap) and part.enabled]
        if taps:
            routes: Sequence[Any] = [None] * len(batch)
            if self._router is not None:
                routes = self._router.routes([sequence.prompt for sequence in batch.sequences])
            for tap in taps:
                tap.start_pass(batch, routes)

    @property
    def picks_most_likely(self) -> bool:
        """Whether `generate` always takes the most likely token: the checkpoint neither penalises nor bans tokens."""
        settings: dict[str, Any] = self.model.generation_config.to_diff_dict()
        return all(
            name in _UNCHANGED or value is None or value == _NEUTRAL.get(name) for name, value in settings.items()
        )

    def generate(self, queries: Sequence[Query], max_new_tokens: int) -> list[list[int]]:
        """Answer questions greedily; each answer ends with the end-of-sequence token unless it was cut off."""
        prompts = (self.encode(query) for query in queries)
        return [ids for part in self.parts(prompts, "answer") for ids in self._answers(part, max_new_tokens)]

    def questions(self, count: int, max_new_tokens: int, seed: int) -> list[str]:
        """Sample what the model puts where a user's question without a picture stands.

        The same seed gives the same texts on one machine. They may repeat, and be cut off. There are none from an
        encoder-decoder, nor from a model that takes no question without a picture.
        """
        before, _ = self.prompter.turn()
        unasked = self.prompter.family.refuses(0, alone=True)
        if not before or unasked or self.prompter.decoder_start is not None:
            return []
        turn = Encoded(torch.tensor(before), Span(len(before), len(before)))
        drawn = _Drawn(seed)
        parts = self.parts([turn] * count, "answer")
        return [self.prompter.asked(ids) for part in parts for ids in self._answers(part, max_new_tokens, drawn)]

    def _answers(self, prompts: Sequence[Encoded], max_new_tokens: int, drawn: _Drawn | None = None) -> list[list[int]]:
        batch = self.batch(prompts)
        self._start_pass(batch)
        with torch.no_grad(), self._serving(batch), self._blaming_settings():
            tokens = self._asked(batch).generate(
                **batch.inputs,
                **_GREEDY,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(self.prompter.stops),
                pad_token_id=self.prompter.eos,
                # No answer: it stands for features of an image that there is not.
                suppress_tokens=None if self._image_token is None else [self._image_token],
                logits_processor=LogitsProcessorList([drawn] if drawn else []),
            )
        begun = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
        return [self._until_end(row) for row in tokens[:, begun.shape[1] :].tolist()]

    @contextmanager
    def _blaming_settings(self) -> Iterator[None]:
        """Name the checkpoint's generation settings where these may be why transformers cannot generate.

        It checks few of their values when it reads them.
        """
        try:
            yield
        except (TypeError, ValueError) as error:
            odd = self.model.generation_config.to_diff_dict().keys() - _IDS
            if not odd or self.checkpoint is None:
                raise
            what = f"`{self.checkpoint.path / GENERATION}` does not work: {first_line(error)}"
            raise StateError(what, f"correct or remove what it sets: {', '.join(sorted(odd))}") from error

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = [ids.index(stop) for stop in self.prompter.stops if stop in ids]
        return ids[: min(ends) + 1] if ends else ids

    def _forward(self, batch: Batch) -> Tensor:
        # An encoder-decoder's decoder reads little beside the answer, so all its logits are computed.
        apart = "decoder_input_ids" in batch.inputs
        kept = {} if apart else {"logits_to_keep": batch.keep}
        logits: Tensor = self._asked(batch)(**batch.inputs, **kept, use_cache=False).logits
        logits = logits.to(self.device)  # the last layer may lie elsewhere than the targets
        return logits[:, batch.keep] if apart else logits

    def _asked(self, batch: Batch) -> Any:
        """Return the model, or its language model alone for text-only inputs that the whole model cannot take."""
        alone = self.prompter.family.language_model
        seen = any(sequence.images for sequence in batch.sequences)
        return self.model if seen or not alone else self.model.get_submodule(alone)

    @contextmanager
    def _serving(self, batch: Batch) -> Iterator[None]:
        shown = [sequence for sequence in batch.sequences if sequence.images]
        # Without an editor, too, the tower sees one question's images at a time: other sizes are rounded otherwise.
        vision = self._vision or self._caches(())[0]
        if vision is None or not shown:
            yield
            return

        def run(place: int) -> None:
            with self.base():
                self.model(**self.batch([shown[place]]).inputs, use_cache=False)

        with vision.serving([sequence.images for sequence in shown], run):
            yield


class _Drawn(LogitsProcessor):  # type: ignore[misc]
    """Makes the most likely token a random one: the largest of logits with Gumbel noise is drawn by their softmax."""

    def __init__(self, seed: int) -> None:
        # Of its own and on the CPU: the process's generators stay as they are, and devices agree.
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (n, vocabulary) with noise."""
        uniform = torch.rand(scores.shape, generator=self._generator, dtype=torch.float64).clamp(min=1e-300)
        return scores + -(-uniform.log()).log().to(scores)


class _Enough(Exception):
    """Ends a forward pass whose rest nobody reads."""


class Unended(Runtime):
    """The same model for an editor that is taught targets without the token that ends them."""

    def __init__(self, runtime: Runtime) -> None:
        self.__dict__ = runtime.__dict__  # one state: what one attaches, the other has

    def encode(self, query: Query, target: str | None = None) -> Encoded:
        """Tokenise one question, with its target up to its end."""
        encoded = super().encode(query, target)
        return encoded if target is None else encoded.unended


def _keep(found: dict[int, Tensor], place: int, places: int, hidden: Tensor, rows: Rows) -> Tensor:
    found[place] = hidden.float()
    if len(found) == places:
        raise _Enough
    return hidden
