"""Every family through one runtime: alone and in a batch, with and without images, cached and not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import PixtralImageProcessorPil

from more_cli.core import basis
from more_cli.errors import DataError
from more_cli.inputs.images import ImageSource, locate_image
from more_cli.model.batches import Encoded, Query, Span, answer_positions, collate
from more_cli.model.branches import Branch
from more_cli.model.families import family_of
from more_cli.model.loading import decoder_start
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.model.structure import find_backbone, text_layers
from support import tiny
from support.tiny_families import FAMILIES, make_family

COMPLETE = ["llava", "llava_next", *(name for name, row in FAMILIES.items() if row.processor is not None)]
SIZES = {"red": (28, 28), "green": (90, 28), "blue": (60, 90)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageSource]:
    folder = tmp_path_factory.mktemp("pictures")
    found = {}
    for colour, size in SIZES.items():
        Image.new("RGB", size, colour).save(folder / f"{colour}.png")
        found[colour] = locate_image(f"{colour}.png", folder)
    return found


@pytest.fixture(scope="module", params=COMPLETE)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    if request.param in FAMILIES:
        model, processor = make_family(request.param)
    else:
        processor = tiny.make_processor(request.param)
        model = tiny.make_model(processor.tokenizer, 3, 0, request.param).eval()
    model.requires_grad_(False)
    start = decoder_start(model.config.get_text_config(decoder=True))
    return Runtime(model, Prompter(processor, family_of(model.config.model_type), decoder_start=start))


def pairs(pictures: dict[str, ImageSource]) -> list[tuple[Query, str]]:
    return [
        (Query((pictures["red"],), "what colour is it ?"), "red"),
        (Query((pictures["green"],), "what is in the image ?"), "a blue circle on a table"),
        (Query((pictures["blue"],), "what ?"), "7"),
    ]


def alone(runtime: Runtime, query: Query, target: str | None) -> torch.Tensor:
    """Return the logits at the target of one question, from the model as transformers runs it."""
    batch = runtime.batch([runtime.encode(query, target)])
    with torch.no_grad():
        logits = runtime._asked(batch)(**batch.inputs).logits[0]
    return logits[batch.keep][batch.mask[0]] if target else logits[-1:]


def test_an_answer_is_scored_where_the_prompt_ends(runtime: Runtime, pictures) -> None:
    for query, target in pairs(pictures):
        encoded, prompt = runtime.encode(query, target), runtime.encode(query)
        assert encoded.input_ids[: encoded.target.start].tolist() == prompt.input_ids.tolist()
        assert int(encoded.input_ids[-1]) == runtime.prompter.eos
        assert runtime.prompter.text(encoded.input_ids[encoded.target.start :]) == target
        begin = runtime.prompter.tokenizer.bos_token_id
        if begin not in (None, runtime.prompter.eos):
            assert encoded.input_ids.tolist().count(begin) == 1


def test_every_position_has_its_most_likely_tokens(runtime: Runtime, pictures) -> None:
    """As many as the sequence that ends in the answer has; scores come from those that predict the answer."""
    for query, target in pairs(pictures):
        encoded = runtime.encode(query, target)
        sequence, span = encoded.answering
        top = runtime.top_tokens(encoded, 10)
        assert top.shape == (len(sequence), 10)
        scored = runtime.score(runtime.batch([encoded]))
        assert torch.equal(top[answer_positions(span), 0], scored.predicted()[0].cpu())


def test_logits_follow_from_what_the_last_text_layer_puts_out(runtime: Runtime, pictures) -> None:
    if runtime.prompter.decoder_start is not None:
        pytest.skip("its decoder also reads the encoder")
    last = text_layers(runtime.model, find_backbone(runtime.model))[-1]
    for query, target in pairs(pictures):
        encoded = runtime.encode(query, target)
        ((hidden,),) = runtime.read([encoded], [(last, "output")])
        hidden.requires_grad_()
        logits = runtime.finish(hidden[None])[0]
        scored = runtime.score(runtime.batch([encoded]))
        torch.testing.assert_close(logits[answer_positions(encoded.target)], scored.logits[0], atol=1e-4, rtol=1e-4)
        logits.sum().backward()
        assert hidden.grad is not None
        assert hidden.grad.any()


def test_a_question_asked_again_soon_is_not_processed_again(runtime: Runtime, pictures, monkeypatch) -> None:
    prompter = runtime.prompter
    asked = [(query, answer) for query, target in pairs(pictures) for answer in (target, None)]
    process, made = type(prompter)._process, []
    monkeypatch.setattr(type(prompter), "_process", lambda *given: made.append(given) or process(*given))
    prompter._recent.clear()
    warm = [prompter.encode(*pair) for pair in asked]
    assert len(made) == len(asked) / 2
    for pair, encoded in zip(asked, warm, strict=True):
        prompter._recent.clear()
        cold = prompter.encode(*pair)
        assert torch.equal(encoded.input_ids, cold.input_ids)
        assert encoded.extras.keys() == cold.extras.keys()
        assert all(torch.equal(encoded.extras[name], cold.extras[name]) for name in cold.extras)


def test_a_picture_is_decoded_once_for_questions_in_a_row(runtime: Runtime, pictures, monkeypatch) -> None:
    opened, decode = [], ImageSource.open
    monkeypatch.setattr(ImageSource, "open", lambda source: opened.append(source.spelled) or decode(source))
    asked = [Query((pictures[colour],), text) for colour in ("green", "blue") for text in ("how far ?", "how old ?")]
    warm = [runtime.encode(query) for query in asked]
    assert opened == ["green.png", "blue.png"]
    for query, encoded in zip(asked, warm, strict=True):
        runtime.prompter._recent.clear()
        runtime.prompter._pictures.clear()
        cold = runtime.encode(query)
        assert all(torch.equal(encoded.extras[name], cold.extras[name]) for name in cold.extras)


def test_the_image_matters(runtime: Runtime, pictures) -> None:
    (query, target), *_ = pairs(pictures)
    other = Query((pictures["blue"],), query.question)
    gap = (alone(runtime, query, target)[0] - alone(runtime, other, target)[0]).abs().max()
    assert float(gap) > 0.1


def test_a_batch_scores_as_its_questions_do_alone(runtime: Runtime, pictures) -> None:
    asked = pairs(pictures)
    single = [alone(runtime, *pair) for pair in asked]
    with runtime.attached([]):
        for order in ([0, 1, 2], [2, 0, 1]):
            batch = runtime.batch([runtime.encode(*asked[i]) for i in order])
            for _ in range(2):
                scored = runtime.score(batch)
                for row, mask, i in zip(scored.logits, scored.mask, order, strict=True):
                    torch.testing.assert_close(row[mask], single[i], atol=2e-4, rtol=1e-3)
        assert runtime._vision is not None
        assert runtime._vision.calls == 3
        assert None not in runtime._vision._outputs.values()


def test_a_warm_cache_changes_no_bit(runtime: Runtime, pictures) -> None:
    asked = [runtime.encode(*pair) for pair in pairs(pictures)]
    with runtime.attached([]):
        runtime.score(runtime.batch(asked[1:]))  # in another batch
        warm = runtime.score(runtime.batch(asked)).logits
        ran = []
        hooks = [layer.register_forward_pre_hook(lambda *_: ran.append(1)) for layer in live_layers(runtime)]
        runtime.score(runtime.batch(asked))
        for hook in hooks:
            hook.remove()
        assert not ran
    with runtime.attached([]):
        cold = runtime.score(runtime.batch(asked)).logits
    assert torch.equal(cold, warm)


def test_layers_before_the_first_edited_one_run_once_for_a_batch(runtime: Runtime, pictures) -> None:
    """A write after them changes later outputs, and no bit of these depends on whether they ran again."""
    asked = [runtime.encode(*pair) for pair in pairs(pictures)]
    last = text_layers(runtime.model, find_backbone(runtime.model))[-1]
    made = [branch for branch in branches(runtime) if branch.module.startswith(f"{last}.")]
    assert made

    def written(again: bool) -> list[torch.Tensor]:
        """Return logits and gradients of three writes of a batch, with the layers before it run each time or not."""
        found: list[torch.Tensor] = []
        before = [branch.B for branch in made]
        with runtime.attached(made):
            assert runtime._prefix is not None
            for _ in range(3):
                scored = runtime.score(runtime.batch(asked), record=True)
                runtime.backward(scored.nll().mean())
                gradients = [branch.gradient().dense() for branch in made]
                found += [scored.logits.detach(), *gradients]
                for branch, gradient in zip(made, gradients, strict=True):
                    branch.B = branch.B - 0.5 * gradient
                if again:
                    runtime.score(runtime.batch(asked[:1]))
            assert runtime._prefix.calls == (6 if again else 1)
            runtime.score(runtime.batch(asked[::-1]))
            assert runtime._prefix.calls == (7 if again else 2), "another order is another batch"
        for branch, B in zip(made, before, strict=True):
            branch.B = B
        return found

    once, anew = written(False), written(True)
    assert all(torch.equal(*pair) for pair in zip(once, anew, strict=True))
    assert not torch.equal(once[0], once[1 + len(made)])


def live_layers(runtime: Runtime) -> list[torch.nn.Module]:
    """Return the submodules of vision layers: they run only if a layer does, as the layer's own forward is replaced."""
    return [module for layer in runtime._vision.layers for module in layer.children()]


