"""The editor `norm`: trains the norm before the last text layer's feed-forward part."""

from __future__ import annotations

from pydantic import Field

from more_cli.editors.registry import editor, tries
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_lab.editors.trained import Copy, Trained
from more_lab.editors.training import TrainedEditor, Tuning


class NormTuning(Tuning):
    """The numbers of the training; `--set rate=0.1` changes one."""

    rate: float = Field(default=0.03, gt=0)
    """Learning rate: a norm has few weights, so it is higher than that of a matrix."""


@editor("norm", tries=tries(rate=(0.01, 0.1), steps=(10, 50)))
class NormEditor(TrainedEditor):
    """Trains the norm before the last text layer's feed-forward part."""

    def __init__(self, tuning: NormTuning) -> None:
        super().__init__(tuning)

    def parts(self, runtime: Runtime) -> list[Trained]:
        """Return a copy of that norm."""
        path = f"{text_layers(runtime.model, runtime.backbone)[-1]}.post_attention_layernorm"
        return [Copy(path, runtime.model.get_submodule(path))]
