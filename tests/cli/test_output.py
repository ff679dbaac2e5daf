"""What people see: tables as wide as the terminal, colours on a terminal only, a bar that says what is done."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from more_cli.cli.layout import cells_of, laid_out, shortened, wrapped
from more_cli.cli.output import Output, fail
from more_cli.errors import UsageError
from more_cli.files import sha256_bytes
from more_cli.store.ledger import Ledger
from more_cli.store.status import Status
from support.helpers import World, on_terminal, run, terminal

GREEN, YELLOW, RED, BOLD = "\x1b[32m{}\x1b[0m", "\x1b[33m{}\x1b[0m", "\x1b[31m{}\x1b[0m", "\x1b[1m{}\x1b[0m"


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def table(*columns: str, rows: list[list[str]], width: int, right: str = "", cut: str = "") -> list[str]:
    """Lay out a table without styles; `right` and `cut` name one column each."""
    marked = [[name == chosen for name in columns] for chosen in (right, cut)]
    return list(laid_out(columns, rows, width, *marked, lambda text, header: text))


# --- the layout of a table ---


def test_a_table_that_fits_is_as_wide_as_its_texts() -> None:
    assert table("edit", "n", rows=[["a", "1,024"], ["long id", "7"]], width=40, right="n") == [
        "edit         n",
        "a        1,024",
        "long id      7",
    ]


def test_the_longest_texts_give_way_and_break_between_words() -> None:
    lines = table("edit", "question", rows=[["a-long-id-of-one-word", "what is it that you see"]], width=40)
    assert lines == ["edit                   question", "a-long-id-of-one-word  what is it that", " " * 23 + "you see"]


def test_a_short_text_breaks_only_if_the_table_does_not_fit_otherwise() -> None:
    row = ["rel", "0.862 to 1.000", "what is it that you see"]
    assert table("metric", "interval", "question", rows=[row], width=46)[1].startswith("rel     0.862 to 1.000  what")
    assert table("metric", "interval", "question", rows=[row], width=30)[1].startswith("rel     0.862 to    what")


def test_numbers_are_kept_whole_and_a_long_header_is_not() -> None:
    lines = table("tensor", "entries changed", rows=[["x" * 30, "12.5%"]], width=40, right="entries changed")
    assert lines == ["tensor" + " " * 27 + "entries", " " * 33 + "changed", "x" * 30 + "     12.5%"]


def test_columns_that_are_cut_end_in_an_ellipsis() -> None:
    rows = [["e1", "what is it that you see there"]]
    assert table("edit", "question", rows=rows, width=20, cut="question")[1] == "e1    what is it th…"


def test_the_last_cell_of_a_short_row_takes_the_rest_of_the_line() -> None:
    rows = [["e1", "red", "red"], ["revert-2", "e1 and a lot more to say"]]
    assert table("edit", "target", "answer", rows=rows, width=40, cut="target") == [
        "edit      target  answer",
        "e1        red     red",
        "revert-2  e1 and a lot more to say",
    ]


def test_chinese_letters_take_two_places_and_accents_none() -> None:
    assert (cells_of("电车"), cells_of("e\u0301")) == (4, 1)
    assert wrapped("电车电车电", 4) == ["电车", "电车", "电"]
    assert shortened("电车电车", 5) == "电车…"
    assert table("a", "b", rows=[["电车", "x"], ["e\u0301t", "y"]], width=40) == ["a     b", "电车  x", "e\u0301t    y"]


def test_a_path_breaks_at_a_joint() -> None:
    assert wrapped("model.layers.1.mlp.down_proj", 20) == ["model.layers.1.mlp.", "down_proj"]
    assert wrapped("rel.tf_token_acc_noeos", 20) == ["rel.tf_token_acc_", "noeos"]
    assert wrapped("a.verylongnameofonepart", 10) == ["a.verylong", "nameofonep", "art"]


def test_a_table_that_cannot_fit_still_ends() -> None:
    lines = table("a", "b", rows=[["x" * 50, "y" * 50]], width=20)
    assert max(map(len, lines)) <= 20
    assert "".join(line[:9].strip() for line in lines[1:]) == "x" * 50


def test_a_table_of_too_many_numbers_keeps_its_words() -> None:
    lines = table("category", "n", rows=[["numerical_calculation", "1,024,000"]], width=12, right="n")
    assert lines[1] == "numerical_calculation  1,024,000"


# --- how wide ---


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("", 140), ("0", 140), ("wide", 140), ("7", 40)])
def test_the_width_off_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert Output().width == width


def test_a_terminal_knows_its_width_better_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    with terminal(90):
        assert Output().width == 90
    with terminal(0):
        assert Output().width == 70


# --- status at 80 columns ---


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    assert run("init", world.model).code == 0
    return world


def test_status_shows_groups_of_sites_in_80_columns(state: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = run("status", state.model, "--json").json["sites"]
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("status", state.model).out
    lines = [line for line in shown.splitlines() if str(state.root) not in line]
    assert max(map(len, lines)) <= 80
    start = next(number for number, line in enumerate(lines) if line.startswith("sites "))
    rows = [line.split() for line in lines[start + 1 :]]
    assert sum(int(row[2] if "-" in row[1] else row[1]) for row in rows) == len(sites) > len(rows)
    assert {row[0] for row in rows} == {site["group"] for site in sites}
    assert not any(site["name"] in shown for site in sites)
    every = run("status", state.model, "-v").out
    assert all(f"{site['name']} " in every for site in sites)
    assert max(len(line) for line in every.splitlines() if str(state.root) not in line) <= 80


def test_without_a_state_status_shows_groups_too(state: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    state.sidecar.unlink()
    shown = run("status", "model").out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^text\.ffn_out +\d+-\d+ +\d+ +\d+ x \d+$", shown, re.MULTILINE)
    assert "multi_modal_projector.linear_1" not in shown
    monkeypatch.delenv("COLUMNS")
    assert "multi_modal_projector.linear_1" in run("status", "model", "-v").out
    named = run("status", "model", "--state", "none.more").err
    assert named == "note: the state in use is `none.more`, which is not there\n"


def test_status_names_the_edits_that_do_not_stand(state: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "do not stand" not in run("status", "model").out
    with Ledger(state.folder) as ledger:
        for number in range(8):
            status, reason = (Status.REFUSED, "too long") if number else (Status.LEARNT, "")
            words = {"id": f"batch-{number}", "content": sha256_bytes(bytes([number])), "subject": sha256_bytes(b"s")}
            ledger.append({**words, "status": status, "reason": reason})
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("status", "model")
    text = " ".join(shown.out.split())
    assert "edits 8 (1 learnt, 7 refused) failed 7 of 8 edits do not stand: batch-1 (refused)," in text
    assert "batch-5 (refused) and 2 more ledger 8 lines not in the state yet" in text
    assert "batch-6" not in text
    assert max(len(line) for line in shown.out.splitlines() if str(state.root) not in line) <= 80
    assert "hint: `more edit model --retry` tries them again" in shown.err
    found = run("status", "model", "--json").json
    assert found["asked"] == 8
    assert found["failed"] == [{"id": f"batch-{n}", "status": "refused", "reason": "too long"} for n in range(1, 8)]


def test_status_without_anchors_says_how_to_add_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("init", World(tmp_path).model, "--set", "anchors.size=4")
    assert "note: no anchors; `more anchors add model FILE` protects answers" in run("status", "model").err


def test_status_on_a_terminal_is_as_narrow_as_it(state: World) -> None:
    shown = on_terminal("status", "model", columns=72)
    lines = re.sub(r"\x1b\[\d+m", "", shown).splitlines()
    assert max(len(line) for line in lines if str(state.root) not in line and not line.startswith("note: ")) <= 72
    assert BOLD.format("sites") in shown


# --- colours ---


def colourful() -> None:
    output = Output()
    output.table(("edit", "status"), [("learnt it", "learnt"), ("e2", "not-learnt"), ("e3", "superseded")])
    output.table(("gate", ""), [("a>=1", "met"), ("b>=1", "MISSED")])
    output.line("FAILED  ledger   of 3 lines")
    output.note("hint: try it")
    fail(UsageError("this is\nerror: bad", "do that"))


def test_a_terminal_shows_colours() -> None:
    with terminal() as shown:
        colourful()
    assert shown[0].splitlines() == [
        f"{BOLD.format('edit')}       {BOLD.format('status')}",
        f"learnt it  {GREEN.format('learnt')}",
        f"e2         {RED.format('not-learnt')}",
        f"e3         {YELLOW.format('superseded')}",
        BOLD.format("gate"),
        f"a>=1  {GREEN.format('met')}",
        f"b>=1  {RED.format('MISSED')}",
        f"{RED.format('FAILED')}  ledger   of 3 lines",
        "\x1b[36mhint:\x1b[0m try it",
        f"{RED.format('error:')} this is",
        f"{RED.format('error:')} bad",
        "\x1b[36mhint:\x1b[0m do that",
    ]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with terminal() as shown:
        colourful()
    assert "b>=1  MISSED" in shown[0]
    assert "\x1b" not in shown[0]


def test_json_and_pipes_have_no_colours(
    state: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "1")
    assert "\x1b" not in on_terminal("status", "model", "--json")
    colourful()
    assert not any("\x1b" in text for text in capsys.readouterr())


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_colours_that_are_asked_for_are_shown_off_a_terminal_too_but_not_in_json(
    state: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run("status", "model").out
    monkeypatch.setenv(name, "1")
    assert BOLD.format("sites") in run("status", "model").out
    assert run("status", "nowhere").err.startswith(f"{RED.format('error:')} ")
    assert "\x1b" not in run("status", "model", "--json").out
    monkeypatch.setenv(name, "0" if name == "CLICOLOR_FORCE" else "")
    assert "\x1b" not in run("status", "model").out
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("status", "model").out


def test_the_base_and_what_came_after_have_the_colours_of_a_diff() -> None:
    with terminal() as shown:
        Output().fields({"before": "a tram", "after": "a bus"})
        Output().table(("model", "answer"), [("base", "a tram"), ("edited", "a bus")])
    assert [row.split("  ")[0] for row in shown[0].splitlines()] == [
        f"{RED.format('before')}",
        f"{GREEN.format('after')}",
        BOLD.format("model"),
        RED.format("base"),
        GREEN.format("edited"),
    ]


def test_text_of_a_record_has_no_colour_of_its_own() -> None:
    with terminal() as shown:
        Output().table(("question",), [("\x1b[31mred",)])
    assert shown[0].splitlines()[1] == r"\u001b[31mred"


# --- progress ---


def test_a_bar_shows_no_count_before_there_is_one() -> None:
    with terminal() as shown, Output().progress() as report:
        report(0, None, "loading the model")
        _draw()
        report(3, 8, "edit e4")
        _draw()
        report(0, None, "consolidating")
        _draw()
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown[0])
    drawn = [line.strip("\r ") for line in re.split(r"[\r\n]+", plain) if line.strip("\r ")]
    loading = [line for line in drawn if "loading the model" in line]
    assert loading
    assert not any("/" in line for line in loading)
    assert any("3/8" in line and "edit e4" in line for line in drawn)
    assert not any("/" in line for line in drawn if "consolidating" in line)
    assert not any("?" in line for line in drawn)


def _draw() -> None:
    """Wait until the bar, which is drawn ten times a second, has been drawn."""
    time.sleep(0.25)


def test_log_lines_have_no_count_before_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("more_cli.cli.output.LOG_SECONDS", -1)
    with Output().progress() as report:
        report(0, None, "loading the model")
        report(3, 8, "edit e4")
    assert capsys.readouterr().err == "loading the model\nedit e4: 3 of 8\n"


def test_a_missing_value_is_a_blank_cell(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("edit", "answer"), [("e1", None)])
    assert capsys.readouterr().out == "edit  answer\ne1\n"


def test_a_table_says_how_many_rows_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("edit",), [("e1",)], left_out=1200)
    Output().table(("edit",), [("e1",)], left_out=-3)
    Output(as_json=True).table(("edit",), [("e1",)], left_out=1200)
    assert capsys.readouterr().out == "edit\ne1\nand 1,200 more: --json has all\nedit\ne1\n"


def test_a_name_in_a_header_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("edit", "a\x1b[31m\nb.more"), [["e1", "learnt"]])
    assert capsys.readouterr().out.splitlines()[0] == r"edit  a\u001b[31m b.more"
