"""Every block of README and docs is executed or checked, or says why not."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.pages import EXECUTED, PAGES, ROOT, Block, blocks, with_texts
from generator.session import WrongExitError, needs_shell, run_page
from generator.transcripts import PROCESSOR, StaleError, fixed, fresh_transcripts, messages, processor, rewritten
from more_cli.errors import MoreError
from more_cli.inputs.edits import EditLine
from more_cli.recipe.files import load_recipe
from more_cli.store.project import KEYS, read_settings
from more_lab.sweep.file import read_sweep

CHECKED = {"json", "yaml", "toml"}
UNCHECKED = {"text", "sh"}
"""Output, and scripts that workflows run."""
_SWEEP = re.compile(r"^(editors =|\[fleet\])", re.MULTILINE)
_PROJECT = re.compile(r"^(model|state|device) =", re.MULTILINE)
RUN = [page for page in PAGES if any(block.runs for block in blocks(page))]


def test_every_block_has_a_known_language() -> None:
    known = CHECKED | EXECUTED | UNCHECKED
    assert [str(block) for page in PAGES for block in blocks(page) if block.language not in known] == []


def test_json_yaml_and_toml_can_be_read(tmp_path: Path) -> None:
    wrong = []
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language in CHECKED and not block.not_run:
            try:
                check(block, tmp_path)
            except (AssertionError, ValueError, MoreError, yaml.YAMLError) as error:
                wrong.append(f"{block}: {error}")
    assert wrong == []


def check(block: Block, folder: Path) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.text), block
    elif block.language == "toml":
        path = folder / "block.toml"
        path.write_text(block.text, encoding="utf-8")
        if _SWEEP.search(block.text):
            read_sweep(path)
        elif _PROJECT.search(block.text):
            assert read_settings(path).keys() == KEYS.keys(), block
        else:
            load_recipe(str(path))
    else:
        for value in json_values(block.text):
            keys = set(value) if isinstance(value, dict) else set()
            if {"question", "target"} <= keys and not keys & {"schema", "status", "verdict"}:
                EditLine.model_validate(value)


def json_values(text: str) -> list[Any]:
    """Return one JSON value, or those of JSON lines."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_runs_from_an_empty_folder_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    if "ssh-keygen" in page.read_text(encoding="utf-8") and shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    try:
        fresh = fresh_transcripts(page, tmp_path)
        stale = {str(block): text for block, text in fresh.items() if text != block.text}
        said = [str(block) for block, text in fresh.items() if messages(text) != messages(block.text)]
        assert said == [], "errors and hints of these transcripts have other words now"
    except StaleError as error:
        stale = {"a shortened transcript": str(error)}
    if stale and PROCESSOR.read_text(encoding="utf-8").strip() != processor():
        pytest.skip("every command ended as it should; the numbers are those of another kind of processor")
    assert stale == {}, f"run `python docs/generate.py --transcripts {page.relative_to(ROOT)}`"


def test_lines_with_shell_syntax_are_known() -> None:
    assert needs_shell("more log llava/ | head -3")
    assert needs_shell("more log llava/ --json > log.json")
    assert needs_shell('more status "$MODEL"')
    assert not needs_shell('more eval llava/ --gate "rel.gen_exact>=0.95"  # exit 6; a gate | more')
    assert not needs_shell("more log llava/ --id 'batch-*'")


def test_blocks_are_found_with_the_reason_why_they_do_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- not run: needs a GPU -->\n```bash\nmore a\n```\n\n1. B\n\n    ```text\n    out\n    ```\n"
    )
    first, second = blocks(page)
    assert (first.language, first.text, first.not_run, first.line) == ("bash", "more a\n", "needs a GPU", 4)
    assert (second.language, second.text, second.not_run) == ("text", "out\n", "")


# --- transcripts ---


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_a_transcript_is_what_the_commands_above_it_print_now(tmp_path: Path) -> None:
    page = page_of(
        tmp_path, "```bash\nmkdir a\ncd a\npwd\nls b  # exit 2\n```\n\n```text\nold\n```\n\n```text\nkept\n```\n"
    )
    fresh = fresh_transcripts(page, tmp_path)
    page.write_text(with_texts(page, fresh), encoding="utf-8")
    _, shown, other = blocks(page)
    first, second = shown.text.splitlines()
    assert (first, other.text) == ("/home/me/a", "kept\n")
    assert "No such file" in second


def test_a_command_that_ends_otherwise_than_the_page_says_is_named(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```bash\ntrue\nmore eval none  # exit 4\n```\n")
    with pytest.raises(WrongExitError, match=r"page\.md:1: exit 5 from: more eval none"):
        list(run_page(page, tmp_path))


@pytest.mark.parametrize(
    ("shown", "printed", "now"),
    [
        (["a 1", "b 2"], ["a 1", "b 3", "c"], ["a 1", "b 3", "c"]),
        (["a 1", "..."], ["a 2", "b", "c"], ["a 2", "..."]),
        (["a", "...", "c 0.123"], ["a", "b", "c 0.124", "d"], ["a", "...", "c 0.124", "..."]),
        (["...", "b"], ["a", "b"], ["...", "b"]),
        (["a", "...", "c"], ["a", "", "c"], ["a", "", "c"]),
        (["took 3 s, 1,234 bytes, 12.5 ms"], ["took 14 s, 999 bytes, 1.0 ms"], ["took 3 s, 1,234 bytes, 12.5 ms"]),
        (["line 1  2026-11-24 08:04:08  x"], ["line 1 2027-01-02 00:00:00  x"], ["line 1  2026-11-24 08:04:08  x"]),
    ],
)
def test_a_transcript_keeps_its_lines_and_says_what_is_left_out(
    shown: list[str], printed: list[str], now: list[str]
) -> None:
    assert rewritten(shown, printed, "page.md:1") == now


def test_a_kept_line_that_is_not_printed_any_more_is_named() -> None:
    with pytest.raises(StaleError, match=r"page\.md:1: not printed any more: b 2"):
        rewritten(["a", "...", "b 2"], ["a", "c"], "page.md:1")


@pytest.mark.parametrize(
    ("one", "other"), [("2 of 48", "3 of 48"), ("0.875", "0.979"), ("Rux", "Trivil"), ("exit 3", "exit 6")]
)
def test_counts_words_and_all_but_the_last_digit_are_compared(one: str, other: str) -> None:
    assert fixed(one) != fixed(other)


def test_words_of_errors_and_hints_are_compared_and_their_numbers_are_not() -> None:
    shown = "drift 0.1\nerror: needs about 0.6 GiB\nhint: --memory GIB, or fewer sites\n"
    assert messages(shown) == messages(shown.replace("drift 0.1", "no drift").replace("0.6", "12"))
    assert messages(shown) != messages(shown.replace(", or fewer sites", ""))
