"""`more convert`: tables, conversations and annotations become lines that `more edit` accepts, with every field."""

from __future__ import annotations

import base64
import bz2
import csv
import datetime
import errno
import gzip
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from more_cli.inputs.edits import read_edits
from support.helpers import COLOURS, World, run, tree
from support.refused import assert_refused

FULL = {
    "id": "e1",
    "image": "img/red.png",
    "question": "What colour is it?",
    "target": "red",
    "rephrases": ["Which colour?", "Its colour, in a word?"],
    "image_rephrases": ["img/orange.png"],
    "locality": [{"question": "Is it day?", "answer": "yes", "image": "img/blue.png"}],
    "portability": [{"question": "Warm or cold?", "answer": "warm", "hop": 1}],
    "tags": {"team": "paint"},
}
SECOND = {"id": "e2", "image": ["img/blue.png"], "question": "And, this; one?", "target": 'say "blue"'}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "img").mkdir()
    for colour in COLOURS:
        Image.new("RGB", (8, 8), colour).save(tmp_path / "img" / f"{colour}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write_csv(path: str, rows: list[dict[str, Any]], **form: Any) -> str:
    header = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding=form.pop("encoding", "utf-8")) as file:
        writer = csv.DictWriter(file, header, **form)
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return path


def write_json(path: str, value: Any) -> str:
    Path(path).write_text(json.dumps(value), encoding="utf-8")
    return path


def converted(source: str, *options: str) -> list[dict[str, Any]]:
    """Convert, check that `more edit` reads the same, and return the lines."""
    done = run("convert", source, "-o", "edits.jsonl", "--force", *options)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in Path("edits.jsonl").read_text().splitlines()]
    assert len(read_edits(Path("edits.jsonl")).edits) == len(lines)
    return lines


def spelled(line: dict[str, Any]) -> dict[str, Any]:
    """One image as a text."""
    image = line.get("image")
    return line | {"image": image[0]} if isinstance(image, list) and len(image) == 1 else line


# --- tables ---


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv", {}),
        ("a.csv", {"delimiter": ";", "encoding": "utf-8-sig"}),
        ("a.tsv", {"delimiter": "\t"}),
        ("A.CSV", {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"}),
    ],
)
def test_csv_keeps_every_field(folder: Path, name: str, form: dict[str, Any]) -> None:
    assert converted(write_csv(name, [FULL, SECOND], **form)) == [FULL, spelled(SECOND)]


