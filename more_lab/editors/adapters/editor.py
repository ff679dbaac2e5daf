"""VisEdit and DualEdit: adapters, trained once, that let a question's tokens read the last correction.

Chen et al., "Attribution Analysis Meets Model Editing: Advancing Knowledge Correction in Vision Language Models with
VisEdit" (AAAI 2025): one adapter that changes what the image's tokens say. Shi et al., "DualEdit: Dual Editing for
Knowledge Updating in Vision-Language Models" (2025): one for the image's tokens and one for the text's, each at its
layer, that act where the question's last token is near the correction's. Both are made for single corrections: the next
one takes the place of the last, as published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, refused, score_edit
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.taps import Rows, Tap
from more_cli.recipe.tables import Table
from more_lab.editors.liveedit.fitted import FittedEditor, layers_behind
from more_lab.editors.liveedit.losses import KINDS, LOCALITY, Draw, divergence
from more_lab.editors.liveedit.samples import Samples, image_places

GATE = "gate"
"""Name, in the state, of the feature that a question's is compared with."""
Seen = Literal["image", "text"]


class AdapterTuning(Table):
    """The numbers of the adapters and of their training; the published ones are for models of 3 to 8 billion."""

    depth: float = Field(default=18 / 32, ge=0, lt=1)
    """Depth, as a share of the text layers, behind which the image's tokens are changed: layer 18 of 32."""
    width: int = Field(default=64, ge=1)
    """Size of queries, keys and values, a multiple of `heads`; published 1024."""
    heads: int = Field(default=4, ge=1)
    """Attention heads, published 8."""
    iterations: int = Field(default=40_000, ge=0)
    """Batches at most; training ends where watched edits gain nothing, see `fitting.Watch`."""
    batch: int = Field(default=8, ge=1)
    """Corrections per batch, as published for LiveEdit."""
    variants: int = Field(default=0, ge=0)
    """How often each correction is also trained with the target of another one."""
    rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam; a tenth of it from the first plateau on. Published 1e-4."""
    seed: int = Field(default=0, ge=0)
    """Seed of the networks' initial values, of the variants and of the batches."""


class DualTuning(AdapterTuning):
    """The numbers of DualEdit, beside those of VisEdit."""

    depth: float = Field(default=19 / 32, ge=0, lt=1)
    """As in VisEdit: layer 19 of 32."""
    text_depth: float = Field(default=16 / 32, ge=0, lt=1)
    """Depth behind which the text's tokens are changed: layer 16 of 32."""
    near: float = Field(default=0.8, ge=-1, le=1)
    """Least cosine of the last prompt tokens' states, behind the text's layer, at which the adapters act."""


class Adapter(nn.Module):
    """h + m(h) O attention(Q h, K s, V s), for hidden states h of a question and s of an edit at one layer.

    m, the influence mapper, is between 0 and 1 for each token: how much it has to say. O is zero at first, so that an
    adapter that was not trained changes nothing. Source: Chen et al. 2025 (VisEdit), section 4.
    """

    def __init__(self, hidden: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Q, self.K, self.V = (nn.Linear(hidden, width) for _ in range(3))
        self.O = nn.Linear(width, hidden)
        nn.init.zeros_(self.O.weight)
        nn.init.zeros_(self.O.bias)
        self.influence = nn.Sequential(nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, 1), nn.Sigmoid())

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        """Return what is added to tokens (T, hidden), from an edit's signal (S, hidden)."""
        size = tokens.detach().square().mean().sqrt()  # hidden states of other models have other sizes
        h, s = tokens / size, signal / signal.square().mean().sqrt()
        q, k, v = (
            part(rows).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for part, rows in ((self.Q, h), (self.K, s), (self.V, s))
        )
        taken = scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        added: Tensor = self.influence(h) * self.O(taken) * size
        return added


@dataclass(frozen=True)
class Route:
    """What acts on one prompt."""

    shown: Tensor
    """(T,) bool, true at the prompt's image tokens."""
    signals: tuple[Tensor, ...]
    """The correction's hidden states (S, hidden) at each adapter's layer."""


