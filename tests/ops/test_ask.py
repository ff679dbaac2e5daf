"""`more ask`: base and edited answers side by side, and how likely each model finds each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.demo.files import demo_model_dir
from more_cli.inputs.images import locate_image, pictures
from more_cli.model import loading
from more_cli.model.batches import Query
from more_cli.model.machine import Machine
from more_cli.ops import session
from more_cli.ops.ask import asking, load_base
from more_cli.ops.session import open_session
from more_cli.store.target import locate
from support.helpers import LEARNING, QUESTION, World, run, tree
from support.refused import assert_refused


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A model whose two edits are learnt, and its merged checkpoint."""
    world = World(tmp_path_factory.mktemp("ask"))
    world.edits(2)
    assert world.edit(*LEARNING).code == 0
    assert run("merge", world.model, "-o", world.root / "merged").code == 0
    return world


@pytest.fixture
def world(edited: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(edited.root)
    before = tree(edited.root)
    yield edited
    assert tree(edited.root) == before, "asking writes nothing"


def ask(world: World, *words: Any, stdin: bytes | None = None) -> Any:
    return run("ask", world.model, "--image", "img/red.png", *words, stdin=stdin)


def test_both_models_answer_and_score_both_answers(world: World) -> None:
    done = ask(world, QUESTION, "--json")
    assert (done.code, done.err) == (0, "")
    value = done.json
    assert value["schema"] == "more.ask/1"
    answers = value["answers"]
    assert list(answers) == ["base", "edited"]
    assert answers["edited"]["text"] == "r", "the first edit's target"
    before, after = world.entries()[0]["greedy_before"], answers["base"]["text"]
    assert after.startswith(before.removesuffix("...")), "the base says what it said before the edit"
    assert answers["edited"]["nll"]["edited"] < answers["edited"]["nll"]["base"]
    assert answers["base"]["nll"]["base"] < answers["base"]["nll"]["edited"]


def test_the_likelihood_of_a_target_is_that_of_the_ledger(world: World) -> None:
    """One answer, two ways: generated and scored here, under teacher forcing when the last edit was made."""
    done = run("ask", world.model, "--image", "img/green.png", QUESTION, "--json").json
    last = world.entries()[1]
    assert done["answers"]["edited"]["text"] == last["target"]
    assert done["answers"]["edited"]["nll"]["edited"] == pytest.approx(last["nll_after"], abs=1e-4)


def test_people_see_a_table(world: World) -> None:
    lines = ask(world, QUESTION).out.splitlines()
    assert lines[0] == QUESTION
    assert lines[1].split() == ["model", "answer", "NLL", "by", "base", "NLL", "by", "edited"]
    assert [line.split()[0] for line in lines[2:] if line.startswith(("base ", "edited "))] == ["base", "edited"]


def test_a_merged_checkpoint_answers_as_the_state_does(world: World) -> None:
    answers = ask(world, QUESTION, "--merged", "merged", "--json").json["answers"]
    assert list(answers) == ["base", "edited", "merged"]
    assert answers["merged"]["text"] == answers["edited"]["text"]
    assert answers["merged"]["nll"]["merged"] == pytest.approx(answers["edited"]["nll"]["edited"], abs=1e-3)


def test_without_a_state_the_base_answers_alone(world: World, tmp_path: Path) -> None:
    base = ask(world, QUESTION, "--json").json["answers"]["base"]
    alone = World(tmp_path / "alone")
    done = run("ask", alone.model, "--image", alone.root / "img/red.png", QUESTION, "--json")
    assert done.code == 0
    assert "has no state: the base answers alone" in done.err
    assert list(done.json["answers"]) == ["base"]
    assert done.json["state"] is None
    assert done.json["answers"]["base"]["text"] == base["text"]
    assert done.json["answers"]["base"]["nll"]["base"] == pytest.approx(base["nll"]["base"], abs=1e-5)


def test_without_a_picture(world: World) -> None:
    assert run("ask", world.model, QUESTION, "--json").json["images"] == []


def test_the_tower_runs_once_per_picture(world: World) -> None:
    target = locate(world.model, None)
    runtime = load_base(target, Machine())
    with asking(target, Machine(), runtime=runtime) as asker:
        cache = runtime._vision
        assert cache is not None
        for question in (QUESTION, "what is in the image ?", QUESTION):
            asker.ask(question, pictures(["img/red.png"]))
        assert cache.calls == 1
        asker.ask(QUESTION, pictures(["img/blue.png"]))
        assert cache.calls == 2


def test_the_prompt_is_that_of_an_edit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a system prompt in the recipe, and with control tokens in the question."""
    opened = open_session(locate(world.model, None), Machine())
    runtime, image = opened.runtime, locate_image("img/red.png", world.root)
    with opened.attached():
        encoded = runtime.encode(Query((image,), "<image> what ?"))
    seen = []
    with asking(locate(world.model, None), Machine(), runtime=runtime) as asker:
        generate = runtime.generate
        monkeypatch.setattr(runtime, "generate", lambda queries, n: seen.extend(queries) or generate(queries, n))
        asker.ask(" <image> what ? ", pictures(["img/red.png"]))
        assert torch.equal(runtime.encode(seen[0]).input_ids, encoded.input_ids)


# --- what the first answer waits for ---

UNNEEDED = {
    *("accelerate", "IPython", "matplotlib", "pandas", "peft", "pyarrow", "ray", "rich", "scipy", "sklearn"),
    *("tensorboard", "torchvision", "torch._dynamo", "torch._inductor", "torch.distributed", "torch.onnx"),
    *("torch.testing", "torch.utils.tensorboard", "transformers.pipelines", "transformers.trainer"),
    *("more_cli.api", "more_lab.bench", "more_lab.experiments", "more_cli.ops.edit", "more_cli.render"),
}
"""Nothing of it may be imported to answer, beyond what transformers itself imports to load the model."""


@pytest.mark.slow
def test_asking_imports_nothing_that_it_does_not_need(world: World) -> None:
    code = (
        "import sys; from transformers import AutoModelForImageTextToText as Model\n"
        "Model.from_pretrained(sys.argv[1]); bare = set(sys.modules)\n"
        "from more_cli.cli.app import main; assert main(['ask', *sys.argv[1:], '--json']) == 0\n"
        "print(*sorted(set(sys.modules) - bare))"
    )
    words = [sys.executable, "-c", code, str(world.model), "--image", "img/red.png", QUESTION]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    assert "more_cli.ops.ask" in imported
    assert not [name for name in imported if any(f"{name}.".startswith(f"{one}.") for one in UNNEEDED)]


def test_a_mistyped_picture_is_refused_before_torch_is_imported(world: World) -> None:
    code = (
        "import sys; from more_cli.cli.app import main; code = main(sys.argv[1:])\n"
        "sys.exit(1 if {'torch', 'transformers'} & set(sys.modules) else code)"
    )
    words = [sys.executable, "-c", code, "ask", str(world.model), "--image", "img/rde.png", QUESTION]
    assert subprocess.run(words, capture_output=True).returncode == 4


def test_the_base_is_read_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blueprint and processor serve both the estimate of memory and the model."""
    made = []

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, **named: made.append(name) or original(*given, **named))

    counted(loading, "meta_model")
    counted(loading, "load_processor")
    counted(session, "open_state")
    assert ask(world, QUESTION).code == 0
    assert sorted(made) == ["load_processor", "meta_model", "open_state"]