def test_a_greedy_answer_is_the_most_likely_one_word_for_word(runtime: Runtime, pictures) -> None:
    """So an answer that scores as greedy need not be generated."""
    assert runtime.picks_most_likely
    queries = [query for query, _ in pairs(pictures)]
    answers = runtime.generate(queries, 6)
    encoded = [runtime.encode(query).followed_by(ids) for query, ids in zip(queries, answers, strict=True)]
    assert [sequence.target_ids for sequence in encoded] == answers
    assert runtime.score(runtime.batch(encoded)).all_right().all()


def test_answers_in_a_batch_are_those_given_alone(runtime: Runtime, pictures) -> None:
    queries = [query for query, _ in pairs(pictures)]
    with runtime.attached([]):
        together = runtime.generate(queries, 6)
        single = [runtime.generate([query], 6)[0] for query in queries]
        assert together == single
        # And the generated answer is the one that the scores predict.
        batch = runtime.batch(
            [runtime.encode(query).followed_by(ids) for query, ids in zip(queries, together, strict=True)]
        )
        scored = runtime.score(batch)
        said = [row[mask].tolist() for row, mask in zip(scored.predicted(), scored.mask, strict=True)]
        assert said == together


def test_questions_without_an_image(runtime: Runtime, pictures) -> None:
    bare = Query((), "what is it ?")
    family = runtime.prompter.family
    if family.images[0] and not family.language_model:
        with pytest.raises(DataError, match="takes no question without an image"):
            runtime.encode(bare, "red")
        return
    asked = [*pairs(pictures)[:2], (bare, "red")]
    single = [alone(runtime, *pair) for pair in asked]
    with runtime.attached([]):
        scored = runtime.score(runtime.batch([runtime.encode(*pair) for pair in asked]))
        for row, mask, expected in zip(scored.logits, scored.mask, single, strict=True):
            torch.testing.assert_close(row[mask], expected, atol=2e-4, rtol=1e-3)
        assert runtime.generate([bare, asked[0][0]], 4) == [
            runtime.generate([query], 4)[0] for query in (bare, asked[0][0])
        ]
        runtime.generate([bare], 4)