def test_parquet_keeps_every_field(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = FULL | {"image": ["img/red.png"]}
    table = pa.Table.from_pylist([row, SECOND | {"portability": [{"question": "Q", "answer": "A"}]}])
    parquet.write_table(table, "a.parquet")
    first, second = converted("a.parquet")
    assert first == FULL
    assert second == spelled(SECOND) | {"portability": [{"question": "Q", "answer": "A"}]}
    Path("a.parquet").rename("table.bin")
    assert converted("table.bin") == [first, second], "by its bytes, not its name"


def test_parquet_with_pictures_and_times(folder: Path) -> None:
    """As the `datasets` library stores pictures; other kinds of values become text in `tags`."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = (folder / "img/red.png").read_bytes()
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    row = {"image": {"bytes": data, "path": None}, "question": "Q", "target": 3, "at": when, "score": float("nan")}
    parquet.write_table(pa.Table.from_pylist([row]), "a.parquet")
    (line,) = converted("a.parquet")
    assert base64.b64decode(line["image"].partition(",")[2]) == data
    assert (line["target"], line["tags"]) == ("3", {"at": "2026-01-02 03:04:05", "score": None})
    dated, missing = row | {"target": datetime.date(2026, 1, 2)}, row | {"target": float("nan")}
    parquet.write_table(pa.Table.from_pylist([dated]), "b.parquet")
    assert converted("b.parquet")[0]["target"] == "2026-01-02"
    parquet.write_table(pa.Table.from_pylist([missing]), "c.parquet")
    assert_refused(run("convert", "c.parquet", "-o", "c.jsonl"), 4, "c.parquet:1: `target` is empty")


def test_columns_of_other_names(folder: Path) -> None:
    rows = [{"path": "img/red.png", "q": "Q?", "right": "red", "p1": "A?", "p2": "B?", "asked": "C?", "note": "x"}]
    write_csv("a.csv", rows)
    names = ("image=path", "question=q", "target=right", "rephrases=p1", "rephrases=p2", "locality.question=asked")
    options = [word for name in names for word in ("--column", name)]
    assert converted("a.csv", *options) == [
        {
            "image": "img/red.png",
            "question": "Q?",
            "target": "red",
            "rephrases": ["A?", "B?"],
            "locality": [{"question": "C?"}],
            "tags": {"note": "x"},
        }
    ]
    assert "kept in tags: note\n" in run("convert", "a.csv", "-o", "b.jsonl", *options).out


def test_names_in_capital_letters_and_the_plural_of_image(folder: Path) -> None:
    row = {"Images": "img/red.png", "Question": "<image>\nWhat colour?", "TARGET": "red", "Note": "x"}
    line = {"image": "img/red.png", "question": "What colour?", "target": "red", "tags": {"Note": "x"}}
    write_csv("a.csv", [row])
    assert converted("a.csv") == [line]
    write_csv("a.csv", [row | {"image": "img/blue.png"}])
    (both,) = converted("a.csv")
    assert (both["image"], both["tags"]) == ("img/blue.png", {"Images": "img/red.png", "Note": "x"})


def test_a_first_line_that_names_the_delimiter(folder: Path) -> None:
    Path("a.csv").write_bytes("\ufeffsep=;\r\nquestion;target\r\nWo, und wann?;dort, jetzt\r\n".encode())
    assert converted("a.csv") == [{"question": "Wo, und wann?", "target": "dort, jetzt"}]


def test_a_picture_as_plain_base64_or_as_an_upload(folder: Path) -> None:
    text = base64.b64encode((folder / "img/red.png").read_bytes()).decode()
    upload = {"path": "img/blue.png", "url": None, "orig_name": "blue.png"}
    write_csv("a.csv", [{"image": image, "question": "Q?", "target": "red"} for image in (text, upload)])
    Image.open("img/red.png").save("img/red.jpg")
    jpeg = base64.b64encode((folder / "img/red.jpg").read_bytes()).decode()
    plain, path = (line["image"] for line in converted("a.csv"))
    assert (plain.partition("base64,")[2], path) == (text, "img/blue.png")
    assert jpeg.startswith("/9j/")
    (line,) = converted(write_json("b.json", [{"image": jpeg, "question": "Q?", "target": "red"}]))
    assert line["image"].endswith(f"base64,{jpeg}")


def test_a_picture_in_a_column_of_another_name_is_not_lost(folder: Path) -> None:
    write_csv("a.csv", [{"image path": "img/red.png", "question": "Q?", "target": "red"}])
    said = (
        "a.csv:2: `image path` names a picture, and the row has no image; say --column image='image path', or --column"
    )
    assert_refused(run("convert", "a.csv", "-o", "b.jsonl"), 4, said)
    (line,) = converted("a.csv", "--column", "image=image path")
    assert line["image"] == "img/red.png"
    (line,) = converted("a.csv", "--column", "tags=image path")
    assert "image" not in line


def test_a_file_uri_is_a_path(folder: Path) -> None:
    asked = {"role": "user", "content": [{"type": "image", "image": f"file://{folder}/img/red.png"}]}
    asked["content"].append({"type": "text", "text": "Q?"})
    (line,) = converted(write_json("a.json", [{"messages": [asked, {"role": "assistant", "content": "red"}]}]))
    assert line["image"] == "img/red.png"


def test_edit_says_how_lines_of_other_names_are_read(folder: Path) -> None:
    world = World(folder / "world", text_layers=1)
    write_json("a.json", [{"text": "Is there a cup?", "label": "yes"}])
    said = (
        "hint: `more convert FILE -o edits.jsonl --column question=COLUMN --column target=COLUMN` reads lines of other "
    )
    assert_refused(run("edit", world.model, "a.json", "--dry-run"), 4, said)


def test_earlier_rounds_as_pairs(folder: Path) -> None:
    row = {"query": "And this?", "response": "blue", "history": [["What colour?", "red"]]}
    options = [w for name in ("question=query", "target=response", "messages=history") for w in ("--column", name)]
    told = [{"role": "user", "content": "What colour?"}, {"role": "assistant", "content": "red"}]
    assert converted(write_json("a.json", [row]), *options) == [
        {"messages": told, "question": "And this?", "target": "blue"}
    ]


def test_one_object_over_several_lines(folder: Path) -> None:
    Path("a.json").write_text(json.dumps(FULL, indent=2))
    assert converted("a.json") == [FULL]
    assert len(read_edits(Path("a.json")).edits) == 1


# --- conversations ---


def llava(*turns: str, **fields: Any) -> dict[str, Any]:
    roles = ("human", "gpt")
    return {**fields, "conversations": [{"from": roles[n % 2], "value": text} for n, text in enumerate(turns)]}


def test_llava_conversations(folder: Path) -> None:
    record = llava("<image>\nWhat colour?", "red", id="c1", image="img/red.png", model="v1")
    text_only = llava("Who?", "nobody", id="c2")
    assert converted(write_json("a.json", [record, text_only])) == [
        {"id": "c1", "image": "img/red.png", "question": "What colour?", "target": "red", "tags": {"model": "v1"}},
        {"id": "c2", "question": "Who?", "target": "nobody"},
    ]


def test_rounds(folder: Path) -> None:
    write_json("a.json", [llava("<image>A?", "a", "B?", "b", id="c1", image="img/red.png")])
    shown = [{"type": "image", "image": "img/red.png"}, {"type": "text", "text": "A?"}]
    before = [{"role": "user", "content": shown}, {"role": "assistant", "content": "a"}]
    last = {"messages": before, "question": "B?", "target": "b"}
    assert converted("a.json") == [{"id": "c1", **last}]
    first = {"id": "c1", "image": "img/red.png", "question": "A?", "target": "a"}
    assert converted("a.json", "--each-round") == [first, {"id": "c1-2", **last}]


def test_rounds_need_a_conversation(folder: Path) -> None:
    (folder / "a.csv").write_text("question,target\nWho?,nobody\n")
    refused = run("convert", "a.csv", "-o", "edits.jsonl", "--each-round")
    assert_refused(refused, 2, "error: `--each-round`: a.csv holds no conversation\nhint: leave it out")
    assert not (folder / "edits.jsonl").exists()


def test_messages_in_every_spelling_of_an_image(folder: Path) -> None:
    uri = "data:image/png;base64," + base64.b64encode((folder / "img/red.png").read_bytes()).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": uri}},
        {"type": "image_url", "image_url": "img/red.png"},
        {"type": "input_image", "image_url": "img/red.png"},
        {"type": "image", "image": "img/red.png"},
        {"type": "image", "path": "img/red.png"},
        {"type": "image"},
    ]
    lines = []
    for number, part in enumerate(parts):
        asked = {"role": "user", "content": [part, {"type": "text", "text": f"What {number}?"}]}
        answer = {"role": "assistant", "content": [{"type": "text", "text": "red"}]}
        system = {"role": "system", "content": "Be brief."}
        lines.append({"messages": [system, asked, answer], "n": number})
    lines[-1]["images"] = ["img/red.png"]
    Path("a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for number, line in enumerate(converted("a.jsonl")):
        assert line == {
            "image": uri if number == 0 else "img/red.png",
            "question": f"What {number}?",
            "target": "red",
            "tags": {"system": "Be brief.", "n": number},
        }


def test_images_named_within_a_text(folder: Path) -> None:
    text = "Picture 1: <img>img/red.png</img>\nPicture 2: <img>img/blue.png</img>\nWhich is warmer?"
    assert converted(write_json("a.json", [llava(text, "the first")])) == [
        {"image": ["img/red.png", "img/blue.png"], "question": "Which is warmer?", "target": "the first"}
    ]


def test_messages_that_follow_one_another(folder: Path) -> None:
    """A question and its image, each in a message of its own, after a developer's message."""
    told = {"role": "developer", "content": "Be brief."}
    asked = {"role": "user", "content": "What colour?"}
    shown = {"role": "user", "content": [{"type": "image_url", "value": "img/red.png"}]}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "red"}]}
    assert converted(write_json("a.json", [{"messages": [told, asked, shown, answer]}])) == [
        {"image": "img/red.png", "question": "What colour?", "target": "red", "tags": {"system": "Be brief."}}
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"chosen": {"from": "gpt", "value": "red"}},
        {"chosen": "red"},
        {"chosen": [{"role": "assistant", "content": [{"type": "text", "text": "red"}]}]},
        {"completion": [{"role": "assistant", "content": "red"}], "label": True},
    ],
)
@pytest.mark.parametrize("key", ["conversations", "prompt"])
def test_the_answer_of_a_preference_pair_is_the_chosen_one(folder: Path, key: str, fields: dict[str, Any]) -> None:
    record = {key: [{"role": "user", "content": "<image>What colour?"}], "images": ["img/red.png"], "rejected": "blue"}
    (line,) = converted(write_json("a.json", [record | fields]))
    label = {"label": True} if "label" in fields else {}
    assert line == {
        "image": "img/red.png", "question": "What colour?", "target": "red", "tags": {"rejected": "blue"} | label
    }  # fmt: skip


