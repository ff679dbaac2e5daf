"""What a checkpoint brings beside its weights: a chat template is a program, a tokenizer a file of any size."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import StateError
from more_cli.model import prompts
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter
from more_cli.system.confined import Exceeded, confined
from support.helpers import World, line, peak_kilobytes, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited on Linux only")

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set n = namespace(x='a') %}{% for i in range(64) %}{% set n.x = n.x + n.x %}{% endfor %}"
HOSTILE = {
    "{{ 'a' * 10000000000 }}": "takes more than 256 MiB of memory",
    "{{ '%09999999999d' % 1 }}": "takes more than 256 MiB of memory",
    "{{ '{:>9999999999}'.format('a') }}": "takes more than 256 MiB of memory",
    "{{ ('a' * 99999) | list | join('a' * 99999) }}": "takes more than 256 MiB of memory",
    "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}": "takes more than 256 MiB of memory",
    DOUBLED: "takes more than 256 MiB of memory",
    LOOPS: "takes more than 1 s",
    "{{ (9 ** 9999999) ** 9 }}": "takes more than 1 s",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "calls itself too deeply",
    f"{{{{ {'(' * 99999}1{')' * 99999} }}}}": "calls itself too deeply",
    "{% for i in range(10 ** 12) %}x{% endfor %}": "fails: Range too big",
    "{{ 'a' * 99999 }}": "makes more than 64 KiB of text",
    "{{ raise_exception('no pictures\\nplease') }}": "fails: no pictures",
    "{% for %}": "fails: Expected an expression",
    "{% if messages[0].content | length > 1 %}{{ 'a' * 10000000000 }}{% endif %}": "takes more than 256 MiB of memory",
    "Is it day?": "leaves out or changes the question",
    "{% for message in messages %}{{ message.content }}{% endfor %}": "leaves out or changes the question",
}
"""Templates, and what is said of each."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("hostile") / "world", text_layers=1)


@pytest.mark.parametrize("template", HOSTILE, ids=lambda text: text[:30])
def test_a_hostile_template_is_one_error_that_names_its_file(
    world: World, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "TEMPLATE_SECONDS", 1)
    file = world.model / "chat_template.jinja"
    honest, start = file.read_text(), time.monotonic()
    before = peak_kilobytes()
    file.write_text(template)
    try:
        with pytest.raises(StateError) as refused:
            load_prompter(open_checkpoint(world.model))
    finally:
        file.write_text(honest)
    assert refused.value.message.startswith(f"{file}: the chat template {HOSTILE[template]}"), refused.value.message
    assert "\n" not in refused.value.message
    assert time.monotonic() - start < 30
    assert peak_kilobytes() - before < 100_000, "this process has taken 100 MB"


def test_a_command_says_it_in_one_line(world: World, tmp_path: Path) -> None:
    file = world.model / "chat_template.jinja"
    honest = file.read_text()
    file.write_text("{{ 'a' * 10000000000 }}")
    world.write([line(0)])
    try:
        result = world.edit("--dry-run")
    finally:
        file.write_text(honest)
    assert (result.code, result.err.count("error: ")) == (5, 1)
    assert f"error: {file}: the chat template takes more than 256 MiB of memory\nhint: " in result.err


def test_a_template_that_behaves_at_first_is_not_run_again(world: World) -> None:
    """What a template does may depend on the date and on chance: its text is taken once."""
    file = world.model / "chat_template.jinja"
    honest = file.read_text()
    file.write_text("{{ range(99999) | random }}{{ messages[0].content[-1].text }}")
    try:
        loaded = [load_prompter(open_checkpoint(world.model)) for _ in range(5)]
        assert len({prompter.render(Query((), "what ?")) for prompter in loaded * 4}) == 1
    finally:
        file.write_text(honest)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "processor_config.json", "tokenizer.json"])
def test_a_deeply_nested_file_is_one_error(world: World, tmp_path: Path, name: str) -> None:
    deep = world.copy(tmp_path)
    (deep.model / name).write_text("[" * 100_000)
    result = run("ask", deep.model, "what ?")
    assert result.code == 5
    assert "the processor does not load: nested more than 32 levels deep" in result.err


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json"])
def test_a_huge_file_is_not_read(world: World, name: str) -> None:
    file = world.model / name
    before = file.read_bytes() if file.exists() else None
    os.truncate(file, 200 << 20) if before is not None else file.touch()
    if before is None:
        os.truncate(file, 200 << 20)
    try:
        result = run("ask", world.model, "what ?")
    finally:
        file.write_bytes(before) if before is not None else file.unlink()
    assert result.code == 5
    assert f"`{file}` has 209,715,200 bytes, more than 134,217,728" in result.err


def test_a_crash_of_the_child_is_an_error() -> None:
    with pytest.raises(Exceeded, match="ends in a crash"):
        confined(lambda: os.kill(os.getpid(), signal.SIGSEGV) or "")
    with pytest.raises(Exceeded, match="ends in a crash"):
        confined(lambda: os._exit(3) or "")
    assert confined(lambda: "ä\ud800") == "ä\ud800"