def test_questions_about_two_images(runtime: Runtime, pictures) -> None:
    both = Query((pictures["red"], pictures["blue"]), "what is it ?")
    if runtime.prompter.family.images[1] == 1:
        with pytest.raises(DataError, match="takes 1 image a question, not 2"):
            runtime.encode(both, "red")
        return
    swapped = Query(both.images[::-1], both.question)
    asked = [(both, "red"), pairs(pictures)[1], (swapped, "7")]
    single = [alone(runtime, *pair) for pair in asked]
    assert float((single[0][0] - alone(runtime, swapped, "red")[0]).abs().max()) > 1e-3
    with runtime.attached([]):
        batch = runtime.batch([runtime.encode(*pair) for pair in asked])
        for _ in range(2):
            scored = runtime.score(batch)
            for row, mask, expected in zip(scored.logits, scored.mask, single, strict=True):
                torch.testing.assert_close(row[mask], expected, atol=2e-4, rtol=1e-3)


def test_control_tokens_of_users_are_text(runtime: Runtime, pictures) -> None:
    tokenizer = runtime.prompter.tokenizer
    image = (pictures["red"],)
    plain = runtime.encode(Query(image, "is it ?"), "red").input_ids.tolist()
    for token in runtime.prompter._control:
        hostile = runtime.encode(Query(image, f"is {token} it ?"), f"red {token}").input_ids.tolist()
        special = tokenizer.convert_tokens_to_ids(token)
        assert hostile.count(special) == plain.count(special), token


