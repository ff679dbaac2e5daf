"""MEND: networks, fitted once, turn the gradient of an edit into an update of the last text layers' FFNs.

Mitchell et al., "Fast Model Editing at Scale" (ICLR 2022); for vision-language models Cheng et al., "Can We Edit
Multimodal Large Language Models?" (EMNLP 2023), whose objective this is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import FitData
from more_cli.editors.draws import pick
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.recipe.tables import Table
from more_lab.editors.deltas import Delta
from more_lab.editors.fitting import Watch, train
from more_lab.editors.joint import joint_loss
from more_lab.editors.mend.lessons import CACHED, Lessons
from more_lab.editors.mend.net import MendNet
from more_lab.editors.weights import WeightEditor
from more_lab.editors.work import Work

CLIP = 100.0
"""Largest norm of a gradient in training, as in all published versions."""
ROWS = "rows:"
"""Prefix of a path, in the name of the tensor that holds its number of token rows."""
Factors = tuple[Tensor, Tensor]
"""Inputs u (n, d_in) and output gradients delta (n, d_out) of one Linear, the rows without a gradient left out."""


class MendTuning(Table):
    """The numbers of MEND."""

    layers: int = Field(default=3, ge=1)
    """Text layers, the last ones, whose FFN weights are edited."""
    rank: int = Field(default=0, ge=0)
    """Rank of U V in the networks; 0 for an eighth of their coordinates, as the published 1920 is of 15,104."""
    iterations: int = Field(default=50_000, ge=1)
    """Steps of Adam at most; training ends where watched edits gain nothing, see `fitting.Watch`."""
    rate: float = Field(default=1e-4, gt=0)
    """Learning rate of the networks."""
    alpha: float = 1e-4
    """First value of every alpha; above zero an update ascends the loss until training has turned it."""
    alpha_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of alpha."""
    edit_weight: float = Field(default=0.1, ge=0)
    """c_e and c_i: weight of the NLL of the rephrased question, and of that with another image. In LiveEdit's code it
    equals that of locality."""
    locality_weight: float = Field(default=1.0, ge=0)
    """c_loc: weight of the KL from the base at each of the locality questions; Adam sees its ratio to the other."""
    objective: Literal["rephrased", "all"] = "rephrased"
    """What the NLL is of after an edit in training: other wordings and images, as in MMEdit, or the request too, as in
    LiveEdit's code."""
    accumulate: Literal["sum", "token_mean"] = "sum"
    """`sum` adds the products of all token rows to the weights, as the code of MEND and of MMEdit: nothing bounds it.
    Where edits have moved the weights, inputs and gradients leave the statistics of the fit, so z-scores and the next
    update grow with every edit. `token_mean` keeps the mean over the rows of all edits, as LiveEdit's code: Delta W
    stays below the largest update of a row, and earlier edits fade. No published code bounds the z-scores."""
    seed: int = Field(default=0, ge=0)
    """Seed of the networks' first values, and of the order of the records."""


