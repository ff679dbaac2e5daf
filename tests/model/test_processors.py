"""Processors load offline, without torchvision, with the options that their files give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, LlavaOnevisionProcessor, LlavaProcessor, Qwen2VLProcessor
from transformers import Qwen3VLProcessor as Qwen3

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import StateError
from more_cli.model import loading
from more_cli.model.loading import load_fitting_blueprint
from more_cli.model.processors import load_processor, without_video
from support import tiny
from support.helpers import World, line, run
from support.tiny_families import FAMILIES, tiny_family
from support.tiny_processors import qwen_processor, spells_numbers


def as_published(folder: Path, image_processor: str) -> Path:
    """Rename the files that `save_pretrained` writes to their names in older repositories."""
    whole = json.loads((folder / "processor_config.json").read_text())
    images = whole.pop("image_processor") | {"image_processor_type": image_processor}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(images | {"processor_class": whole["processor_class"]}))
    (folder / "processor_config.json").unlink()
    template = folder / "chat_template.jinja"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template.read_text()}))
    template.unlink()
    return folder


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("kind", [Qwen2VLProcessor, Qwen3])
def test_a_qwen_processor_loads_without_a_video_processor(kind: type, published: bool, tmp_path: Path) -> None:
    made = qwen_processor(kind)
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    if published:
        as_published(tmp_path, "Qwen2VLImageProcessorFast")
    loaded = load_processor(tmp_path)
    assert isinstance(loaded, kind)
    assert type(loaded.image_processor).__name__ == "Qwen2VLImageProcessorPil"
    assert loaded.chat_template == made.chat_template
    image = Image.new("RGB", (40, 60), "red")
    text = "<|vision_start|><|image_pad|><|vision_end|>what ?"
    ours, theirs = (one(text=[text], images=[image], return_tensors="pt") for one in (loaded, made))
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    assert ours["pixel_values"].equal(theirs["pixel_values"])
    assert int(ours["mm_token_type_ids"].sum()) == int(ours["image_grid_thw"].prod()) // 4


def test_what_is_saved_names_the_original_class(tmp_path: Path) -> None:
    qwen_processor().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["processor_class"] == "Qwen2VLProcessor"
    assert "video_processor" not in saved


def test_options_of_the_files_reach_the_constructor(tmp_path: Path) -> None:
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    made = without_video(LlavaOnevisionProcessor)(
        images, tiny.make_processor().tokenizer, num_image_tokens=7, vision_feature_select_strategy="full"
    )
    made.save_pretrained(tmp_path)
    loaded = load_processor(tmp_path)
    assert (loaded.num_image_tokens, loaded.vision_feature_select_strategy) == (7, "full")


def test_a_processor_without_videos_is_its_own_class() -> None:
    assert without_video(LlavaProcessor) is LlavaProcessor


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("AutoModelForCausalLM", "transformers has no processor 'AutoModelForCausalLM'"),
        ("SomebodysProcessor", "transformers has no processor 'SomebodysProcessor'"),
    ],
)
def test_only_a_processor_is_made(tmp_path: Path, name: str, reason: str) -> None:
    tiny.make_processor().save_pretrained(tmp_path)
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"processor_class": name}))
    with pytest.raises(StateError, match=reason):
        load_processor(tmp_path)


def test_without_files_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="the processor does not load: no processor for model_type None") as caught:
        load_processor(tmp_path)
    assert "config.json" in caught.value.hint


# --- processor and model ---

WITH_PROCESSOR = ["llava", "llava_next", *(name for name, row in FAMILIES.items() if row.processor is not None)]
FIXED = ["llava", "llava_next", "llava_onevision", "blip-2", "blip-2 t5", "instructblip", "paligemma", "gemma3"]
FIXED += ["mllama"]
"""Families whose vision tower takes images of one size."""


def doubled(value: Any) -> Any:
    """The options of an image processor, with every size twice as large."""
    if isinstance(value, dict):
        return {key: doubled(part) for key, part in value.items()}
    return 2 * value if isinstance(value, int) and value % 28 == 0 else value


def family(folder: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]] = lambda whole: whole) -> Path:
    """Write a checkpoint of a family whose processor's options were changed."""
    (tiny_family if name in FAMILIES else tiny.tiny_llava)(folder, family=name)
    file = folder / "processor_config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    return folder


def fit(folder: Path) -> None:
    with spells_numbers():
        load_fitting_blueprint(open_checkpoint(folder))


@pytest.mark.parametrize("name", WITH_PROCESSOR)
def test_the_processor_of_every_family_fits(tmp_path: Path, name: str) -> None:
    fit(family(tmp_path, name))


@pytest.mark.parametrize("name", FIXED)
def test_images_that_the_vision_tower_does_not_take(tmp_path: Path, name: str) -> None:
    family(tmp_path, name, lambda whole: whole | {"image_processor": doubled(whole["image_processor"])})
    side = 56 if name == "gemma3" else 28
    sizes = f"makes images of {2 * side} x {2 * side} pixels, the vision tower in config.json takes {side} x {side}"
    with pytest.raises(StateError, match=re.escape(f"`{tmp_path / 'processor_config.json'}` {sizes}")) as caught:
        fit(tmp_path)
    assert "put the processor files that the model was trained with" in caught.value.hint


def test_it_is_asked_once_and_again_after_a_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = [], loading.require_fit
    monkeypatch.setattr(loading, "require_fit", lambda *given: (asked.append(given), ask(*given)))
    monkeypatch.setattr(loading, "_FITTING", set())
    family(tmp_path, "llava")
    fit(tmp_path)
    fit(tmp_path)
    assert len(asked) == 1
    file = tmp_path / "processor_config.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"image_processor": doubled(whole["image_processor"])}))
    for _ in range(2):
        with pytest.raises(StateError, match="makes images of 56 x 56 pixels"):
            fit(tmp_path)