def test_pairs_of_whole_conversations(folder: Path) -> None:
    asked = {"role": "user", "content": "What colour?"}
    chosen, rejected = ([asked, {"role": "assistant", "content": answer}] for answer in ("red", "blue"))
    (line,) = converted(write_json("a.json", [{"chosen": chosen, "rejected": rejected}]))
    assert (line["question"], line["target"], line["tags"]) == ("What colour?", "red", {"rejected": rejected})


def test_parquet_with_pictures_of_earlier_turns(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = (folder / "img/red.png").read_bytes()
    row = llava("<image>A?", "a", "B?", "b", images=[{"bytes": data, "path": None}])
    parquet.write_table(pa.Table.from_pylist([row]), "a.parquet")
    (line,) = converted("a.parquet")
    assert base64.b64decode(line["messages"][0]["content"][0]["image"].partition(",")[2]) == data


# --- annotations ---


def task(number: int, *annotations: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"id": number, "data": data, "annotations": list(annotations), "project": 1}


def annotation(**controls: Any) -> dict[str, Any]:
    results = []
    for control, values in controls.items():
        kind = "choices" if control.startswith("is_") else "text"
        value = values if isinstance(values, dict) else {kind: values}
        results.append({"from_name": control, "to_name": "picture", "type": "textarea", "value": value})
    return {"id": 7, "was_cancelled": False, "result": results}


def test_label_studio(folder: Path) -> None:
    """The configuration that `inputs/label_studio.py` states, with a further control."""
    given = annotation(target=["red"], rephrases=["A?", "B?"], is_sure=["yes"], box={"x": 1})
    cancelled = annotation(target=["blue"]) | {"was_cancelled": True}
    tasks = [
        task(3, cancelled, given, given, image="/data/local-files/?d=img%2Fred.png", question="Q?"),
        task(4, annotation(target=["blue"]), image="/data/upload/1/blue.png", question="Q?"),
    ]
    (folder / "upload/1").mkdir(parents=True)
    (folder / "img/blue.png").rename(folder / "upload/1/blue.png")
    assert converted(write_json("a.json", tasks)) == [
        {
            "image": "img/red.png",
            "question": "Q?",
            "target": "red",
            "rephrases": ["A?", "B?"],
            "tags": {"is_sure": "yes", "box": {"x": 1}, "label_studio": {"task": 3, "annotation": 7}},
        },
        {
            "image": "upload/1/blue.png",
            "question": "Q?",
            "target": "blue",
            "tags": {"label_studio": {"task": 4, "annotation": 7}},
        },
    ]
    least = {"image": "/data/upload/1/blue.png", "question": "Q?", "target": "blue", "annotation_id": 7, "annotator": 1}
    several = least | {"rephrases": {"text": ["A?", "B?"]}}
    assert converted(write_json("min.json", [several]))[0]["rephrases"] == ["A?", "B?"]
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    joined = given | {"result": [*given["result"], relation]}
    assert converted(write_json("b.json", [task(3, joined, image="img/red.png", question="Q?")]))[0]["target"] == "red"
    (line,) = converted(write_json("min.json", [least]))
    assert (line["image"], line["tags"]) == ("upload/1/blue.png", {"annotation_id": 7, "annotator": 1})


def test_tasks_that_are_no_correction(folder: Path) -> None:
    tasks = [
        task(1, image="img/red.png", question="Q?"),
        task(2, annotation(target=["a"]), annotation(target=["b"]), image="img/red.png", question="Q?"),
        task(3, annotation(target=["a", "b"]), image="img/red.png", question="Q?"),
        task(4, annotation(answer=["a"]), image="img/red.png", question="Q?"),
    ]
    done = run("convert", write_json("a.json", tasks), "-o", "b.jsonl")
    assert_refused(done, 4)
    assert done.err.splitlines()[:4] == [
        "error: a.json:1: the task has no annotation; label it, or leave it out with --skip-bad",
        "error: a.json:2: the task has 2 annotations that differ; keep the one that is right",
        "error: a.json:3: `target` has 2 values; keep the one that is right",
        "error: a.json:4: `target` is missing; --column target=COLUMN names its column; there are `image`, `question`, "
        "`answer`, `tags`",
    ]


# --- what is written ---


def test_mmedit_records_and_edit_lines(folder: Path) -> None:
    mmedit = {"src": "Q?", "alt": "red", "image": "img/red.png", "rephrase": "R?", "pred": "blue"}
    first, second = converted(write_json("a.json", [mmedit, FULL]))
    assert first == {
        "image": "img/red.png", "question": "Q?", "target": "red", "rephrases": ["R?"], "tags": {"pred": "blue"}
    }  # fmt: skip
    assert second == FULL


def test_paths_are_relative_to_the_new_file(folder: Path) -> None:
    write_csv("a.csv", [FULL])
    (folder / "out").mkdir()
    assert run("convert", "a.csv", "-o", "out/edits.jsonl", "-q").code == 0
    line = json.loads(Path("out/edits.jsonl").read_text())
    assert (line["image"], line["image_rephrases"]) == ("../img/red.png", ["../img/orange.png"])
    assert line["locality"][0]["image"] == "../img/blue.png"
    assert len(read_edits(Path("out/edits.jsonl")).edits) == 1


def test_a_video_and_images_of_earlier_turns_too(folder: Path) -> None:
    shades = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 240)]
    shades[0].save("img/clip.webp", save_all=True, append_images=shades[1:], lossless=True)
    asked = {"role": "user", "content": [{"type": "image", "image": "img/red.png"}, {"type": "text", "text": "Q?"}]}
    told = [asked, {"role": "assistant", "content": "A"}]
    probe = {"question": "P?", "image": ["img/red.png", "img/blue.png"], "messages": told}
    write_json(
        "a.json", [{"question": "Q?", "target": "red", "video": "img/clip.webp", "frames": 2, "locality": [probe]}]
    )
    (folder / "out").mkdir()
    assert run("convert", "a.json", "-o", "out/edits.jsonl", "-q").code == 0
    (edit,) = read_edits(Path("out/edits.jsonl")).edits
    (line,) = map(json.loads, Path("out/edits.jsonl").read_text().splitlines())
    assert (line["video"], line["frames"], len(edit.images)) == ("../img/clip.webp", 2, 2)
    assert line["locality"][0]["image"] == ["../img/red.png", "../img/blue.png"]
    assert len(edit.locality[0].images) == 3


