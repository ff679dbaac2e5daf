"""`edits` and `foreign`: every line becomes an edit or a problem that names file and line."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from more_cli.errors import DataError, StreamErrors
from more_cli.files import sha256_bytes
from more_cli.inputs import images, records
from more_cli.inputs.edits import Edit, EditLine, iter_edits, read_edits, read_probes
from more_cli.inputs.foreign import to_native
from more_cli.inputs.records import Problem
from more_cli.inputs.tables import table_form
from more_cli.text import canonical_json
from support.paths import MMEDIT

LINE = {"image": "img/1.png", "question": "What is it?", "target": "a tram"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    for number in range(1, 5):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "img" / f"{number}.png")
    return tmp_path


def stream(root: Path, *lines: dict[str, Any] | str | bytes, name: str = "edits.jsonl") -> Path:
    path = root / name
    raw = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def problems(root: Path, *lines: dict[str, Any] | str | bytes) -> list[str]:
    with pytest.raises(StreamErrors) as caught:
        read_edits(stream(root, *lines))
    assert caught.value.exit_code == 4
    return [text.removeprefix(str(root / "edits.jsonl") + ":") for text in caught.value.problems]


def one(root: Path, **fields: Any) -> Edit:
    (edit,) = read_edits(stream(root, {**LINE, **fields})).edits
    return edit


# --- what an edit line means ---


def test_a_line_becomes_an_edit(root: Path) -> None:
    edit = one(
        root,
        image=["img/1.png", "img/2.png"],
        id="e17",
        rephrases=[" Which vehicle? "],
        image_rephrases=["img/3.png"],
        locality=[{"question": "Who?", "answer": "Me"}, {"image": "img/4.png", "question": "What?"}],
        portability=[{"question": "Where?", "answer": "Here", "hop": 2}],
        tags={"day": 1, "deep": [{"er": None}]},
    )
    assert (edit.id, edit.question, edit.target, edit.line) == ("e17", "What is it?", "a tram", 1)
    assert edit.source == str(root / "edits.jsonl")
    assert [image.spelled for image in edit.images] == ["img/1.png", "img/2.png"]
    assert edit.rephrases == ("Which vehicle?",)
    assert edit.image_rephrases[0].open().getpixel((0, 0)) == (3, 0, 0)
    assert edit.locality[0].images == ()
    assert edit.locality[1].answer is None
    assert edit.portability[0].hop == 2
    assert edit.tags == {"day": 1, "deep": [{"er": None}]}


def test_tags_may_be_a_list_of_strings(root: Path) -> None:
    assert one(root, tags=["night", "fleet-a", "night"]).tags == {"night": True, "fleet-a": True}
    assert one(root, tags=[]).tags == {}


def test_the_default_id_is_the_hash_of_image_bytes_question_and_target(root: Path) -> None:
    edit = one(root)
    image = sha256_bytes((root / "img" / "1.png").read_bytes())
    content = sha256_bytes(canonical_json([[image], "What is it?", "a tram"]).encode())
    assert (edit.content, edit.id) == (content, content[:16])
    (root / "copy.png").write_bytes((root / "img" / "1.png").read_bytes())
    assert one(root, image="copy.png", rephrases=["Other probes?"]).id == edit.id
    other = one(root, target="a bus")
    assert other.id != edit.id
    assert other.subject == edit.subject
    assert one(root, image="img/2.png").subject != edit.subject


@pytest.mark.parametrize("nothing", [None, []])
def test_an_edit_without_image(root: Path, nothing: object) -> None:
    assert one(root, image=nothing).images == ()
    del (line := dict(LINE))["image"]
    assert read_edits(stream(root, line)).edits[0].images == ()


def test_text_is_stripped_at_its_ends_and_else_kept(root: Path) -> None:
    odd = "e\u0301  <image> </s>\n<|im_end|>\tÅ"
    edit = one(root, question=f"\n {odd} ", target=f"{odd}\r\n")
    assert edit.question == edit.target == odd


def test_byte_order_mark_crlf_and_blank_lines(root: Path) -> None:
    text = json.dumps(LINE).encode()
    path = stream(root, b"\xef\xbb\xbf" + text + b"\r", b"", b"  \r", text.replace(b"What", b"Who") + b"\r")
    assert [(edit.question, edit.line) for edit in read_edits(path).edits] == [("What is it?", 1), ("Who is it?", 4)]
    path.write_bytes(path.read_bytes().rstrip())  # no newline at the end
    assert len(read_edits(path).edits) == 2


def test_image_root_and_data_uris(root: Path) -> None:
    uri = "data:image/png;base64," + base64.b64encode((root / "img" / "1.png").read_bytes()).decode()
    other = root / "elsewhere"
    other.mkdir()
    path = stream(other, {**LINE, "image": "1.png"}, {**LINE, "image": uri, "id": "b"})
    first, second = read_edits(path, root / "img").edits
    assert first.content == second.content
    with pytest.raises(StreamErrors) as caught:
        read_edits(path)
    assert "--image-root" in caught.value.hint


# --- problems ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"imgae": "x"}, "unknown field `imgae`; did you mean `image`?"),
        ({"prompt": "x"}, "unknown field `prompt`; did you mean `question`?"),
        ({"zzz": 1}, "unknown field `zzz`"),
        ({"target": 3}, "`target` must be a string, got 3"),
        ({"target": None}, "`target` must be a string, got null"),
        ({"target": True}, "`target` must be a string, got true"),
        ({"target": " \n"}, "`target` is empty"),
        ({"target": "x" * 2_001}, "`target` has 2,001 characters, more than 2,000"),
        ({"question": ""}, "`question` is empty"),
        ({"image": 3}, "`image` must be a path or a list of paths, got 3"),
        ({"image": [3]}, "`image[0]` must be a string, got 3"),
        ({"image": ""}, "image path is empty"),
        ({"image": "img/9.png"}, "image not found: `img/9.png`"),
        ({"image": "https://a/b.png"}, "image `https://a/b.png` is a URL"),
        ({"image_rephrases": ["edits.jsonl"]}, "`edits.jsonl` is not a readable image"),
        ({"rephrases": "one"}, '`rephrases` must be a list, got "one"'),
        ({"locality": [{"answer": "x"}]}, "`locality[0].question` is missing"),
        ({"locality": [{"question": "x", "image": "a"}]}, "image not found: `a`"),
        ({"locality": ["x"]}, '`locality[0]` must be an object, got "x"'),
        ({"portability": [{"question": "x"}]}, "`portability[0].answer` is missing"),
        (
            {"portability": [{"question": "x", "answer": "y", "hop": 0}]},
            "`portability[0].hop` must be a whole number from 1, got 0",
        ),
        ({"tags": 3}, "`tags` must be an object or a list of strings, got 3"),
        ({"tags": None}, "`tags` must be an object or a list of strings, got null"),
        ({"tags": "night"}, '`tags` must be an object or a list of strings, got "night"'),
        ({"tags": ["night", 3]}, "`tags` must be an object or a list of strings, got 3 in the list"),
        ({"tags": ["night", {}]}, "`tags` must be an object or a list of strings, got an object in the list"),
        ({"tags": [" "]}, '`tags` must be an object or a list of strings, got " " in the list'),
        ({"id": 17}, "`id` must be a string, got 17"),
        ({"id": ""}, '`id` must be 1 to 200 printable characters, got ""'),
        ({"id": "x" * 201}, f'`id` must be 1 to 200 printable characters, got "{"x" * 38}…'),
        ({"id": "a\tb"}, '`id` must be 1 to 200 printable characters, got "a\\tb"'),
        ({"question": "a\0b"}, "text holds a control character, U+0000"),
        ({"tags": {"x": "\ud800"}}, "text holds half a surrogate pair, U+D800"),
    ],
)
def test_a_wrong_field_is_named(root: Path, fields: dict[str, Any], expected: str) -> None:
    assert problems(root, {**LINE, **fields}) == [f"1: {expected}"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"image": "a",}', "not JSON: "),
        ("3", "must be a JSON object, got 3"),
        ("{}", "`question` is missing"),
        ('{"question": "a", "question": "b", "target": "c"}', "field `question` is given twice"),
        ('{"question": "a", "target": "b", "tags": {"x": NaN}}', "NaN is not a finite number"),
        ('{"question": "a", "target": "b", "tags": {"x": 1e400}}', "1e400 is not a finite number"),
        ('{"question": "a", "target": "b", "tags": {"x": ' + "[" * 60 + "]" * 60 + "}}", "nested more than 32"),
        (b'{"question": "\xff"}', "not UTF-8: byte 0xff at byte 15"),
    ],
)
def test_a_line_that_is_no_record(root: Path, line: str | bytes, expected: str) -> None:
    assert problems(root, line)[0].startswith(f"1: {expected}")


def test_every_problem_of_a_file_is_listed_and_the_first_twenty_shown(root: Path) -> None:
    found = problems(root, LINE, {"target": ""}, "nonsense", *[{**LINE, "image": f"no-{n}.png"} for n in range(30)])
    assert found[:3] == ["2: `question` is missing", "2: `target` is empty", "3: not JSON: expecting value, column 1"]
    assert len(found) == 33
    with pytest.raises(StreamErrors, match="and 13 more"):
        read_edits(root / "edits.jsonl")


@pytest.mark.parametrize(("end", "cut_off"), [('"b"', True), ('"b", "tags": {"x": NaN}}', False)])
def test_a_last_line_that_can_be_parsed_was_not_cut_off(root: Path, end: str, cut_off: bool) -> None:
    (root / "edits.jsonl").write_text(f'{{"question": "a", "target": {end}', encoding="utf-8")
    with pytest.raises(StreamErrors) as caught:
        read_edits(root / "edits.jsonl")
    assert ("was it cut off?" in caught.value.message) is cut_off


def test_skip_applies_the_rest(root: Path) -> None:
    path = stream(root, LINE, {"target": ""}, "nonsense", {**LINE, "question": "And this?"})
    found = read_edits(path, on_error="skip")
    assert [edit.line for edit in found.edits] == [1, 4]
    assert [problem.line for problem in found.problems] == [2, 2, 3]


def test_the_same_line_twice_is_one_edit(root: Path) -> None:
    assert len(read_edits(stream(root, LINE, LINE, {**LINE, "id": "a"}, {**LINE, "id": "a"})).edits) == 2


def test_an_id_with_other_content_is_a_problem(root: Path) -> None:
    lines = [{**LINE, "id": "a"}, {**LINE, "id": "b"}, {**LINE, "id": "a", "question": "And this?"}]
    assert problems(root, *lines) == ["3: id `a` is used in line 1 with other content"]


@pytest.mark.parametrize(
    ("image", "about"),
    [
        ("img/1.png", "picture and question"),
        (["img/1.png", "img/2.png"], "pictures and question"),
        (None, "question"),
    ],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_two_answers_to_one_question_contradict_each_other(
    root: Path, image: object, about: str, as_array: bool
) -> None:
    red, blue = ({**LINE, "image": image, "target": target} for target in ("red", "blue"))
    other = {**LINE, "image": "img/3.png"}
    lines = [blue, other, {**red, "id": "own"}, {**blue, "id": "again"}, blue]
    path = stream(root, *([json.dumps(lines)] if as_array else lines))
    with pytest.raises(StreamErrors) as caught:
        read_edits(path)
    said = f"{path}:3: gives another answer than line 1 to the same {about} (`red`, there `blue`)"
    assert caught.value.problems == [said]
    assert caught.value.hint == "keep one of the two lines"
    kept = read_edits(path, on_error="skip")
    assert [[each.line for each in lines] for lines in (kept.edits, kept.problems)] == [[1, 2, 4], [3]]


def test_a_line_that_is_left_out_contradicts_nothing(root: Path) -> None:
    clash = {**LINE, "id": "a", "question": "And this?", "target": "a bus"}
    path = stream(root, {**LINE, "id": "a"}, clash, {**clash, "id": "b", "target": "a train"})
    kept = read_edits(path, on_error="skip")
    assert [[each.line for each in lines] for lines in (kept.edits, kept.problems)] == [[1, 3], [2]]


def test_in_a_pipe_a_later_answer_corrects_the_earlier_one(root: Path) -> None:
    bus = {**LINE, "target": "a bus"}

    def piped(*lines: dict[str, Any]) -> list[Edit | Problem]:
        source = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        return list(iter_edits(records.lines(source, "x"), root))

    assert [item.target for item in piped(LINE, bus) if isinstance(item, Edit)] == ["a tram", "a bus"]
    # Going back to the earlier answer is not lost in silence.
    assert str(piped(LINE, bus, LINE)[2]) == "x:3: repeats line 1, which a later line corrected"
    assert len(piped(LINE, bus, {**LINE, "id": "again"})) == 3


def refuse(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_whole_file_problems(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, expected in [
        (b"", "holds no edits"),
        (b"\xef\xbb\xbf\n \r\n", "holds no edits"),
        ("{}".encode("utf-16"), "is UTF-16, not UTF-8"),
        (gzip.compress(b"{}"), r"is compressed \(gzip\)"),
        (b"[1, 2", "not JSON: "),
        (b"[]", "holds no edits"),
    ]:
        (root / "edits.jsonl").write_bytes(content)
        with pytest.raises(StreamErrors, match=expected) as caught:
            read_edits(root / "edits.jsonl")
        assert len(caught.value.problems) == 1
    for absent, hint in [
        ("edit.jsonl", f"did you mean `{root}/edits.jsonl`?"),
        ("absent", f"searched in `{root}`"),
        ("nowhere/edits.jsonl", f"there is no folder `{root}/nowhere`"),
    ]:
        with pytest.raises(DataError, match="file not found") as missing:
            read_edits(root / absent)
        assert missing.value.hint == hint
    (root / "dead.jsonl").symlink_to(root / "nothing")
    with pytest.raises(DataError, match="file not found") as missing:
        read_edits(root / "dead.jsonl")
    assert "dead.jsonl" not in missing.value.hint
    monkeypatch.setattr("os.listdir", refuse)
    with pytest.raises(DataError, match="file not found") as missing:
        read_edits(root / "edit.jsonl")
    assert missing.value.hint == f"searched in `{root}`"
    with pytest.raises(DataError, match="cannot be read"):
        read_edits(root / "img")


def test_the_name_in_messages_is_the_users(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream(root, "nonsense")
    monkeypatch.chdir(root)
    with pytest.raises(StreamErrors, match=r"^edits\.jsonl:1: not JSON"):
        read_edits(Path("edits.jsonl"))


def test_a_line_that_is_too_long_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LINE_BYTES", 300)
    assert problems(root, {**LINE, "question": "x" * 1000}, LINE, "x") == [
        "1: line is longer than 0 MiB",
        "3: not JSON: expecting value, column 1",
    ]


def test_each_image_is_decoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = images.decode_image
    monkeypatch.setattr(images, "decode_image", lambda data, name: decoded.append(name) or real(data, name))
    probe = {"image": "img/2.png", "question": "Q?"}
    read_edits(stream(root, *[{**LINE, "question": str(n), "locality": [probe]} for n in range(50)]))
    assert sorted(decoded) == ["img/1.png", "img/2.png"]


# --- standard input ---


def test_a_pipe_is_read_line_by_line(root: Path) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb", buffering=0) as sink:
        found = iter_edits(records.lines(source, "<stdin>"), root)
        for number, line in enumerate([LINE, {**LINE, "target": "a bus"}], 1):
            sink.write(json.dumps(line).encode() + b"\n")
            timer = threading.Timer(10, sink.close)  # without it a reader that waits for more would hang
            timer.start()
            item = next(found)
            timer.cancel()
            assert isinstance(item, Edit)
            assert (item.source, item.line) == ("<stdin>", number)
        sink.write(b"nonsense\n")
        problem = next(found)
        assert isinstance(problem, Problem)
        assert str(problem).startswith("<stdin>:3: not JSON")


def test_a_text_stream_will_do(root: Path) -> None:
    text = json.dumps(LINE) + "\n\n" + '{"question": "\ud800"}\n'
    first, second = iter_edits(records.lines(io.StringIO(text), "x"), root)
    assert isinstance(first, Edit)
    assert isinstance(second, Problem)
    wrapped = io.TextIOWrapper(io.BytesIO(json.dumps(LINE).encode()))
    assert [type(item) for item in iter_edits(records.lines(wrapped, "x"), root)] == [Edit]


# --- probes ---


def test_probes(root: Path) -> None:
    path = stream(
        root, {"question": "Q?"}, {"image": "img/1.png", "question": "Q?", "answer": "A", "id": "x"}, {"question": "Q?"}
    )
    first, second = read_probes(path)
    assert (first.question, first.images, first.answer, len(first.id)) == ("Q?", (), None, 16)
    assert (second.id, second.answer) == ("x", "A")
    assert len(second.images) == 1
    with pytest.raises(StreamErrors) as caught:
        read_probes(
            stream(
                root,
                {"question": "Q?", "id": "x"},
                {"question": "R?", "id": "x"},
                {"image": "no.png"},
                {"question": "Q", "image": "no.png"},
            )
        )
    assert [text.rpartition(".jsonl:")[2] for text in caught.value.problems] == [
        "2: id `x` is used in line 1 with other content",
        "3: `question` is missing",
        "4: image not found: `no.png`",
    ]
    with pytest.raises(StreamErrors, match="holds no questions"):
        read_probes(stream(root))


# --- records of other projects ---

MMEDIT_RECORD = {
    "src": "What is parked beside the fountain?",
    "pred": "car",
    "rephrase": "Which vehicle stands next to the fountain?",
    "alt": "tram\n",
    "image": "img/1.png",
    "image_rephrase": "img/2.png",
    "loc": "nq question: who painted the ceiling",
    "loc_ans": "A. Example",
    "m_loc": "img/3.png",
    "m_loc_q": "What is the bird standing on?",
    "m_loc_a": "fence",
}


@pytest.mark.parametrize("as_array", [False, True])
def test_mmedit_records_are_edits(root: Path, as_array: bool) -> None:
    path = stream(root, json.dumps([MMEDIT_RECORD], indent=1) if as_array else MMEDIT_RECORD, name="vqa.json")
    (edit,) = read_edits(path).edits
    assert (edit.question, edit.target, edit.line) == ("What is parked beside the fountain?", "tram", 1)
    assert edit.rephrases == ("Which vehicle stands next to the fountain?",)
    assert [image.spelled for image in edit.image_rephrases] == ["img/2.png"]
    text, image = edit.locality
    assert (text.question, text.images) == ("nq question: who painted the ceiling", ())
    assert (image.question, image.answer) == ("What is the bird standing on?", "fence")
    assert edit.tags == {"pred": "car"}


def test_vlkeb_portability() -> None:
    asked = {"Question": "Which state?", "Answer": "Ohio"}
    record = {**MMEDIT_RECORD, "port_new": [{"port_type": "2-hop", "Q&A": asked}]}
    expected = {"image": "img/1.png", "question": "Which state?", "answer": "Ohio", "hop": 2}
    assert to_native(record)["portability"] == [expected]
    record["port_new"] = [{"port_edit_q": "E?", "port_edit_a": "e", "port_q": "Which state?", "port_a": "Ohio"}]
    assert to_native(record)["portability"] == [{**expected, "hop": 1}]


def test_mmke_keeps_its_other_questions_as_tags() -> None:
    asked = {"Question": "Which state?", "Answer": "Ohio"}
    extra = {"knowledge_type": "user_specific", "rel_1": "a", "rel_1_ans": "b", "rel_ans_2": "c", "m_rel_2_ans": "d"}
    port = {"one_hop_img": "img/4.png", "port_new": [{"port_type": "1-hop", "Q&A": asked}]}
    native = to_native({**MMEDIT_RECORD, **extra, **port})
    assert native["tags"] == {"pred": "car", **extra}
    assert native["portability"][0]["image"] == "img/4.png"  # type: ignore[index]
    EditLine.model_validate(native)


def test_foreign_records_may_have_a_list_of_tags(root: Path) -> None:
    (edit,) = read_edits(stream(root, {**MMEDIT_RECORD, "tags": ["night"]})).edits
    assert edit.tags == {"night": True, "pred": "car"}
    assert problems(root, {**MMEDIT_RECORD, "tags": [3]}) == [
        "1: `tags` must be an object or a list of strings, got 3 in the list"
    ]


def test_foreign_records_are_checked_as_strictly(root: Path) -> None:
    assert problems(root, {**MMEDIT_RECORD, "rephrse": "x", "alt": 3}) == [
        "1: `target` must be a string, got 3",
        "1: unknown field `rephrse`; did you mean `rephrases`?",
    ]
    assert problems(root, {**MMEDIT_RECORD, "image": None}) == ["1: `image[0]` must be a string, got null"]
    assert problems(root, {name: value for name, value in MMEDIT_RECORD.items() if name != "alt"}) == [
        "1: `target` is missing"
    ]
    array = json.dumps([MMEDIT_RECORD, {**MMEDIT_RECORD, "m_loc": "no.png"}, 3])
    assert problems(root, array) == ["2: image not found: `no.png`", "3: must be a JSON object, got 3"]


@pytest.mark.skipif(not MMEDIT.is_dir(), reason="MMEdit's files are not here")
@pytest.mark.parametrize(("name", "count"), [("vqa_eval.json", 2093), ("caption_eval_edit.json", 1000)])
def test_real_mmedit_files_convert(name: str, count: int) -> None:
    records = json.loads((MMEDIT / name).read_text(encoding="utf-8"))
    lines = [EditLine.model_validate(to_native(record)) for record in records]
    assert len(lines) == count
    for record, line in zip(records, lines, strict=True):
        assert line.target == record["alt"].strip()
        assert line.locality[0].question.startswith("nq question: ")
        assert line.locality[1].image == [record["m_loc"]]


# --- untrusted input ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELD = st.sampled_from([*EditLine.model_fields, *MMEDIT_RECORD, "port_new", "Q&A", "extra"])
TEXT = st.sampled_from(["img", "data:,", "x", "", "http://a", "{}", "\0"])


def spelled_line(record: dict[str, Any]) -> bytes:
    """A line of JSON; without a question, one with `messages` would be a chat, which `more convert` reads."""
    return json.dumps({"question": "", **record} if "messages" in record else record).encode()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([b"PAR1"])
@given(st.lists(st.binary(max_size=80) | st.dictionaries(FIELD, JSON | TEXT).map(spelled_line)))
def test_any_bytes_give_edits_or_listed_problems(tmp_path: Path, lines: list[bytes]) -> None:
    path = stream(tmp_path, *lines)
    if table_form(path):  # what begins as Parquet does
        with pytest.raises(DataError, match="is Parquet: more convert "):
            read_edits(path)
        return
    for read in (read_edits, read_probes):
        with contextlib.suppress(StreamErrors):
            read(path)
    for item in iter_edits(records.lines(io.BytesIO(path.read_bytes()), "x"), tmp_path):
        assert isinstance(item, Edit | Problem)
    with contextlib.suppress(StreamErrors):  # of the whole file
        for edit in read_edits(path, on_error="skip").edits:
            canonical_json([edit.question, edit.target, dict(edit.tags)]).encode()  # what the ledger does