@editor("visedit", tries=tries(rate=(0.0003, 0.003), depth=(0.4, 0.7), width=(32, 128), heads=(2, 8)))
class VisEdit(FittedEditor[nn.ModuleList]):
    """Changes what an image's tokens say, by the last correction; text alone never changes."""

    name: ClassVar[str]
    tuning: AdapterTuning

    def __init__(self, tuning: AdapterTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._signals: dict[str, Tensor] = {}

    @property
    def acts(self) -> list[tuple[float, Seen]]:
        """Depth of each adapter, and which tokens it changes; the first one comes first."""
        return [(self.tuning.depth, "image")]

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Let the adapters act behind their layers; on leaving, the model is restored."""
        layers = layers_behind(runtime, [depth for depth, _ in self.acts], f"`{self.name}`")
        # One part for each layer: in a shallow model both adapters can act at the same one.
        taps = [Tap(layer, partial(self._act, layer), "input") for layer in dict.fromkeys(layers)]
        with self.working_on(runtime, layers), runtime.attached(taps, self):
            yield

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[Route | None]:
        """Return what acts on each prompt: the last correction, on prompts with an image."""
        if self._given is not None:
            return self._given
        if not self._signals:
            return [None] * len(prompts)
        signals = tuple(self._signals[str(number)] for number in range(len(self.acts)))
        near = self._near(prompts)
        return [
            Route(image_places(self.runtime, one), signals) if acts else None
            for one, acts in zip(prompts, near, strict=True)
        ]

    @property
    def _gate(self) -> str:
        """The layer at whose input a question is compared with the correction: that of the text's adapter, if any."""
        seen = [which for _, which in self.acts]
        return self.working[1][seen.index("text") if "text" in seen else 0]

    def _near(self, prompts: Sequence[Encoded]) -> list[bool]:
        return [bool(prompt.images) for prompt in prompts]

    def _act(self, layer: str, hidden: Tensor, rows: Rows) -> Tensor:
        if not rows.routed or not bool(rows.prompt.any()):
            return hidden
        changed = list(hidden.unbind(0))
        for number in (place for place, own in enumerate(self.working[1]) if own == layer):
            for row in rows.routed:
                changed[row] = self._changed(number, changed[row], rows.prompt[row], rows.routes[row])
        return torch.stack(changed)

    def _changed(self, number: int, hidden: Tensor, prompt: Tensor, route: Route) -> Tensor:
        """Return the hidden states (T, d) of one row after an adapter."""
        shown = route.shown.to(hidden.device)
        places = prompt.nonzero()[:, 0][shown if self.acts[number][1] == "image" else ~shown]
        tokens = hidden[places].float()  # in float32, the precision of the networks
        if not len(tokens):
            return hidden
        added = self.net[number](tokens, route.signals[number].to(hidden.device))
        return hidden.index_add(0, places, added.to(hidden.dtype))

    def losses(self, samples: Sequence[Samples], seed: int) -> Callable[[int], Tensor]:
        """Return a function that gives the loss on the batch of a number: the three of VisEdit, of weight 1 each."""
        count = len(samples[0].blind) // KINDS

        def loss(number: int) -> Tensor:
            records = Draw.of(count, self.tuning.batch, seed, number).records
            places = [KINDS * record + kind for kind in range(KINDS) for record in records]
            size = len(records)
            signals = list(zip(*(each.states(places[:size]) for each in samples), strict=True)) * KINDS
            shown = [image_places(self.runtime, samples[0].blind[place].prompt) for place in places]
            edited = self.score(samples[0], places, list(map(Route, shown, signals)))
            base = self.score(samples[0], places[LOCALITY * size :], None)
            learnt = edited[: LOCALITY * size].nll().view(LOCALITY, size).mean(1).sum()
            return learnt + divergence(edited[LOCALITY * size :], base, from_base=True)

        return loss

    def first(self, samples: Samples) -> nn.ModuleList:
        """Return adapters with their first values, on the model's device."""
        return self._fresh(samples.states([0])[0].shape[-1]).to(self.runtime.device)

    def as_large(self, tensors: dict[str, Tensor]) -> nn.ModuleList:
        """Return adapters of the size of these weights."""
        return self._fresh(tensors["0.Q.weight"].shape[1])

    def _fresh(self, hidden: int) -> nn.ModuleList:
        tuning = self.tuning
        if tuning.width % tuning.heads:
            raise StateError(f"{tuning.heads} heads do not divide width {tuning.width}", "choose heads that do")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tuning.seed)
            return nn.ModuleList(Adapter(hidden, tuning.width, tuning.heads) for _ in self.acts)

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Keep the hidden states of a correction, in place of the last one's; one without an image is refused."""
        (runtime, layers), net = self.working, self.net
        encoded = runtime.encode(request.query, request.target)
        first = score_edit(runtime, encoded)
        if not encoded.images:
            return refused(first, f"`{self.name}` acts on an image's tokens, and here is none", passes=1, cost=1 / 3)
        net.to(runtime.device)
        with runtime.base():
            (states,) = runtime.read([encoded], [(layer, "input") for layer in layers])
            # A gate is read from the prompt alone, as that of a question.
            (prompt,) = runtime.read([encoded.prompt], [(self._gate, "input")])
        self._signals = {str(number): state.cpu() for number, state in enumerate(states)}
        self._signals[GATE] = prompt[0][-1].cpu()
        return outcome(runtime, first, score_edit(runtime, encoded), writes=1, passes=4, cost=4 / 3)

    def reset(self) -> None:
        """Forget the correction; the adapters stay."""
        assert self._attached is None, "detach the editor first"
        self._signals = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the hidden states of the last correction."""
        return dict(self._signals)

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._signals = dict(tensors)


@editor("dualedit", tries=tries(rate=(0.0003, 0.003), near=(0.6, 0.9), depth=(0.4, 0.75), text_depth=(0.3, 0.7)))
class DualEdit(VisEdit):
    """Changes what image and text say, where a question is near the last correction."""

    tuning: DualTuning

    def __init__(self, tuning: DualTuning) -> None:
        super().__init__(tuning)

    @property
    def acts(self) -> list[tuple[float, Seen]]:
        found: list[tuple[float, Seen]] = [(self.tuning.depth, "image"), (self.tuning.text_depth, "text")]
        return sorted(found)

    def _near(self, prompts: Sequence[Encoded]) -> list[bool]:
        with self.runtime.base():
            last = torch.stack([row[-1] for (row,) in self.runtime.read(prompts, [(self._gate, "input")])])
        gate = self._signals[GATE].to(last)
        return (torch.cosine_similarity(last, gate[None]) >= self.tuning.near).tolist()
