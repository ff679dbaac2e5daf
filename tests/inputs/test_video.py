"""Animated files as pictures in order, in edit lines and in questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from more_cli.errors import DataError
from more_cli.inputs import images
from more_cli.inputs.edits import read_edits
from more_cli.inputs.images import ImageCache
from more_cli.inputs.video import frames_of
from support.helpers import LEARNING, World, line, run

SHADES = [20 * number for number in range(12)]


def clip(path: Path, shades: list[int] = SHADES) -> Path:
    """A video whose frame `n` has the grey of its place."""
    first, *rest = [Image.new("RGB", (28, 28), (shade, shade, shade)) for shade in shades]
    first.save(path, save_all=True, append_images=rest, duration=100, lossless=True)
    return path


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
@pytest.mark.parametrize(("count", "places"), [(1, [6]), (3, [2, 6, 10]), (4, [1, 4, 7, 10]), (32, list(range(12)))])
def test_frames_are_the_middles_of_equal_parts(tmp_path: Path, suffix: str, count: int, places: list[int]) -> None:
    clip(tmp_path / f"a.{suffix}")
    found = frames_of(f"a.{suffix}", ImageCache(tmp_path), count)
    assert [source.open().getpixel((0, 0))[0] for source in found] == [SHADES[place] for place in places]
    assert len({source.sha256 for source in found}) == len(places)
    assert found[0].read() == b"P6\n28 28\n255\n" + bytes([SHADES[places[0]]] * 28 * 28 * 3), "the same everywhere"
    again = frames_of(f"a.{suffix}", ImageCache(tmp_path), count)
    assert [source.sha256 for source in again] == [source.sha256 for source in found]


def test_what_is_no_video_is_named(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with pytest.raises(DataError, match=r"video `one\.png` has only one frame"):
        frames_of("one.png", cache)
    (tmp_path / "a b.mp4").write_bytes(b"....ftypisom" * 10)
    with pytest.raises(DataError, match="is not an animated GIF, WebP or PNG") as error:
        frames_of("a b.mp4", cache)
    assert error.value.hint.startswith("make one: ffmpeg -i 'a b.mp4' ")
    with pytest.raises(DataError, match=r"image not found: `none\.gif`"):
        frames_of("none.gif", cache)
    whole = clip(tmp_path / "a.gif").read_bytes()
    (tmp_path / "cut.gif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.gif"):
        frames_of("cut.gif", cache, 12)


def blank(frames: int, side: int) -> bytes:
    """A GIF of large frames, each of which takes 23 bytes: it draws one pixel."""
    size, dot = side.to_bytes(2, "little"), (1).to_bytes(2, "little")
    frame = b"\x21\xf9\x04\x00\x01\x00\x00\x00" + b"\x2c" + bytes(4) + dot + dot + b"\x00\x02\x02\x44\x01\x00"
    return b"GIF89a" + size + size + b"\x80\x00\x00" + b"\x00\x00\x00\xff\xff\xff" + frame * frames + b";"


def test_a_small_file_of_many_large_frames_is_not_played(tmp_path: Path) -> None:
    """Each frame before the one that is taken would be decoded: a fifth of a second for 23 bytes."""
    (tmp_path / "a.gif").write_bytes(blank(5_000, 6_000))
    with pytest.raises(DataError, match=r"a\.gif` has 5,000 frames of 6000 x 6000, more than 1,600 megapixels"):
        frames_of("a.gif", ImageCache(tmp_path), 1)


def test_a_large_page_behind_a_small_one_is_not_decoded(tmp_path: Path) -> None:
    pages = Image.new("1", (8, 8)), Image.new("1", (6_001, 6_000))
    pages[0].save(tmp_path / "a.tiff", save_all=True, append_images=pages[1:], compression="group4")
    with pytest.raises(DataError, match=r"a\.tiff` is 6001 x 6000, more than 36 megapixels"):
        frames_of("a.tiff", ImageCache(tmp_path))


def test_frames_have_a_size_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_TAKEN", 3 * 28 * 28)
    clip(tmp_path / "a.gif")
    assert len(frames_of("a.gif", ImageCache(tmp_path), 3)) == 3
    with pytest.raises(DataError, match=r"^4 frames of video `a\.gif` have more than"):
        frames_of("a.gif", ImageCache(tmp_path), 4)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    clip(world.root / "img" / "clip.gif", SHADES[:5])
    return world


def filmed(number: int, **fields: object) -> dict[str, object]:
    """A line without its picture."""
    return {name: value for name, value in line(number).items() if name != "image"} | fields


def test_a_correction_about_a_video_is_that_about_its_frames(world: World) -> None:
    frames = frames_of("clip.gif", ImageCache(world.root / "img"), 2)
    for number, frame in enumerate(frames):
        (world.root / "img" / f"frame{number}.ppm").write_bytes(frame.read())
    world.write([filmed(0, video="img/clip.gif", frames=2)])
    (edit,) = read_edits(world.root / "edits.jsonl").edits
    world.write([filmed(0, image=["img/frame0.ppm", "img/frame1.ppm"])], "frames.jsonl")
    assert edit.content == read_edits(world.root / "frames.jsonl").edits[0].content
    done = world.edit(*LEARNING)
    assert done.code == 0, done.err
    (world.root / "img" / "clip.gif").unlink()
    verified = run("verify", world.model, "--deep")
    assert verified.code == 0, "the store has the frames"
    again = world.edit(edits=world.root / "frames.jsonl")
    assert again.code == 0, again.err
    assert len([entry for entry in world.entries() if entry["kind"] == "edit"]) == 1, "it is the same correction"


def test_problems_with_a_video_name_the_line(world: World) -> None:
    world.write(
        [
            filmed(0, video="img/none.gif"),
            line(1, video="img/clip.gif"),
            filmed(2, video="img/clip.gif", frames=99),
            filmed(3, video="img/red.png"),
        ]
    )
    refused = world.edit()
    assert refused.code == 4
    problems = [text for text in refused.err.splitlines() if text.startswith("error: ")]
    assert [text.partition("edits.jsonl:")[2] for text in problems] == [
        "1: image not found: `img/none.gif`",
        "2: has both `image` and `video`",
        "3: `frames` must be at most 32, got 99",
        "4: video `img/red.png` has only one frame",
    ]


def test_ask_takes_a_video_and_earlier_turns(world: World) -> None:
    talk = world.root / "talk.json"
    said = [
        {"role": "user", "content": [{"type": "image", "image": "img/blue.png"}, {"type": "text", "text": "wet ?"}]}
    ]
    talk.write_text(json.dumps([*said, {"role": "assistant", "content": "no"}]))
    about = "--video", world.root / "img" / "clip.gif", "--messages", talk
    asked = run("ask", world.model, *about, "and now ?", "--json")
    assert asked.code == 0, asked.err
    assert len(asked.json["images"]) == 5, "the picture of the earlier turn, then four frames"
    alone = run("ask", world.model, *about[:2], "and now ?", "--json")
    assert alone.json["answers"]["base"]["nll"] != asked.json["answers"]["base"]["nll"]
    both = run("ask", world.model, *about, "--image", world.root / "img" / "red.png", "and now ?")
    assert (both.code, both.err) == (
        2,
        "error: `--image` and `--video` exclude each other\nhint: leave one of them out\n",
    )
    for text, wrong in (
        ("{}", "is not a list of messages"),
        ('[{"role": "user", "content": 1}]', "`0.content` is not as it should be"),
        ('[{"role": "user", "content": "wet ?"}]', "the last message has no answer"),
        ("[", "not JSON"),
    ):
        talk.write_text(text)
        refused = run("ask", world.model, "--messages", talk, "and now ?")
        assert refused.code == 4
        assert wrong in refused.err.splitlines()[0], refused.err
    missing = run("ask", world.model, "--messages", world.root / "talks.json", "and now ?")
    assert (missing.code, missing.err.splitlines()[-1]) == (4, f"hint: did you mean `{talk}`?")