def test_what_belongs_to_tokens_moves_with_them(pictures) -> None:
    """Left padding, checked with the processor's own marks of image tokens."""
    model, processor = make_family("qwen2_vl")
    prompter = Prompter(processor, family_of("qwen2_vl"))
    asked = [prompter.encode(*pair) for pair in pairs(pictures)]
    inputs = collate(asked, processor.tokenizer.pad_token_id).inputs
    assert torch.equal(inputs["mm_token_type_ids"] == 1, inputs["input_ids"] == model.config.image_token_id)


def test_a_prefix_that_reads_both_ways_ends_where_the_answer_begins(pictures) -> None:
    _, processor = make_family("paligemma")
    prompter = Prompter(processor, family_of("paligemma"))
    asked = [prompter.encode(*pair) for pair in pairs(pictures)]
    types = collate(asked, processor.tokenizer.pad_token_id).inputs["token_type_ids"]
    assert types.sum(dim=1).tolist() == [len(sequence.target) for sequence in asked]


def test_a_q_former_is_not_told_the_answer(pictures) -> None:
    _, processor = make_family("instructblip")
    prompter = Prompter(processor, family_of("instructblip"))
    (query, target), *_ = pairs(pictures)
    told, asked = prompter.encode(query, target).extras, prompter.encode(query).extras
    assert torch.equal(told["qformer_input_ids"], asked["qformer_input_ids"])


@pytest.mark.parametrize(("family", "end"), [("gemma3", "<end_of_turn>"), ("idefics3", "<end_of_utterance>")])
def test_an_answer_ends_as_the_template_ends_it(family: str, end: str, tmp_path: Path) -> None:
    processor = FAMILIES[family].processor()
    prompter = Prompter(processor)
    assert processor.tokenizer.convert_ids_to_tokens(prompter.eos) == end
    assert prompter.stops == (prompter.eos, processor.tokenizer.eos_token_id)


def test_without_a_template_an_answer_ends_where_generate_ends() -> None:
    """BLIP-2 with OPT: its tokenizer ends at `</s>`, but its settings of generation only at a line break."""
    processor = FAMILIES["blip-2"].processor()
    own, family = processor.tokenizer.eos_token_id, family_of("blip-2")
    assert Prompter(processor, family).eos == own
    assert Prompter(processor, family, stops=[9, own]).eos == own
    ends = Prompter(processor, family, stops=[9, 8])
    assert ends.eos == 9
    assert ends.stops == (9, own, 8)
    assert ends.encode(Query((), "What is it?"), "a dog").input_ids[-1] == 9


