"""Prompts and spans: what is trained and scored is the target in its context, end of sequence included."""

from pathlib import Path

import pytest
import torch

from more_cli.errors import DataError
from more_cli.model.batches import Query, Span, answer_positions, collate
from more_cli.model.prompts import Prompter
from support.editing import picture
from support.tiny import make_processor


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(make_processor(), max_length=200)


def test_answer_positions_are_one_before_the_target() -> None:
    assert answer_positions(Span(5, 8)) == slice(4, 7)


@pytest.mark.parametrize("target", ["red", "a blue circle", "7", "zorvex", "é", "USER", "x y  z"])
def test_the_span_is_the_target_as_it_stands_in_the_whole_sequence(prompter: Prompter, tmp_path: Path, target) -> None:
    encoded = prompter.encode(Query((picture(tmp_path),), "what colour is it ?"), target)
    ids = encoded.input_ids.tolist()
    span = encoded.target
    assert span.stop == len(ids)
    assert ids[-1] == prompter.eos
    assert prompter.tokenizer.decode(ids[span.start : -1]).strip() == target.strip()
    # Exactly the tokens that the model would have to produce after the prompt.
    assert ids[: span.start] == prompter.encode(Query((picture(tmp_path),), "what colour is it ?")).input_ids.tolist()


def test_a_target_tokenised_alone_would_be_other_tokens(prompter: Prompter) -> None:
    encoded = prompter.encode(Query((), "what ?"), "red")
    alone = prompter.tokenizer("red", add_special_tokens=False)["input_ids"]
    assert encoded.input_ids[encoded.target.start : -1].tolist() != alone


@pytest.mark.parametrize("target", ["red", "a blue circle", "7", "zorvex"])
def test_behind_a_template_that_ends_in_a_space_the_prompt_stays_whole(target: str) -> None:
    """In the whole sequence the space is part of the target's first word, which no server's prompt is."""
    processor = make_processor()
    template = processor.tokenizer.chat_template or processor.chat_template
    processor.tokenizer.chat_template = processor.chat_template = template.replace("'ASSISTANT:'", "'ASSISTANT: '")
    prompter = Prompter(processor)
    encoded, asked = (prompter.encode(Query((), "what ?"), *given) for given in ((target,), ()))
    ids, start = encoded.input_ids.tolist(), encoded.target.start
    assert ids[:start] == asked.input_ids.tolist()
    assert prompter.tokenizer.decode(ids[start:-1]) == target


def test_the_system_prompt_comes_first(tmp_path: Path) -> None:
    prompter = Prompter(make_processor(), system="a chat between a user and an assistant")
    assert prompter.render(Query((), "what ?")).startswith("a chat between")


@pytest.mark.parametrize("token", ["<image>", "</s>", "<s>", "<pad>"])
def test_control_tokens_in_a_question_or_target_are_text(prompter: Prompter, tmp_path: Path, token: str) -> None:
    special = prompter.tokenizer.convert_tokens_to_ids(token)
    image = (picture(tmp_path),)
    plain = prompter.encode(Query(image, "is it ?"), "red").input_ids.tolist().count(special)
    hostile = prompter.encode(Query(image, f"is it {token} ?"), f"red{token}").input_ids.tolist().count(special)
    assert hostile == plain


def test_too_long_for_the_context_is_bad_data(prompter: Prompter) -> None:
    with pytest.raises(DataError, match="the model's context has 200"):
        prompter.encode(Query((), "what ?"), "z " * 300)


def test_padding_is_on_the_left_and_masks_agree(prompter: Prompter, tmp_path: Path) -> None:
    long = prompter.encode(Query((picture(tmp_path),), "what is in the image ?"), "a blue circle on a green table")
    short = prompter.encode(Query((), "what ?"), "7")
    batch = collate([long, short], pad=prompter.tokenizer.pad_token_id)
    ids = batch.inputs["input_ids"]
    width = len(long.target)
    assert batch.mask.sum(dim=1).tolist() == [len(long.target), len(short.target)]
    assert batch.answer.sum(dim=1).tolist() == [len(long.target), len(short.target)]
    for row, sequence in enumerate((long, short)):
        target = sequence.input_ids[sequence.target.start :]
        assert torch.equal(batch.targets[row][batch.mask[row]], target)
        # The kept position k predicts target k: it is the position just before it.
        assert torch.equal(ids[row, batch.keep + 1][batch.mask[row]], target)
        assert torch.equal(batch.answer[row].nonzero()[:, 0], batch.keep[batch.mask[row]])
    assert len(batch.keep) == width
    assert int(batch.inputs["attention_mask"][1].sum()) == len(short.input_ids)
    assert batch.sequences == (long, short)


def test_a_bare_prompt_keeps_its_last_position(prompter: Prompter) -> None:
    encoded = prompter.encode(Query((), "what ?"))
    batch = collate([encoded], pad=0)
    assert batch.keep.tolist() == [len(encoded.input_ids) - 1]
    answered = encoded.followed_by([9, 8, prompter.eos])
    assert answered.input_ids[answered.target.start :].tolist() == [9, 8, prompter.eos]
