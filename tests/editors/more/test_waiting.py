"""A write asks the device for values a fixed number of times, however many sites it writes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from more_cli.editors.anchors import make_anchor
from more_cli.editors.base import EditContext
from more_cli.editors.more.editor import MoreEditor
from more_cli.model import branches
from more_cli.model.backbones import Site
from more_cli.model.runtime import Runtime
from support.editing import recipe, requests

ASKING = {"tolist", "item", "cpu", "numpy", "__float__", "__bool__", "__int__", "__index__", "nonzero"}
"""Methods of a tensor for whose result a GPU has to finish all that it was given to do."""
aten = torch.ops.aten
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select}


class Asked(TorchFunctionMode):
    """Counts the questions that Python asks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(function, "__name__", "")) in ASKING:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


class Waited(TorchDispatchMode):
    """Counts operations whose result has a size, or is a number, that only the values tell."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = function.overloadpacket
        places = args[1] if packet in (aten.index, aten.index_put, aten.index_put_) else ()
        by_mask = any(place is not None and place.dtype == torch.bool for place in places)
        if packet in WAITING or by_mask:
            self.counts[str(packet)] += 1
        return function(*args, **(kwargs or {}))


def questions(runtime: Runtime, sites: list[Site], folder: Path, **values: Any) -> tuple[Counter[str], int]:
    """Return what one write asked, from its gradient to the scores after it, and how many sites it wrote."""
    # A fixed step and no halvings: the same number of passes for any sites.
    editor = MoreEditor.fresh(recipe(max_steps=1, halvings=0, **values), sites)
    (request,) = requests(folder, 1)
    with editor.attach(runtime):
        if editor.recipe.uses_anchors:
            anchors = [make_anchor(runtime, request.query, "a dog") for _ in range(2)]
            editor.start_from(anchors)
            editor.hold(anchors)
        editor.sites.steps(1.0, editor.recipe)  # |W| of every site is read from its file once
        passes = editor._passes_of(request, EditContext())
        passes.model.encoded.put(1, request)
        passes.begin()
        asked, waited = Asked(), Waited()
        with asked, waited:
            keys = editor.sites.keys(passes.batch([1]))
            steps = editor.sites.steps(passes.gradient([1]), passes.recipe)
            passes.write([1], steps)
        assert keys
        return asked.counts + waited.counts, len(steps)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"damping": 0.1},
        {"pooling": "none", "anchors": {"size": 2}},
        {"default": {"step": 0.01, "lambda": 2000.0}, "criterion": "margin"},
    ],
    ids=["default", "damped", "anchored", "fixed-step"],
)
def test_a_write_to_many_sites_asks_no_more_than_a_write_to_one(
    runtime: Runtime, sites: list[Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    monkeypatch.setattr(branches, "AT_ONCE", frozenset())  # as on a GPU
    text = [site for site in sites if site.modality == "text"]
    few, one = questions(runtime, text[-1:], tmp_path, **values)
    many, all_ = questions(runtime, sites, tmp_path, **values)
    assert (one, all_) == (1, len(sites))
    assert len(sites) >= 4
    assert many == few
    assert 0 < sum(many.values()) < 25, many


def test_what_the_device_form_leaves_out_changes_nothing_but_rounding(
    runtime: Runtime, sites: list[Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for at_once in (branches.AT_ONCE, frozenset()):
        monkeypatch.setattr(branches, "AT_ONCE", at_once)
        editor = MoreEditor.fresh(recipe(max_steps=3), sites)
        with editor.attach(runtime):
            for number, request in enumerate(requests(tmp_path), 1):
                editor.edit(request, EditContext(number))
        written.append(editor.state_dict())
    for name, value in written[0].items():
        assert value.any()
        torch.testing.assert_close(written[1][name], value, atol=1e-5, rtol=1e-4)


def test_the_count_sees_a_question_at_each_site(
    runtime: Runtime, sites: list[Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, _ = questions(runtime, sites[-1:], tmp_path)
    many, _ = questions(runtime, sites, tmp_path)
    assert sum(many.values()) > sum(few.values()), "on a CPU each site is asked which rows have a gradient"
