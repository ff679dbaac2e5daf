"""Processors load offline, without torchvision, with the options that their files give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, LlavaOnevisionProcessor, LlavaProcessor, Qwen2VLProcessor
from transformers import Qwen3VLProcessor as Qwen3

from more_cli.errors import StateError
from more_cli.model.processors import load_processor, without_video
from support import tiny
from support.tiny_processors import qwen_processor


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