# --- the loop ---


def test_every_line_of_standard_input_is_a_question(world: World) -> None:
    done = ask(world, "--json", stdin=f"{QUESTION}\n\n what is in the image ?".encode())
    assert (done.code, done.err) == (0, "")
    values = [json.loads(line) for line in done.out.splitlines()]
    assert [value["question"] for value in values] == [QUESTION, "what is in the image ?"]
    assert values[0] == ask(world, QUESTION, "--json").json


def test_no_question_on_standard_input_is_said(world: World) -> None:
    done = ask(world, stdin=b"\n")
    assert (done.code, done.out, done.err) == (0, "", "no question arrived\n")


def test_the_loop_goes_on_after_a_bad_line(world: World) -> None:
    done = ask(world, "--json", stdin=b"\xff\nwhat\x00 ?\n" + b"long " * 5000 + b"\n" + QUESTION.encode())
    assert done.code == 4
    assert [json.loads(line)["question"] for line in done.out.splitlines()] == [QUESTION]
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert [error.split(":")[2] for error in errors] == ["1", "2", "3"]
    assert "not UTF-8" in errors[0]
    assert "control character" in errors[1]
    assert "the model's context has" in errors[2]


def test_each_answer_is_there_before_the_next_question(world: World) -> None:
    command = [sys.executable, "-m", "more_cli", "ask", str(world.model), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for question in (QUESTION, "what is in the image ?"):
            child.stdin.write(f"{question}\n")
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["question"] == question
        child.stdin.close()
        assert child.wait(60) == 0


# --- what cannot be asked ---


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("model", "--image", "img/rde.png", "q"),
            4,
            "file not found: `img/rde.png`\nhint: did you mean `img/red.png`?",
        ),
        (("model", "--image", "edits.jsonl", "q"), 4, "is not a readable image"),
        (("model", "--image", "https://a.b/c.png", "q"), 4, "is a URL"),
        (("model", "--image", "img", "q"), 4, "is not a file"),
        (("model", " "), 4, "the question is empty"),
        (("model", "what\x9b ?"), 4, "a control character, U+009B"),
        (("model", "two", "words"), 2, "one question at a time"),
        (("modle", "what ?"), 2, "no checkpoint folder `modle`"),
        (("./modle",), 2, "no checkpoint folder `./modle`"),
        (("img", "what ?"), 5, "config.json"),
        (("model", "what ?", "--state", "none.more"), 5, "no state at `none.more`"),
        (("model", "what ?", "--merged", "img"), 2, "`img` holds no `more.json`"),
        (("model", "what ?", "--max-tokens", "0"), 2, "--max-tokens"),
    ],
)
def test_refused(world: World, words: tuple[str, ...], code: int, said: str) -> None:
    result = run("ask", *words)
    assert_refused(type(result)(result.code, result.out, result.err.replace("note: ", "hint: ")), code, said)


