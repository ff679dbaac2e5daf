"""Edits of plain language models: their words speak of no picture, and targets are what the tokenizer can say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.more import advice
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter
from support.helpers import LEARNING, QUICK, run
from support.tiny_language import tiny_language_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_language_model(tmp_path / "model")


def lines(model: Path, *edits: tuple[str, str]) -> Path:
    """Write edits of a question and a target."""
    path = model.with_name("edits.jsonl")
    texts = [json.dumps({"id": f"e{n}", "question": asked, "target": said}) for n, (asked, said) in enumerate(edits)]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_messages_about_a_question_without_a_picture_name_none(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "FAR", 0.0)
    assert run("edit", model, lines(model, ("what ?", "@@@ ~~~")), *QUICK).code == 3
    path = model.with_name("later.jsonl")
    path.write_text(json.dumps({"id": "later", "question": "what ?", "target": "~~~ @@@"}) + "\n")
    later = run("edit", model, path)
    assert "later supersedes e0: same question, another answer" in later.err
    said = " ".join((later.out + later.err + run("log", "show", "e0", model).out).split())
    assert "check question and target" in said
    assert "picture" not in said


def test_a_target_with_a_control_token_holds_once_it_is_learnt(model: Path) -> None:
    """It is learnt as text, `< /s>`: the answer is compared with that."""
    edited = run("edit", model, lines(model, ("which end ?", "</s>")), *LEARNING, "--json").json
    assert edited["counts"] == {"learnt": 1}
    assert run("eval", model, "--json").json["metrics"]["rel.gen_exact"]["value"] == 1


def test_a_target_that_the_tokenizer_cannot_write_is_refused(model: Path) -> None:
    """The model would learn the token for unknown text, and say nothing."""
    words = ["<unk>", "<s>", "</s>", "<pad>", "yes", "no", "?", "is", "it"]
    vocabulary = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=vocabulary, padding_side="left", **named).save_pretrained(model)
    refused = run("edit", model, lines(model, ("is it ?", "yes"), ("is ?", "no {中}")))
    assert refused.code == 4
    assert "edits.jsonl:2: the model's tokenizer has no tokens for `{中}` in the target\nhint: " in refused.err
    assert not model.with_name("model.more").exists()


@pytest.mark.parametrize("chat", [False, True])
def test_prompts_are_those_of_transformers(tmp_path: Path, chat: bool) -> None:
    """A chat template writes the token that begins a sequence itself, or there is none."""
    folder = tiny_language_model(tmp_path / "model", chat=chat)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = load_prompter(open_checkpoint(folder)).encode(Query((), "what is it ?")).input_ids.tolist()
    theirs = tokenizer("what is it ?")["input_ids"]
    if chat:
        asked = [{"role": "user", "content": "what is it ?"}]
        theirs = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    assert ours == theirs
    assert (tokenizer.bos_token_id in ours) != chat


def test_what_was_learnt_is_said_behind_a_chat_template_that_ends_in_a_space(tmp_path: Path) -> None:
    folder = tiny_language_model(tmp_path / "model", chat=True)
    edited = run("edit", folder, lines(folder, ("which ?", "r")), *LEARNING, "--json").json
    assert edited["counts"] == {"learnt": 1}
    assert run("ask", folder, "which ?", "--json").json["answers"]["edited"]["text"] == "r"


def test_made_anchors_are_not_said_to_lack_pictures(model: Path) -> None:
    file = lines(model, ("which ?", "r"))
    few = model.with_name("anchors.jsonl")
    few.write_text('{"question": "what ?"}\n')
    for state, source in (("own", [few]), ("made", ["auto", file])):
        done = run("init", model, "--anchors", *source, "--set", "anchors.per_edit=0", "--state", state, "--json")
        assert done.code == 0, done.err
        assert not [notice for notice in done.json["notices"] if "picture" in notice]
        status = run("status", model, "--state", state)
        assert ", all text only\n" in status.out
