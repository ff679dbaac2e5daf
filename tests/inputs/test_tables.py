"""Hostile tables: a few bytes that become gigabytes, and rows and headers without end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from more_cli.errors import DataError
from more_cli.inputs.tables import table_rows
from more_cli.text import strict_json
from support.helpers import peak_kilobytes, run

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited on Linux only")
BIG = 200_000_000
"""Characters of the large cell."""


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rows with one cell of 200 MB, which is in the file once, compressed to 6 kB."""
    file = tmp_path_factory.mktemp("bomb") / "bomb.parquet"
    targets = pa.DictionaryArray.from_arrays(pa.array([0] * 8), pa.array(["x" * BIG]))
    table = pa.table({"question": ["what ?"] * 8, "target": targets})
    parquet.write_table(table, file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 10_000
    return file


def varint(number: int) -> bytes:
    """As the footer of a Parquet file spells it."""
    left, found = 2 * number, b""
    while left > 127:
        found, left = found + bytes([left & 127 | 128]), left >> 7
    return found + bytes([left])


def refused_quickly(file: Path) -> str:
    start, before = time.monotonic(), peak_kilobytes()
    with pytest.raises(DataError) as refused:
        list(table_rows(file))
    assert time.monotonic() - start < 30
    assert peak_kilobytes() - before < 100_000, "this process has taken 100 MB"
    assert refused.value.hint
    return refused.value.message


@LINUX
def test_a_small_file_of_huge_rows(bomb: Path) -> None:
    assert refused_quickly(bomb) == f"{bomb}:1: holds 200,000,006 bytes, more than 128 MiB"


@LINUX
def test_a_file_that_says_that_it_is_small(bomb: Path, tmp_path: Path) -> None:
    """What a footer says of sizes is not what decompression gives."""
    size = parquet.ParquetFile(bomb).metadata.row_group(0).column(1).total_uncompressed_size
    true = varint(size)
    small = bytes([0x82, *[0x80] * (len(true) - 2), 0])  # 1, in as many bytes
    pages, _, rest = bomb.read_bytes().rpartition(true)  # the footer comes last; some versions write it into pages too
    forged = tmp_path / "forged.parquet"
    forged.write_bytes(pages + small + rest)
    assert parquet.ParquetFile(forged).metadata.row_group(0).column(1).total_uncompressed_size == 1
    assert refused_quickly(forged) == f"`{forged}`: reading it takes more than 1024 MiB of memory"


def test_a_row_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "row.parquet"
    parquet.write_table(pa.table({"question": ["a", "b"], "image": [b"x", bytes(140 << 20)]}), file)
    assert refused_quickly(file) == f"{file}:2: holds 146,800,641 bytes, more than 128 MiB"


def test_rows_without_end(tmp_path: Path) -> None:
    """One megabyte, 10,000 times."""
    file = tmp_path / "rows.parquet"
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000), pa.array(["x" * 1_000_000]))
    parquet.write_table(pa.table({"question": rows}), file, compression="zstd")
    assert refused_quickly(file) == f"`{file}`: its rows take more than 100 times the bytes of the file"


def test_many_pictures_are_read(tmp_path: Path) -> None:
    file = tmp_path / "pictures.parquet"
    pictures = [{"bytes": number.to_bytes(2, "big") * 250_000, "path": None} for number in range(300)]
    parquet.write_table(pa.table({"question": ["what ?"] * 300, "image": pictures}), file, compression="none")
    read = [record.value for record in table_rows(file)]
    assert [value["image"]["bytes"][:2] for value in read] == [each["bytes"][:2] for each in pictures]  # type: ignore[index]


@pytest.mark.parametrize("count", [1_001, 60_000, 1_000_000])
def test_a_header_of_many_columns(tmp_path: Path, count: int) -> None:
    file = tmp_path / "wide.csv"
    file.write_text(",".join(f"c{n}" for n in range(count)) + "\n" + ",".join("x" * count) + "\n")
    assert refused_quickly(file) == f"{file}:1: has {count:,} columns, more than 1,000"
    result = run("convert", file, "-o", tmp_path / "out.jsonl")
    assert (result.code, result.err.count("error: ")) == (4, 1)