@pytest.mark.parametrize("recorded", [1, 3])
def test_gradients_and_keys_are_those_of_plain_torch(runtime: Runtime, pictures, recorded: int) -> None:
    """Also where a family flattens its tokens, packs its images, or merges patches inside the tower."""
    batch = runtime.batch([runtime.encode(*pair) for pair in pairs(pictures)[:recorded]])
    made = branches(runtime)
    with runtime.attached(made):
        runtime.score(batch, record=True).nll().mean().backward()
        gradients = {branch.name: branch.gradient().dense() for branch in made}
        keys = {branch.name: branch.key(batch.answer if "text" in branch.name else None) for branch in made}
    leaves, inputs, undo = {}, {}, []
    for branch in made:
        leaf = leaves[branch.name] = branch.B.clone().requires_grad_()

        def hook(module, args, output, *, leaf=leaf, branch=branch):
            inputs[branch.name] = args[0].detach()
            return output + branch.scale * (args[0] @ branch.A.T) @ leaf.T

        undo.append(runtime.model.get_submodule(branch.module).register_forward_hook(hook))
    try:
        logits = runtime.model(**batch.inputs).logits[:, batch.keep]
    finally:
        for handle in undo:
            handle.remove()
    picked = torch.log_softmax(logits, -1).gather(-1, batch.targets[..., None])[..., 0]
    (-(picked * batch.mask).sum(1) / batch.mask.sum(1)).mean().backward()
    for branch in made:
        assert leaves[branch.name].grad.any()
        torch.testing.assert_close(gradients[branch.name], leaves[branch.name].grad, atol=1e-4, rtol=2e-3)
        Z = (inputs[branch.name] @ branch.A.T).reshape(-1, len(branch.A))
        relevant = Z[batch.answer.reshape(-1)] if "text" in branch.name else Z
        torch.testing.assert_close(keys[branch.name], relevant.double().mean(0), atol=1e-4, rtol=1e-3)


def branches(runtime: Runtime) -> list[Branch]:
    """Small ones at the last two feed-forward inputs and outputs, and at everything in the projector."""
    backbone = find_backbone(runtime.model)
    layers = text_layers(runtime.model, backbone)[-2:]
    paths = [f"{layer}.{name}" for layer in layers for name in (*backbone.text_ffn_in, *backbone.text_ffn_out)]
    paths += [
        f"{root}.{name}".rstrip(".")
        for root in backbone.projector
        for name, module in runtime.model.get_submodule(root).named_modules()
        if type(module) is torch.nn.Linear
    ]
    made = []
    for number, path in enumerate(paths):
        d_out, d_in = runtime.model.get_submodule(path).weight.shape
        generator = torch.Generator().manual_seed(number)
        B = 0.02 * torch.randn(d_out, 8, generator=generator)
        kind = "text" if number < len(layers) * len((*backbone.text_ffn_in, *backbone.text_ffn_out)) else "visual"
        made.append(Branch(f"{kind}.{path}", path, basis.draw_basis(8, d_in, number), B, 2.0))
    return made


def test_images_packed_into_one_sequence_are_cached_apart(pictures) -> None:
    """Mistral 3, whose processor needs torchvision, from inputs made by hand."""
    model, _ = make_family("mistral3")
    model.requires_grad_(False)
    images = PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size=28)
    asked = []
    for number, colour in enumerate(SIZES):
        made = images(pictures[colour].open().resize((56 * (number + 1), 56)), return_tensors="pt")
        patches = int((made["image_sizes"][0] // 28).prod())
        ids = torch.tensor([1, *[model.config.image_token_id] * patches, 50 + number, 60, 70, 80 + number, 2])
        extras = {name: made[name] for name in ("pixel_values", "image_sizes")}
        asked.append(Encoded(ids, Span(len(ids) - 2, len(ids)), (pictures[colour].sha256,), extras))
    assert len({encoded.extras["pixel_values"].shape for encoded in asked}) > 1
    runtime = Runtime(model, Prompter(tiny.make_processor()))
    single = []
    for encoded in asked:
        batch = runtime.batch([encoded])
        single.append(model(**batch.inputs).logits[0, batch.keep])
    with runtime.attached([]):
        batch = runtime.batch(asked)
        for _ in range(2):
            torch.testing.assert_close(runtime.score(batch).logits, torch.stack(single), atol=2e-4, rtol=1e-3)
        assert runtime._vision.calls == 3
        assert {tuple(outputs[2].shape[:1]) for outputs in runtime._vision._outputs.values()} == {(1,)}
