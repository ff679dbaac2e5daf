"""Fine-tuning on corrections one by one: FT-L and FT-M of the literature, with LiveEdit's constants."""

from __future__ import annotations

from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.families import Backbone
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_lab.editors.modules import ffn_outs, own_parameters
from more_lab.editors.trained import Copy, Trained
from more_lab.editors.training import TrainedEditor


@editor(
    "ft-l",
    tries=tries(("rate=0.0003", "steps=400"), rate=(0.003, 0.0003, 0.01), steps=(10, 100, 200, 400)),
)
class FineTuneText(TrainedEditor):
    """FT-L: the weight of the last text layer's FFN output, its bias left as it is."""

    def parts(self, runtime: Runtime) -> list[Trained]:
        """Return a copy of the last FFN output."""
        model, backbone = runtime.model, runtime.backbone
        paths = ffn_outs(model, backbone, text_layers(model, backbone)[-1:])
        if not paths:
            raise StateError("the last text layer has no FFN output that can be trained", "use another --editor")
        return [Copy(path, model.get_submodule(path), only=("weight",)) for path in paths]


@editor(
    "ft-m",
    tries=tries(("rate=0.0003", "steps=50"), rate=(0.003, 0.0003, 0.0001, 0.00003), steps=(10, 50, 100)),
)
class FineTuneVision(TrainedEditor):
    """FT-M: everything in the projector, or in the Q-Former where there is one.

    Questions without an image do not pass through it, so answers to text alone cannot change.
    """

    def parts(self, runtime: Runtime) -> list[Trained]:
        """Return copies of the modules there that have parameters.

        Raises:
            StateError: there are none.
        """
        paths = own_parameters(runtime.model, visual_adapter(runtime.backbone))
        if not paths:
            raise StateError("there is no projector to train: a plain language model has none", "use another --editor")
        return [Copy(path, runtime.model.get_submodule(path)) for path in paths]


def visual_adapter(backbone: Backbone) -> list[str]:
    """Return the paths of what adapts vision features to text: the Q-Former where there is one, or the projector."""
    root, found, _ = backbone.qformer_layers.partition("qformer")
    return [root + found] if found else list(backbone.projector)