@editor(
    "mend",
    tries=tries(
        ("rate=0.00003", "alpha_rate=0.00003", "alpha=0.00003"),
        ("rate=0.0003", "alpha_rate=0.0003", "alpha=0.0003"),
        ("accumulate=token_mean", "alpha_rate=0.001", "alpha=0.001"),
        ("accumulate=token_mean", "objective=all", "edit_weight=1.0", "alpha_rate=0.001", "alpha=0.001"),
        edit_weight=(0.03, 0.3),
        layers=(2, 4),
    ),
)
class MendEditor(WeightEditor):
    """Writes one gradient per edit, taken at the current weights and transformed by the fitted networks."""

    capabilities = frozenset({"fit"})
    tuning: MendTuning

    def __init__(self, tuning: MendTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._fitted: dict[str, Tensor] = {}
        self._net: Any = None
        self._rows: dict[str, Tensor] = {}

    def modules(self, runtime: Runtime) -> list[str]:
        """Return the FFN Linears of the last text layers, each layer's output ones last."""
        model, backbone = runtime.model, runtime.backbone
        leaves = (*backbone.text_ffn_in, *backbone.text_ffn_out)
        linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        layers = text_layers(model, backbone)[-self.tuning.layers :]
        paths = [path for layer in layers for leaf in leaves if (path := f"{layer}.{leaf}") in linears]
        if not paths:
            raise StateError("the last text layers have no FFN weights that can be edited", "use another --editor")
        return paths

    def fresh(self) -> Any:
        """Return networks with their first values for the attached model."""
        shapes = [(delta.value.shape[0], delta.value.shape[1]) for delta in self.deltas.values()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.tuning.seed)
            net = MendNet(shapes, self.tuning.rank, self.tuning.alpha)
        # Their statistics are in float64, which Apple's GPUs lack.
        return net.cpu() if self.runtime.device.type == "mps" else net.to(self.runtime.device)

    def fit(self, data: FitData) -> dict[str, Any]:
        """Train the networks on single edits: each starts from the base's weights."""
        net, tuning = self.fresh(), self.tuning
        asked = tuning.objective == "all"
        lessons, watched = (Lessons(self.runtime, pool, request=asked) for pool in (data.edits, data.watched))
        groups = [
            {"params": list(net.nets.parameters()), "lr": tuning.rate},
            {"params": [net.alpha], "lr": tuning.alpha_rate},
        ]

        def loss_of(iteration: int) -> Tensor:
            number = pick(len(data.edits), 1, tuning.seed, iteration)[0]
            return self._loss(net, lessons, number, counted=True)

        def held_out() -> float:
            found = [float(self._loss(net, watched, number).detach()) for number in range(len(watched))]
            return sum(found) / len(found)

        watch = Watch(held_out) if len(watched) else None
        with self.runtime.in_float32(), self.runtime.remembering(CACHED):
            facts = train(data, net, torch.optim.Adam(groups), tuning.iterations, loss_of, clip=CLIP, watch=watch)
        self.load_fitted({name: value.detach().cpu().clone() for name, value in net.state_dict().items()})
        return facts | {"alpha": [round(float(alpha), 6) for alpha in net.alpha.detach()]}

    def _loss(self, net: Any, lessons: Lessons, number: int, *, counted: bool = False) -> Tensor:
        """Return the loss of a lesson after its edit; `counted` factors are taken into the networks' statistics."""
        lesson = lessons[number]
        factors = self.factors([lesson.request])
        if counted:
            self.watch(net, factors)
        with edited(self.deltas, self.updates(net, factors)):
            edit, locality = lessons.losses(lesson)
        return self.tuning.edit_weight * edit + self.tuning.locality_weight * locality

    def watch(self, net: Any, factors: Iterable[Factors]) -> None:
        """Count factors in the statistics of the networks."""
        for place, found in enumerate(factors):
            net.watch(place, *(rows.to(net.alpha.device) for rows in found))

    def fitted(self) -> dict[str, Tensor]:
        """Return the networks' weights and the statistics of the factors."""
        return dict(self._fitted)

    def load_fitted(self, tensors: Mapping[str, Tensor]) -> None:
        self._fitted, self._net = dict(tensors), None

    def factors(self, edits: Sequence[Encoded], anchors: Sequence[Anchor] = ()) -> list[Factors]:
        """Return the factors of every edited weight's gradient, at the weights as they are.

        The sum over rows of delta u^T is the gradient of the edits' mean NLL, and of the anchors' mean KL.
        """
        self.runtime.backward(joint_loss(self.runtime, edits, anchors))
        return [_told(delta.inputs, delta.gradients) for delta in self.deltas.values()]

    def updates(self, net: Any, factors: Iterable[Factors]) -> list[Tensor]:
        """Return an update per weight, (d_out, d_in), that can be differentiated with respect to the networks."""
        found, device = [], net.alpha.device
        for place, (inputs, gradients) in enumerate(factors):
            update = net.update(place, inputs.to(device), gradients.to(device))
            found.append(update / max(1, len(inputs)) if self.tuning.accumulate == "token_mean" else update)
        return found

    def snapshot(self) -> Any:
        """Return every Delta W, and the numbers of token rows."""
        return super().snapshot(), dict(self._rows)

    def restore(self, before: Any) -> None:
        values, self._rows = before
        super().restore(values)

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Add one update, also for an edit that the model already answers, because the factors are normalised."""
        self.write_together(asked, (), work)

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Add one update, of the gradient of all of them; the networks were fitted on gradients of single edits."""
        assert self._fitted, "fit the editor first"
        if self._net is None:
            self._net = self.fresh()
            self._net.load_state_dict(self._fitted)
        factors = self.factors(edits, anchors)
        work.both(len(edits) + len(anchors))
        with torch.no_grad():
            updates = self.updates(self._net, factors)
        for (path, delta), update, (inputs, _) in zip(self.deltas.items(), updates, factors, strict=True):
            delta.value = self._accumulated(path, delta.value, update.to(delta.value.device), len(inputs))
        work.writes += 1

    def _accumulated(self, path: str, value: Tensor, update: Tensor, rows: int) -> Tensor:
        """Return Delta W after an update that is made of so many token rows."""
        if self.tuning.accumulate == "sum":
            return value + update
        before = int(self._rows.get(path, torch.tensor(0)))
        self._rows[path] = torch.tensor(before + rows)
        return (before * value + rows * update) / max(1, before + rows)

    def reset(self) -> None:
        """Go back to the base's weights; the fitted networks stay."""
        super().reset()
        self._rows = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return every Delta W, and with `token_mean` how many token rows it is the mean of."""
        return super().state_dict() | {f"{ROWS}{path}": rows for path, rows in self._rows.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: value for name, value in tensors.items() if not name.startswith(ROWS)})
        self._rows = {name.removeprefix(ROWS): value for name, value in tensors.items() if name.startswith(ROWS)}


@contextmanager
def edited(deltas: Mapping[str, Delta], updates: Sequence[Tensor]) -> Iterator[None]:
    """Add updates that can be differentiated to Linears without edits, for as long as the context lasts."""
    for delta, update in zip(deltas.values(), updates, strict=True):
        delta.value = update.to(delta.value.device)
    try:
        yield
    finally:
        for delta in deltas.values():
            delta.clear()


def _told(inputs: Tensor, gradients: Tensor) -> Factors:
    """Return the factors of a pass, (N, T, d) or in OPT (N T, d), as rows (n, d) that add to the gradient."""
    u, delta = inputs.flatten(0, -2), gradients.flatten(0, -2)
    kept = u.any(dim=1) & delta.any(dim=1)
    return u[kept], delta[kept]