def test_standard_output_can_be_piped_on(folder: Path) -> None:
    (folder / "in").mkdir()
    write_csv("in/a.csv", [{"image": "../img/red.png", "question": "Wo ist \u2028 er?", "target": "dort"}])
    done = run("convert", "in/a.csv", "-o", "-")
    assert (done.code, done.err) == (0, "")
    assert done.json == {"image": "img/red.png", "question": "Wo ist \u2028 er?", "target": "dort"}
    write_csv("in/a.csv", [{"image": "../img/red.png", "question": "Q"}])
    assert_refused(run("convert", "in/a.csv", "-o", "-"), 4, "in/a.csv:2: `target` is missing")


def test_bad_rows_are_each_named_and_nothing_is_written(folder: Path) -> None:
    good = {"image": "img/red.png", "question": "Q?", "target": "red"}
    rows = [good, good | {"image": "no.png"}, good | {"question": ""}, good | {"target": "blue"}, good, SECOND]
    write_csv("a.csv", [{name: row.get(name, "") for name in (*good, "id")} for row in rows])
    before = tree(folder)
    done = run("convert", "a.csv", "-o", "b.jsonl", "--json")
    assert_refused(done, 4, "hint: nothing was written; --skip-bad leaves these rows out")
    assert [line.partition("a.csv:")[2][:2] for line in done.err.splitlines()[:-1]] == ["3:", "4:", "5:"]
    assert "image not found: `no.png`; image paths start at `.`" in done.err
    assert "gives another answer than line 2" in done.err
    assert tree(folder) == before

    done = run("convert", "a.csv", "-o", "b.jsonl", "--json", "--skip-bad")
    assert done.code == 0
    counts = {name: done.json[name] for name in ("form", "rows", "edits", "skipped")}
    assert counts == {"form": "CSV", "rows": 6, "edits": 2, "skipped": 3}, "a repeated correction is written once"
    assert len(done.json["problems"]) == 3
    assert done.err.count("skipped: a.csv:") == 3