def test_the_file_that_prepares_images_is_named(tmp_path: Path) -> None:
    family(tmp_path, "llava", lambda whole: whole | {"image_processor": doubled(whole["image_processor"])})
    as_published(tmp_path, "CLIPImageProcessor")
    (tmp_path / "processor_config.json").write_text('{"patch_size": 14}')
    with pytest.raises(StateError, match=r"/preprocessor_config\.json` makes images of 56 x 56 pixels"):
        fit(tmp_path)


@pytest.mark.parametrize(
    ("name", "option", "value", "tokens", "features"),
    [
        ("llava", "patch_size", 7, "16 image tokens", 4),
        ("llava", "num_additional_image_tokens", 0, "3 image tokens", 4),
        ("llava", "vision_feature_select_strategy", "full", "5 image tokens", 4),
        ("llava_onevision", "num_image_tokens", 9, "37 image tokens", 24),
        ("gemma3", "image_seq_length", 9, "9 image tokens", 4),
        ("internvl", "image_seq_length", 9, "9 image tokens", 1),
    ],
)
def test_another_number_of_image_tokens_than_the_model_has_features(
    tmp_path: Path, name: str, option: str, value: object, tokens: str, features: int
) -> None:
    family(tmp_path, name, lambda whole: whole | {option: value})
    said = f"the processor puts {tokens} into a prompt, the model in config.json has {features}"
    with pytest.raises(StateError, match=re.escape(f"`{tmp_path}`: {said}")) as caught:
        fit(tmp_path)
    assert f"`{option}`" in caught.value.hint


@pytest.mark.parametrize("name", ["blip-2", "blip-2 t5"])
def test_a_prompt_without_image_tokens_is_refused_where_the_model_would_not_see_the_image(
    tmp_path: Path, name: str
) -> None:
    """Published before transformers gave a Q-Former's features places in the prompt."""
    family(tmp_path, name, lambda whole: {key: value for key, value in whole.items() if key != "num_query_tokens"})
    said = "the processor puts 0 image tokens into a prompt, the model in config.json needs them"
    with pytest.raises(StateError, match=re.escape(f"`{tmp_path}`: {said}")) as caught:
        fit(tmp_path)
    assert "`num_query_tokens`" in caught.value.hint


@pytest.mark.parametrize("name", ["blip-2", "instructblip"])
def test_a_config_that_names_no_image_token(tmp_path: Path, name: str) -> None:
    config = family(tmp_path, name) / "config.json"
    whole = json.loads(config.read_text())
    del whole["image_token_index"]
    config.write_text(json.dumps(whole))
    with pytest.raises(StateError, match=re.escape(f"`{config}` does not say which token stands for an image")) as no:
        fit(tmp_path)
    assert "set `image_token_index` there and `num_query_tokens` in processor_config.json" in no.value.hint


def test_a_processor_that_fails_on_an_image(tmp_path: Path) -> None:
    """Published before transformers kept the size of patches with the processor."""
    family(tmp_path, "llava", lambda whole: whole | {"patch_size": None})
    with pytest.raises(StateError, match="the processor fails on an image: unsupported operand") as caught:
        fit(tmp_path)
    assert caught.value.hint.endswith("processor_config.json lacks `patch_size`")
    family(tmp_path / "q-former", "instructblip", lambda whole: whole | {"num_query_tokens": None})
    with pytest.raises(StateError, match="the processor fails on an image: can't multiply") as caught:
        fit(tmp_path / "q-former")
    assert caught.value.hint.endswith("processor_config.json lacks `num_query_tokens`")


def test_a_picture_that_the_processor_does_not_take(tmp_path: Path) -> None:
    """It is found before anything is written, in every place that an edit line has for pictures."""
    world = World(tmp_path, family="qwen2_vl")
    file = tmp_path / "img" / "narrow.png"
    Image.new("RGB", (1, 400)).save(file)
    said = "the model's processor fails on image `{}`: absolute aspect ratio must be smaller than 200"
    asked = run("ask", world.model, "--image", file, "what ?")
    assert asked.code == 4
    assert f"error: {said.format(file)}" in asked.err
    assert "hint: crop it" in asked.err
    world.write([line(0, image="img/narrow.png"), line(1), line(2, image_rephrases=["img/narrow.png"])])
    for dry in (["--dry-run"], []):
        refused = world.edit("--no-anchors", *dry)
        assert refused.code == 4
        for where in ("edits.jsonl:1: ", "edits.jsonl:3: `image_rephrases`: "):
            assert where + said.format("img/narrow.png") in refused.err
        assert not world.sidecar.exists()
    assert world.edit("--no-anchors", "--on-error", "skip").code == 0
    assert [entry["id"] for entry in world.entries()] == ["e2"]


@pytest.mark.parametrize(("first", "named"), [(b"\n\x0e\n\x05<unk>", True), (b"IQ== 0\n", False)])
def test_a_tokenizer_in_the_format_of_sentencepiece_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, named: bool
) -> None:
    """transformers takes a file that it cannot read for one of tiktoken: that package would not help."""
    monkeypatch.setattr("transformers.utils.is_sentencepiece_available", lambda: False)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "tokenizer.model").write_bytes(first)
    with pytest.raises(StateError, match="the processor does not load: ") as caught:
        load_processor(tmp_path)
    assert (caught.value.hint == "pip install sentencepiece protobuf") is named
    assert ("SentencePiece" in caught.value.message) is named