def test_many_columns_of_parquet(tmp_path: Path) -> None:
    file = tmp_path / "wide.parquet"
    parquet.write_table(pa.table({f"c{n}": [1] for n in range(1_001)}), file)
    assert refused_quickly(file) == f"{file}: has 1,001 columns, more than 1,000"


def test_a_hint_names_some_columns_of_many(tmp_path: Path) -> None:
    file = tmp_path / "wide.csv"
    file.write_text(",".join(f"c{n}" for n in range(1_000)) + "\n" + ",".join("x" * 1_000) + "\n")
    result = run("convert", file, "-o", tmp_path / "out.jsonl")
    assert (result.code, len(result.err) < 1_000) == (4, True)
    assert "`c19` and 980 more" in result.err


@pytest.mark.parametrize("row", ["x" * (17 << 20), '"x\n"' * 3 + "," + '"x\n",' * (5 << 20)], ids=["line", "cells"])
def test_a_row_of_csv_without_end(tmp_path: Path, row: str) -> None:
    file = tmp_path / "long.csv"
    file.write_text(f"question,target\nwhat ?,x\n{row}\n")
    rows = table_rows(file)
    assert next(rows).line == 2
    with pytest.raises(DataError, match=r"long.csv:3: not CSV: a row of more than 16 MiB"):
        next(rows)


def test_a_bad_row_of_csv_is_left_out_alone(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(b'question,target\nq1,a\n"q2"x,b\nq3\xff,c\n"q4\n\xff",d\nq5,e\n')
    said = {row.line: row.problem and (row.problem.where, row.problem.text) for row in table_rows(file)}
    assert said == {
        2: None,
        3: (f"{file}:3", "not CSV: ',' expected after '\"'"),
        4: (f"{file}:4", "not UTF-8: byte 0xff at byte 3"),
        5: (f"{file}:6", "not UTF-8: byte 0xff at byte 1"),
        7: None,
    }


def test_the_rest_of_a_bad_row_of_csv_is_no_row_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text('question,target\n"say "x" twice\nor three times",a\n5" or 6"?,b\nhow wide is 7"?,c\n')
    said = {row.line: row.problem and row.problem.text for row in table_rows(file)}
    assert said == {
        2: "not CSV: ',' expected after '\"'",
        3: "not CSV: the rest of the row before",
        4: None,
        5: None,
    }


def test_a_row_of_csv_without_text_is_no_row(tmp_path: Path) -> None:
    file = tmp_path / "sheet.csv"
    file.write_text("question,target\nq1,a\n,\n\nq2,\n,,,\n")
    rows = [(row.line, row.value, row.problem) for row in table_rows(file)]
    assert rows == [(2, {"question": "q1", "target": "a"}, None), (5, {"question": "q2", "target": None}, None)]


def test_a_bad_byte_far_down_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_bytes(b"question,target\n" + b"what is it?,tram\n" * 2_000 + b"what?,tr\xffm\n")
    *good, bad = table_rows(file)
    assert len(good) == 2_000
    assert (bad.line, bad.problem and bad.problem.where) == (2_002, f"{file}:2002")


@pytest.mark.parametrize("skip", [(), ("--skip-bad",)], ids=["whole", "skip"])
def test_a_quote_that_is_not_closed_refuses_the_file(tmp_path: Path, skip: tuple[str, ...]) -> None:
    file, out = tmp_path / "open.csv", tmp_path / "open.jsonl"
    file.write_text('question,target\nq1,a\n"q2,b\nq3,c\n')
    result = run("convert", file, "-o", out, *skip)
    assert (result.code, result.out) == (4, "")
    assert f"error: {file}:3: not CSV: unexpected end of data" in result.err
    assert not out.exists()


def test_bytes_that_are_not_utf8_in_a_header_refuse_the_file(tmp_path: Path) -> None:
    file = tmp_path / "head.csv"
    file.write_bytes(b"qu\xffstion,target\nq1,a\n")
    with pytest.raises(DataError, match=r"head\.csv:1: not UTF-8: byte 0xff at byte 3"):
        list(table_rows(file))


def test_a_repeated_field_among_many_is_found_at_once() -> None:
    fields = ", ".join(f'"f{n}": 1' for n in range(200_000))
    start = time.monotonic()
    with pytest.raises(ValueError, match="field `f199999` is given twice"):
        strict_json(f'{{{fields}, "f199999": 2}}')
    assert time.monotonic() - start < 10