@pytest.mark.parametrize(
    ("name", "data", "code", "said"),
    [
        ("a.csv", b"", 4, "a.csv: holds no rows"),
        ("a.csv", b"question,target\n", 4, "a.csv: holds no rows"),
        ("a.csv", b"question,question\n", 4, "a.csv:1: the header names column `question` twice"),
        ("a.csv", b"question,,target\n", 4, "a.csv:1: the header has a column without a name"),
        ("a.csv", b"question,target\na,b,c\n", 4, "a.csv:2: has 3 cells, the header has 2"),
        ("a.csv", b'question,target\na,"b\n', 4, "a.csv:2: not CSV"),
        ("a.csv", b"question,target\na,b\x00\n", 4, "a.csv:2: "),
        ("a.csv", b"question,target\na,b\x07\n", 4, "a control character, U+0007"),
        ("a.csv", b"question,target\n\xe9,b\n", 4, "save it as UTF-8, for example with `iconv"),
        ("a.xlsx", b"PK\x03\x04", 4, "save the sheet as CSV in UTF-8"),
        ("a.csv", "question,target\n".encode("utf-16"), 4, "is UTF-16"),
        ("a.csv", gzip.compress(b"question,target\n", mtime=0), 4, "is compressed (gzip)"),
        ("a b.csv.gz", gzip.compress(b"question,target\n", mtime=0), 4,
         "unpack it first: gunzip 'a b.csv.gz', then make edit lines of it: more convert 'a b.csv' -o edits.jsonl"),
        ("a.tsv.gz", gzip.compress(b"question\ttarget\n", mtime=0), 4, "gunzip a.tsv.gz, "),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), 4, "gunzip a.parquet.gz, "),
        ("a.csv.bz2", bz2.compress(b"question,target\n"), 4, "unpack it first, then make edit lines of it"),
        ("a.csv", b'question,target,rephrases\na,b,"[1,"\n', 4, "a.csv:2: `rephrases` is not JSON"),
        ("a.csv", b"question,target,locality,locality.question\na,b,c,d\n", 4,
         "a.csv:2: `locality` and `locality.question` both give probes"),
        ("a.parquet", b"PAR1" + bytes(100), 4, "`a.parquet` is not a readable Parquet file"),
        ("a.json", b"[{}]", 4,
         "--column question=COLUMN --column target=COLUMN name their columns; there are none"),
        ("a.json", b'{"info": {}, "questions": [{"question": "Q"}]}', 4,
         "if `questions` holds the rows, take them out: jq -c '.questions[]' FILE > rows.jsonl"),
        ("a.json", b'{\n"1": {"question": "Q"},\n"2": {"question": "R"}}', 4, "jq -c '.[]' FILE > rows.jsonl"),
        ("a.json", b'{\n"question": "Q"\n}\n{\n"question": "R"\n}', 4, "a line of its own: jq -c . FILE > lines.jsonl"),
        ("a.json", b'[{"question": "Q", "target": true}]', 4, "`target` is true, no text"),
        ("a.json", b'[{"question": "<image>Q", "target": "a"}]', 4, "1 place for images in the question, and 0 images"),
        ("a.json", b'["a"]', 4, "a.json:1: must be a JSON object"),
        ("a.json", b'[{"messages": [3]}]', 4, "turn 1 is no object"),
        ("a.json", b'[{"messages": []}]', 4, "the last question has no answer"),
        ("a.json", b'[{"messages": [{"role": "tool", "content": "x"}]}]', 4, "no role `tool`"),
        ("a.json", b'[{"messages": [{"role": "assistant", "content": "x"}]}]', 4, "is of `assistant`, not of `user`"),
        ("a.json", b'[{"messages": [{"role": "user", "content": [{"type": "video"}]}]}]', 4, "no part of type `video`"),
        ("a.json", b'[{"conversations": [{"from": "human", "value": "<image>Q"}, {"from": "gpt", "value": "a"}]}]', 4,
         "1 place for images, and 0 images"),
        ("a.json", b'[{"conversations": [{"from": "human", "value": "<video>Q"}, {"from": "gpt", "value": "a"}]}]', 4,
         "turn 1: only images are read, not what `<video>` stands for"),
        ("a.json", b'[{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "a"}], '
                   b'"label": false}]', 4, "`label` is false: the answer is a bad one"),
        ("b.csv", b"", 4, "file not found: `a.csv`\nhint: did you mean `b.csv`?"),
    ],
)  # fmt: skip
def test_refused(folder: Path, name: str, data: bytes, code: int, said: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    Path(name).write_bytes(data)
    before = tree(folder)
    asked = "a.csv" if name == "b.csv" else name
    assert_refused(run("convert", asked, "-o", "out.jsonl"), code, said)
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--column", "imag=path"), 2, "no field `imag`\nhint: did you mean `image`?"),
        (("--column", "image"), 2, "is not FIELD=COLUMN"),
        (("--column", "id=name", "--column", "tags=name"), 2, "column `name` is named twice"),
        (("--column", "id=nam"), 2, "no column `nam`\nhint: did you mean `name`?"),
        (("--column", "target=question", "--column", "target=name"), 4,
         "a.csv:2: `name` and a column before it both give the target; leave one of them out"),
        (("-o", "a.csv"), 2, "`a.csv` is the file that is read"),
        (("-o", "img"), 2, "`img` is not a file\nhint: name another file"),
        (("-o", "pipe", "--force"), 2, "`pipe` is not a file\nhint: name another file"),
        (("-o", "-", "--json"), 2, "both print on standard output"),
    ],
)  # fmt: skip
def test_options_refused(folder: Path, options: tuple[str, ...], code: int, said: str) -> None:
    write_csv("a.csv", [{"question": "Q", "target": "A", "name": "x"}])
    os.mkfifo("pipe")
    before = tree(folder)
    assert_refused(run("convert", "a.csv", "-o", "out.jsonl", *options), code, said)
    assert tree(folder) == before
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def test_a_pipe_is_refused_before_it_is_opened(folder: Path) -> None:
    os.mkfifo("pipe")  # opened, it would wait for a writer
    assert_refused(run("convert", "pipe", "-o", "out.jsonl"), 4, "`pipe` is a pipe\nhint: save it to a file first")


