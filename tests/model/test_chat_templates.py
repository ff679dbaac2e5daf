"""Chat templates that begin with today's date, or put thoughts or a channel before an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from more_cli.model.batches import Query
from more_cli.model.families import Family
from more_cli.model.processors import TextProcessor
from more_cli.model.prompts import Prompter
from support.helpers import LEARNING, run
from support.tiny import make_tokenizer
from support.tiny_language import tiny_language_model

USER = "{% for turn in messages %}{% if turn.role == 'user' %}user: {{ turn.content }}\n{% endif %}{% endfor %}"
"""What the user says, in a template whose last message is the assistant's or comes from the model."""
SAID = "{% if not add_generation_prompt %}model: [before]{{ messages[-1].content }}</s>{% endif %}"
ASKED = "{% if add_generation_prompt %}model: [prompt]{% endif %}"
SWITCH = "<think>\n{{ '\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}"


def template(prompt: str, before: str) -> str:
    """Return a chat template with this text at the end of a prompt, and that one before an answer."""
    return USER + SAID.replace("[before]", before) + ASKED.replace("[prompt]", prompt)


def prompter(chat: str) -> Prompter:
    tokenizer = make_tokenizer(["</s>", "<pad>", "<|final|>"], eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = chat
    return Prompter(TextProcessor(tokenizer), Family(images=(0, 0)))


EMPTY = "<think>\n\n</think>\n\n"
CHATS = {
    "a switch turns thoughts off": (template(SWITCH, EMPTY), EMPTY),
    "the model may think by itself": (template("", EMPTY), EMPTY),
    "the prompt begins thoughts that the answer ends": (template("<think>\n", EMPTY), EMPTY),
    "the prompt begins thoughts, and an answer has none": (template("<think>\n", ""), EMPTY),
    "the answer has a channel": (template("", "<|final|>"), "<|final|>"),
    "a recipient is written out": (template("", "all\n"), "all\n"),
}


@pytest.mark.parametrize("name", CHATS)
def test_what_comes_before_every_answer_is_part_of_the_prompt(name: str) -> None:
    chat, opening = CHATS[name]
    found = prompter(chat)
    prompt = found.render(Query((), "which ?"))
    assert prompt == f"user: which ?\nmodel: {opening}"
    encoded = found.encode(Query((), "which ?"), "red")
    answer = encoded.input_ids[encoded.target.start :].tolist()
    assert found.tokenizer.decode(answer) == "red</s>"
    assert found.thinks == ("think" in chat)


def test_a_space_before_an_answer_stays_with_the_answer() -> None:
    found = prompter(template("", "answer: "))
    encoded = found.encode(Query((), "which ?"), "red")
    assert found.render(Query((), "which ?")) == "user: which ?\nmodel: answer:"
    assert found.tokenizer.decode(encoded.input_ids[encoded.target.start :].tolist()) == " red</s>"


@pytest.mark.parametrize(
    ("form", "day"), [("%d %b %Y", "26 Jul 2024"), ("%Y-%m-%d", "2024-07-26"), ("%A, %d %B %y", "Friday, 26 July 24")]
)
@pytest.mark.parametrize("start", ["", "\n", "  {% if true %}\n{% endif %}"])
def test_a_template_that_writes_the_date_always_writes_the_same(form: str, day: str, start: str) -> None:
    """Edits that are resumed on another day have the same prompts, and replay to the same bytes."""
    rest = template("", "")
    clock = prompter(start + f"{{{{ strftime_now('{form}') if strftime_now is defined }}}}\n" + rest)
    fixed = prompter(start + f"{{{{ '{day}' }}}}\n" + rest)
    query = Query((), "which ?")
    assert day in clock.render(query)
    assert clock.render(query) == fixed.render(query)


def test_a_model_that_thinks_is_edited_and_asked_without_thoughts(tmp_path: Path) -> None:
    """Plain transformers gives the learnt answer too, asked as the note says."""
    model = tiny_language_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(template(SWITCH, EMPTY))
    file = tmp_path / "edits.jsonl"
    file.write_text('{"question": "which ?", "target": "r"}\n')
    edited = run("edit", model, file, *LEARNING)
    assert edited.code == 0, edited.err
    assert "written and scored without thoughts" in edited.err
    assert run("ask", model, "which ?", "--json").json["answers"]["edited"]["text"] == "r"

    merged = tmp_path / "merged"
    assert run("merge", model, "-o", merged).code == 0
    tokenizer, plain = AutoTokenizer.from_pretrained(merged), AutoModelForCausalLM.from_pretrained(merged)
    chat = [{"role": "user", "content": "which ?"}]
    asked = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, enable_thinking=False, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        said = plain.generate(**asked, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(said[0, asked["input_ids"].shape[1] :], skip_special_tokens=True) == "r"
