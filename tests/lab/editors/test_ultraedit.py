"""UltraEdit, compared with its closed form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_lab.editors.moments import Moments
from more_lab.editors.ultraedit import UltraEditor, UltraTuning, shift
from more_lab.editors.work import Work
from support.editing import an_edit, assert_continues, requests

PATHS = [f"model.language_model.layers.{layer}.mlp.down_proj" for layer in (2, 3)]


def fitted(runtime: Runtime, folder: Path, **values) -> UltraEditor:
    editor = UltraEditor(UltraTuning(**({"step": 1.0} | values)))
    with editor.attach(runtime):
        editor.fit(FitData([an_edit(folder)]))
    return editor


def solution(H: Tensor, G: Tensor, before: Tensor, step: float, ridge: float) -> Tensor:
    """The write as the paper states it: the d_in x d_in system, statistics from all rows at once, in float64."""
    rows = torch.cat([before, torch.cat([H, G], dim=1)]).double()
    spread = rows.std(dim=0)
    normal = torch.where(spread > 0, (rows - rows.mean(dim=0)) / spread, 0)[-len(H) :]
    h, g = normal[:, : H.shape[1]], normal[:, H.shape[1] :]
    V = -(step / H.shape[1]) * h.square().sum(dim=1, keepdim=True) * g
    penalty = ridge * rows[:, : H.shape[1]].square().sum(dim=1).mean()
    H = H.double()
    return torch.linalg.solve(H.T @ H + penalty * torch.eye(H.shape[1], dtype=torch.float64), H.T @ V).T


@pytest.mark.parametrize("tokens", [1, 4])
def test_one_write_equals_the_closed_form(tokens: int) -> None:
    draw = torch.Generator().manual_seed(tokens)
    before, now = torch.randn(30, 11, generator=draw), torch.randn(tokens, 11, generator=draw)
    moments = Moments(11)
    moments.add(before)
    moments.add(now)
    found = shift(moments, now[:, :7], now[:, 7:], step=0.3, ridge=2.0)
    expected = solution(now[:, :7], now[:, 7:], before, 0.3, 2.0)
    assert found.dtype == torch.float64
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_an_edit_writes_every_module_from_one_backward_pass(runtime: Runtime, tmp_path: Path) -> None:
    """Both FFN outputs have one shape, so they share the statistics; neither gradient sees the other's write."""
    editor, (request, *_) = fitted(runtime, tmp_path, step=0.5), requests(tmp_path, 2)[1:]
    with editor.attach(runtime):
        assert editor.modules(runtime) == PATHS
        asked = [(an_edit(tmp_path).question, "7"), (request.query.question, request.target)]
        queries = [Query(an_edit(tmp_path).images, asked[0][0]), request.query]
        seen = []
        for query, (_, target) in zip(queries, asked, strict=True):
            encoded = runtime.encode(query, target)
            batch = runtime.batch([encoded])
            runtime.backward(runtime.score(batch, record=True).nll().mean())
            assert int(batch.answer.sum()) == len(encoded.target)
            seen.append([(d.inputs[batch.answer], d.gradients[batch.answer]) for d in editor.deltas.values()])
        outcome = editor.edit(request, EditContext())
        before = torch.cat([torch.cat(rows, dim=1) for rows in (*seen[0], *seen[1])])
        for delta, (H, G) in zip(editor.deltas.values(), seen[1], strict=True):
            others = torch.stack([row for row in before if not (row == torch.cat([H, G], dim=1)).all(dim=1).any()])
            expected = solution(H, G, others, 0.5, 1.0)
            torch.testing.assert_close(delta.value.double(), expected, rtol=1e-3, atol=1e-6)
    assert outcome.after.nll < outcome.before.nll
    assert (outcome.writes, outcome.passes) == (1, 3)


def test_edits_of_a_batch_are_one_system(runtime: Runtime, tmp_path: Path) -> None:
    """Its rows are those of all edits, each at the weights before the write; alone, an edit is a batch of one."""
    editor, asked = fitted(runtime, tmp_path, layers=1, step=0.5), requests(tmp_path, 3)[1:]
    encoded, work = [runtime.encode(one.query, one.target) for one in asked], Work()
    first = an_edit(tmp_path)
    with editor.attach(runtime):
        rows = []
        for one in (runtime.encode(Query(first.images, first.question), first.target), *encoded):
            ((_, H, G),) = editor._read(one)
            rows.append((H, G))
        editor.write_together(encoded, (), work)
        (delta,) = editor.deltas.values()
        H, G = (torch.cat(parts) for parts in zip(*rows[1:], strict=True))
        expected = solution(H, G, torch.cat(rows[0], dim=1), 0.5, 1.0)
        torch.testing.assert_close(delta.value.double(), expected, rtol=1e-3, atol=1e-6)
    assert work.writes == 1


def test_a_first_edit_with_a_single_token_is_finite(model: Runtime, tmp_path: Path) -> None:
    """Without statistics from before, and with an answer that is the end token alone: one row in all."""
    runtime = model
    editor, (request, *_) = UltraEditor(UltraTuning(layers=1, step=1.0)), requests(tmp_path, 1)
    with editor.attach(runtime):
        prompt = runtime.encode(request.query)
        editor.write([prompt.followed_by([runtime.prompter.eos])], Work())
        assert all(bool(torch.isfinite(delta.value).all()) for delta in editor.deltas.values())
        following = editor.edit(request, EditContext(2))
        assert following.status in ("learnt", "not-learnt"), "the statistics are not poisoned"
        assert all(bool(torch.isfinite(value).all()) for value in editor.state_dict().values())


def test_the_statistics_start_warm_and_nothing_is_written_for_that(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = UltraEditor(UltraTuning(step=1.0)), requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    before = runtime.score(batch).logits
    with editor.attach(runtime):
        facts = editor.fit(FitData([an_edit(tmp_path)] * 3))
        assert torch.equal(runtime.score(batch).logits, before)
    answer = len(runtime.encode(request.query, request.target).target)
    assert facts == {"rows": {"64x96": 3 * 2 * answer}}, "three requests, two Linears"


def test_a_stream_continues_from_its_state_and_can_be_removed(model: Runtime, tmp_path: Path) -> None:
    runtime = model
    asked = [*requests(tmp_path, 3), EditRequest("text", Query((), "what colour is it ?"), "red")]
    whole, first, second = (fitted(runtime, tmp_path) for _ in range(3))
    kept = whole.fitted()
    assert_continues(runtime, whole, first, second, asked)
    assert all(torch.equal(value, kept[name]) for name, value in whole.state_dict().items()), "the warm statistics"
    assert whole.state_dict().keys() == kept.keys()


def test_a_refused_edit_leaves_the_statistics_as_they_were(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path, step=1e45), requests(tmp_path, 2)[1:]
    kept = editor.fitted()
    with editor.attach(runtime):
        assert editor.edit(request, EditContext()).status == "refused"
    assert all(torch.equal(value, kept[name]) for name, value in editor.state_dict().items())