def test_the_next_command_can_be_pasted(folder: Path) -> None:
    write_csv("a.csv", [{"question": "Q", "target": "A"}])
    Path("out dir").mkdir()
    done = run("convert", "a.csv", "-o", "out dir/e 1.jsonl")
    assert (done.code, done.err) == (0, "next: more edit MODEL 'out dir/e 1.jsonl' --dry-run\n")


# --- more edit ---


@pytest.mark.parametrize("command", ["convert", "edit"])
@pytest.mark.parametrize("url", ["https://example.org/a/edits.jsonl?x=1", "HTTP://example.org/a.csv"])
def test_a_url_is_not_fetched(folder: Path, command: str, url: str) -> None:
    words = [url, "-o", "out.jsonl"] if command == "convert" else [World(folder / "world", text_layers=1).model, url]
    before = tree(folder)
    refused = run(command, *words)
    assert_refused(refused, 4, f"error: `{url}` is a URL, and files are not fetched\nhint: download it first")
    assert tree(folder) == before


@pytest.mark.parametrize("form", ["CSV", "Parquet", "LLaVA conversations", "chat messages", "a Label Studio export"])
def test_edit_says_how_to_convert(folder: Path, form: str) -> None:
    world = World(folder / "world", text_layers=1)
    if form == "CSV":
        path = write_csv("a b.csv", [FULL])
    elif form == "Parquet":
        path = "a.parquet"
        Path(path).write_bytes(b"PAR1 and more")
    else:
        record: dict[str, Any] = {"conversations": [{}]} if "LLaVA" in form else {"messages": []}
        path = write_json("a.json", [task(1, image="x") if "Label" in form else record])
    before = tree(folder)
    done = run("edit", world.model, path)
    quoted = f"'{path}'" if " " in path else path
    assert (done.code, done.out) == (4, "")
    assert done.err == f"error: {path} is {form}: more convert {quoted} -o edits.jsonl\n"
    assert tree(folder) == before


