"""ScopeEdit compared with its formulas in plain torch, on tiny models."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core.write import fold
from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.model.batches import Query, answer_positions
from more_cli.model.loading import load_runtime
from more_cli.model.runtime import Runtime
from more_lab.editors.scopeedit import ScopeEditor, ScopeTuning
from support.editing import an_edit, requests
from support.equations import closed_form
from support.tiny_families import tiny_family

LAYERS = [f"model.language_model.layers.{n}.mlp" for n in (2, 3)]
TEXT = [f"{layer}.{name}_proj" for layer in LAYERS for name in ("up", "down")]
PROJECTOR = [f"model.multi_modal_projector.linear_{n}" for n in (1, 2)]


def tuning(**values) -> ScopeTuning:
    return ScopeTuning.model_validate(
        {"rank": 16, "shared": 0.25, "depth": 0.5, "steps": 2, "eta_visual": 0.05, "locality": 0} | values
    )


def edited(runtime: Runtime, asked: list[EditRequest], editor: ScopeEditor) -> dict[str, torch.Tensor]:
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            assert editor.edit(request, EditContext(number)).status != "refused"
    return editor.state_dict()


def bases(runtime: Runtime, editor: ScopeEditor) -> dict[str, tuple[torch.Tensor, int]]:
    """A of every module, and how many of its rows are private."""
    with editor.attach(runtime):
        return {scope.branch.module: (scope.branch.A, scope.private) for scope in editor.working[1]}


class Written:
    """ScopeEdit as a researcher writes it: modules with B_p and B_s as parameters, and autograd."""

    def __init__(self, runtime: Runtime, A: dict[str, tuple[torch.Tensor, int]], numbers: ScopeTuning) -> None:
        self.runtime, self.numbers, self.model = runtime, numbers, copy.deepcopy(runtime.model)
        self.A = {path: (rows[:private], rows[private:]) for path, (rows, private) in A.items()}
        self.B = {
            path: [torch.zeros(self.model.get_submodule(path).out_features, len(rows)) for rows in pair]
            for path, pair in self.A.items()
        }
        self.P = {path: [torch.eye(len(rows), dtype=torch.float64) for rows in pair] for path, pair in self.A.items()}
        self.keys = {path: ([], []) for path in self.A}
        self.inputs: dict[str, torch.Tensor] = {}
        for path in self.A:
            self.model.get_submodule(path).register_forward_hook(self._hook(path))

    def _hook(self, path: str):
        def add(module, args, output):
            x = args[0]
            self.inputs[path] = x.detach()
            low = sum(x @ A.T @ B.T for A, B in zip(self.A[path], self.B[path], strict=True))
            return output + self.numbers.scale * low

        return add

    def step(self, request: EditRequest) -> None:
        encoded = self.runtime.encode(request.query, request.target)
        batch, ids = self.runtime.batch([encoded]), encoded.input_ids
        for pair in self.B.values():
            pair[:] = [B.detach().requires_grad_() for B in pair]
        self.inputs.clear()
        logits = self.model(**batch.inputs, use_cache=False).logits[0]
        where = answer_positions(encoded.target)
        torch.nn.functional.cross_entropy(logits[where], ids[encoded.target.start : encoded.target.stop]).backward()
        # The groups: two layers and the projector, of which two are written; a layer may share, the first one only.
        groups = {layer: [path for path in TEXT if path.startswith(layer)] for layer in LAYERS} | {"visual": PROJECTOR}
        size = {
            name: sum(0.0 if self.B[path][0].grad is None else float(self.B[path][0].grad.norm()) for path in paths)
            for name, paths in groups.items()
        }
        active = sorted(size, key=lambda name: -size[name])[:2]
        may_share = [name for name in active if name != "visual"][:1]
        for name in active:
            for path in groups[name]:
                if path in self.inputs:
                    self._write(path, name == "visual", name in may_share, where, ids == 4)

    def _write(self, path: str, visual: bool, may_share: bool, where: slice, image: torch.Tensor) -> None:
        x, (A_p, A_s), (P_p, P_s), numbers = self.inputs[path], self.A[path], self.P[path], self.numbers
        G_p, G_s = (B.grad for B in self.B[path])
        k_T = x.reshape(-1, x.shape[-1]).mean(0) if visual else x[0, where].mean(0)
        B_p, B_s = (B.detach() for B in self.B[path])
        z = (A_p @ k_T).double()
        B_p = B_p - (numbers.eta_visual if visual else numbers.eta) * (G_p.double() @ P_p).float()
        self.P[path][0] = P_p - torch.outer(P_p @ z, P_p @ z) / (numbers.ridge + z @ P_p @ z)
        self.keys[path][0].append(z)
        if may_share and image.any():
            u, o = (A_s @ k_T).double(), (A_s @ x[0, image].mean(0)).double()
            cosine = torch.cosine_similarity(u, o, dim=0)
            support = min(u.norm(), o.norm()) / max(u.norm(), o.norm())
            gamma = torch.sigmoid(numbers.beta * (cosine - numbers.tau)) * support
            gamma_T, gamma_V = (gamma * one.norm() / (u.norm() + o.norm()) for one in (o, u))
            q = (gamma_V * u + gamma_T * o) / (gamma_V * u + gamma_T * o).norm()
            B_s = B_s - numbers.eta_shared * float(gamma_T) * (G_s.double() @ P_s).float()
            self.P[path][1] = P_s - torch.outer(P_s @ q, P_s @ q) / (numbers.ridge_shared + q @ P_s @ q)
            self.keys[path][1].append(q)
        self.B[path] = [B_p, B_s]


def test_edits_are_the_formulas_in_plain_torch_and_p_is_the_closed_form(runtime: Runtime, tmp_path: Path) -> None:
    numbers, asked = tuning(), requests(tmp_path, 3)
    editor = ScopeEditor(numbers)
    A = bases(runtime, editor)
    assert set(A) == {*TEXT, *PROJECTOR}
    assert int(runtime.model.config.image_token_id) == 4
    expected = Written(runtime, A, numbers)
    state = edited(runtime, asked, editor)
    for request in asked:
        for _ in range(numbers.steps):
            expected.step(request)
    written = [path for path in A if expected.keys[path][0]]
    assert {name.rpartition(".")[0] for name in state} == set(written), "the groups with the largest gradient"
    assert any(expected.keys[path][1] for path in written), "a gate was open"
    for path in written:
        private, shared = (torch.stack(keys) if keys else None for keys in expected.keys[path])
        torch.testing.assert_close(state[f"{path}.B"], torch.cat(expected.B[path], dim=1), atol=2e-5, rtol=1e-3)
        found = state[f"{path}.P"], state[f"{path}.S"]
        assert all(P.dtype == torch.float64 for P in found)
        torch.testing.assert_close(found[0], closed_form(private, numbers.ridge, "unit"), atol=1e-4, rtol=1e-3)
        if shared is None:
            assert torch.equal(found[1], torch.eye(len(found[1]), dtype=torch.float64))
        else:
            closed = closed_form(shared, numbers.ridge_shared, "unit")
            torch.testing.assert_close(found[1], closed, atol=1e-4, rtol=1e-3)


def test_p_is_the_closed_form_of_the_keys_it_absorbed(runtime: Runtime, tmp_path: Path, monkeypatch) -> None:
    from more_cli.core import recursion

    editor, absorbed, absorb = ScopeEditor(tuning(steps=5)), [], recursion.absorb

    def kept(P, z, ridge, form):
        result = absorb(P, z, ridge, form)
        absorbed.append((P, z, result))
        return result

    monkeypatch.setattr(recursion, "absorb", kept)
    state = edited(runtime, requests(tmp_path, 3), editor)
    chains = {name: value for name, value in state.items() if name.endswith((".P", ".S"))}
    updates = 0
    for name, last in chains.items():
        keys = []
        while (made := next((entry for entry in absorbed if entry[2] is last), None)) is not None:
            last = made[0]
            keys.append(made[1])
        if keys:
            closed = closed_form(torch.stack(keys), 1.0, "unit")
            torch.testing.assert_close(chains[name], closed, atol=1e-9, rtol=1e-7)
        updates = max(updates, len(keys))
    assert updates == 3 * 5, "a key of every step"


def test_private_and_shared_rows_are_orthonormal_together(runtime: Runtime) -> None:
    for A, private in bases(runtime, ScopeEditor(tuning())).values():
        assert 0 < private < len(A)
        assert float((A[:private] @ A[private:].T).abs().max()) < 1e-6
        torch.testing.assert_close(A @ A.T, torch.eye(len(A)), atol=1e-6, rtol=0)


def test_a_correction_without_an_image_does_not_move_a_bit_of_what_is_shared(runtime: Runtime, tmp_path: Path) -> None:
    editor, (shown, *_) = ScopeEditor(tuning(depth=0.25, active=1.0)), requests(tmp_path, 1)
    private = {path: rows for path, (_, rows) in bases(runtime, editor).items()}
    before = edited(runtime, [shown], editor)
    after = edited(runtime, [EditRequest("t", Query((), "who is it ?"), "fox")], editor)
    assert set(before) == set(after)
    for path, rows in private.items():
        B, C = before[f"{path}.B"], after[f"{path}.B"]
        assert torch.equal(B[:, rows:], C[:, rows:])
        assert torch.equal(before[f"{path}.S"], after[f"{path}.S"])
        assert torch.equal(B[:, :rows], C[:, :rows]) == (path in PROJECTOR), "text never reaches the projector"
        assert bool(B[:, rows:].any()) != (path in PROJECTOR), "and the projector never shares"


def test_the_gate_takes_no_part_in_an_answer(runtime: Runtime, tmp_path: Path) -> None:
    asked, editor = requests(tmp_path, 2), ScopeEditor(tuning())
    state = edited(runtime, asked, editor)
    queries = [runtime.encode(request.query, request.target) for request in asked]
    queries.append(runtime.encode(Query((), "what is in the image ?"), "fox"))
    batch = runtime.batch(queries)
    with editor.attach(runtime):
        expected = runtime.score(batch).logits
    # Another gate, and other P: the same function.
    other = ScopeEditor(tuning(tau=1.0, beta=100.0))
    other.load_state_dict({name: value if name.endswith(".B") else 0 * value for name, value in state.items()})
    with other.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, expected)
    # Both branches are a change of W, for every input.
    model = copy.deepcopy(runtime.model)
    for path, (A, _) in bases(runtime, editor).items():
        if f"{path}.B" in state:
            weight = model.get_submodule(path).weight
            weight.data = fold(weight.data, A, state[f"{path}.B"], editor.tuning.scale)
    with torch.no_grad():
        merged = model(**batch.inputs, use_cache=False).logits[:, batch.keep]
    torch.testing.assert_close(merged, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(runtime.score(batch).logits, expected, atol=1e-3)


def test_edits_are_removed_completely_and_continued_exactly(runtime: Runtime, tmp_path: Path) -> None:
    asked, editor = requests(tmp_path, 3), ScopeEditor(tuning())
    batch = runtime.batch([runtime.encode(request.query, request.target) for request in asked])
    base = runtime.score(batch).logits
    edited(runtime, asked[:2], editor)
    half = editor.state_dict()
    whole = edited(runtime, asked[2:], editor)
    assert torch.equal(runtime.score(batch).logits, base), "detached, it is the base"
    editor.reset()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, base)
    assert editor.state_dict() == {}
    again = edited(runtime, asked, ScopeEditor(tuning()))
    other = ScopeEditor(tuning())
    other.load_state_dict(half)
    continued = edited(runtime, asked[2:], other)
    assert set(again) == set(whole) == set(continued)
    assert all(torch.equal(again[name], value) and torch.equal(continued[name], value) for name, value in whole.items())


def test_locality_keys_come_from_the_records_it_is_fitted_on(runtime: Runtime, tmp_path: Path) -> None:
    editor, edit = ScopeEditor(tuning(locality=1)), an_edit(tmp_path)
    assert "fit" in editor.capabilities
    assert "fit" not in ScopeEditor(tuning()).capabilities
    with editor.attach(runtime):
        facts = editor.fit(FitData([edit, an_edit(tmp_path)]))
        P = {scope.branch.module: scope.P for scope in editor.working[1]}
        assert all(torch.equal(scope.S, torch.eye(len(scope.S)).double()) for scope in editor.working[1])
    assert facts == {"locality": 2}, "two questions of the first record"
    A = bases(runtime, editor)
    inputs = runtime.read(
        [runtime.encode(Query.of(probe)) for probe in edit.locality],
        [(path, "input") for path in TEXT],
    )
    for place, path in enumerate(TEXT):
        rows, private = A[path]
        expected = torch.stack([rows[:private] @ row[place].mean(dim=0) for row in inputs])
        torch.testing.assert_close(editor.fitted()[path].float(), expected, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(P[path], closed_form(editor.fitted()[path], 1.0, "unit"), atol=1e-9, rtol=1e-7)
    assert all(len(editor.fitted()[path]) == 1 for path in PROJECTOR), "one of them has an image"
    # A loaded fit is the same editor, and a fit says nothing about lambda.
    loaded = ScopeEditor(tuning(locality=1))
    loaded.load_fitted(editor.fitted())
    asked = requests(tmp_path, 1)
    one, two = edited(runtime, asked, editor), edited(runtime, asked, loaded)
    assert all(torch.equal(two[name], value) for name, value in one.items())
    assert not all(torch.equal(one[f"{path}.B"], value) for path, value in _without(runtime, asked).items())
    assert ScopeEditor(tuning(locality=1, ridge=7.0)).fit_constants() == editor.fit_constants()


def _without(runtime: Runtime, asked: list[EditRequest]) -> dict[str, torch.Tensor]:
    state = edited(runtime, asked, ScopeEditor(tuning()))
    return {name.removesuffix(".B"): value for name, value in state.items() if name.endswith(".B")}


@pytest.mark.parametrize("family", ["blip-2", "instructblip", "blip-2 t5"])
def test_other_families_are_edited(family: str, tmp_path: Path) -> None:
    runtime = load_runtime(open_checkpoint(tiny_family(tmp_path / "model", family)))
    (shown, *_), editor = requests(tmp_path, 1), ScopeEditor(tuning(active=1.0))
    batch = runtime.batch([runtime.encode(shown.query, shown.target)])
    base = runtime.score(batch).logits
    with editor.attach(runtime):
        first = editor.edit(shown, EditContext())
        assert first.after.nll < first.before.nll
        private = {scope.branch.module: scope.private for scope in editor.working[1]}
        text = editor.edit(EditRequest("t", Query((), "who is it ?"), "fox"), EditContext(2))
        assert text.status != "refused"
    assert torch.equal(runtime.score(batch).logits, base)
    shares = [path for path, rows in private.items() if bool(editor.state_dict()[f"{path}.B"][:, rows:].any())]
    assert "language_projection" in private
    assert "language_projection" not in shares
    # The decoder of an encoder-decoder holds no image tokens, so nothing there is shared.
    assert bool(shares) != (family == "blip-2 t5")


def test_a_write_that_is_not_finite_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = ScopeEditor(tuning(eta=1e38, eta_shared=1e38)), requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(asked[0].query, asked[0].target)])
    with editor.attach(runtime):
        before = runtime.score(batch).logits
        outcome = editor.edit(asked[0], EditContext())
        assert (outcome.status, outcome.writes) == ("refused", 0)
        assert torch.equal(runtime.score(batch).logits, before)
    assert editor.state_dict() == {}