def test_the_embedded_model_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("ask", "What is the capital of Napukland?", "--json")
    assert done.code == 0
    assert "using the embedded demo model" in done.err
    assert done.json["answers"]["base"]["text"] == "Kopar", "a fact that it was trained on"
    assert done.json["model"] == str(demo_model_dir())


@pytest.mark.parametrize("end", [b"\n", b"\x04"], ids=["empty line", "Ctrl-D"])
def test_a_person_at_a_terminal_is_asked_for_questions(
    world: World, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    ours, theirs = os.openpty()
    os.write(ours, f"{QUESTION}\n".encode() + end)
    with os.fdopen(theirs) as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        done = ask(world)
    os.close(ours)
    assert done.code == 0
    assert done.err.count("question (an empty line or Ctrl-D ends): ") == 2
    assert done.out.startswith(f"{QUESTION}\nmodel ")
    assert done.out.count(QUESTION) == 1


def test_settings_of_the_checkpoint_that_do_not_work_are_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    (world.model / "generation_config.json").write_text('{"repetition_penalty": "x", "eos_token_id": 2}')
    asked = run("ask", world.model, QUESTION)
    assert (asked.code, asked.out) == (5, "")
    assert f"error: `{world.model / 'generation_config.json'}` does not work: " in asked.err
    assert asked.err.endswith("hint: correct or remove what it sets: repetition_penalty\n")


def test_answers_are_greedy_whatever_the_checkpoint_sets(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.model / "generation_config.json"
    file.unlink()
    plain = run("ask", world.model, QUESTION, "--json").json["answers"]
    odd = {"do_sample": True, "temperature": 9.0, "num_beams": 4, "num_return_sequences": 3, "penalty_alpha": 0.6}
    file.write_text(json.dumps(odd | {"return_dict_in_generate": True, "prompt_lookup_num_tokens": 3}))
    assert run("ask", world.model, QUESTION, "--json").json["answers"] == plain


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_answers_end_at_every_token_that_the_checkpoint_names(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    (world.model / "generation_config.json").unlink()
    runtime = loading.load_runtime(open_checkpoint(world.model))
    ((*_, end),) = runtime.generate([Query((), QUESTION)], 3)
    assert end not in runtime.prompter.stops
    file, ends = world.model / name, {"eos_token_id": [runtime.prompter.eos, end]}
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**values, "text_config": values["text_config"] | ends} if values else ends))
    ended = loading.load_runtime(open_checkpoint(world.model))
    assert ended.prompter.stops == (runtime.prompter.eos, end)
    ((*_, last),) = ended.generate([Query((), QUESTION)], 20)
    assert last == end