def test_what_was_converted_passes_a_dry_run(folder: Path) -> None:
    world = World(folder / "world", text_layers=1)
    rows = [FULL | {"question": "what colour is it ?"}, SECOND]
    assert run("convert", write_csv("a.csv", rows), "-o", "edits.jsonl").code == 0
    done = run("edit", world.model, "edits.jsonl", "--dry-run")
    assert done.code == 0, done.err
    assert "2 edits checked" in done.out
    lines = run("convert", "a.csv", "-o", "-").out
    assert run("edit", world.model, "-", "--dry-run", stdin=lines.encode()).code == 0


def test_without_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    Path("a.parquet").write_bytes(b"PAR1")
    assert_refused(run("convert", "a.parquet", "-o", "b.jsonl"), 2, 'hint: pip install "more-vlm[tables]"')


def test_a_disk_without_room_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    (folder / "fixes.csv").write_text("question,target\nwhat ?,x\n")
    monkeypatch.setattr("more_cli.ops.convert.convert_into", full)
    refused = run("convert", "fixes.csv", "-o", "edits.jsonl")
    assert (refused.code, refused.err.splitlines()[0]) == (7, "error: cannot write `edits.jsonl`: file too large")
    assert not (folder / "edits.jsonl").exists()


def test_a_parquet_file_is_read_in_a_new_process(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"question": ["what ?", "who ?"], "target": ["x", "y"]}), folder / "fixes.parquet"
    )
    command = [sys.executable, "-m", "more_cli", "convert", "fixes.parquet", "-o", "edits.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((folder / "edits.jsonl").read_text().splitlines()) == 2
