"""What a question names, as far as its words can tell."""

from __future__ import annotations

import pytest

from more_cli.inputs.wording import asks_for_a_description, words_of


@pytest.mark.parametrize(
    "question",
    [
        "a photo of",
        "A picture of ...",
        "Describe the picture.",
        "What is in the image?",
        "Write me a caption for this.",
    ],
)
def test_a_description_is_asked_for(question: str) -> None:
    assert asks_for_a_description(question)
    assert not words_of(question)


@pytest.mark.parametrize(
    "question",
    [
        "What is it?",  # its answer is a name
        "How many are in the picture?",
        "Where was the photo taken?",
        "Is this a picture?",
        "What is the dog in the picture doing?",
        "Describe the dog.",
        "Who is shown in the picture?",
        "What does the picture say?",  # its answer is what is written there
        "",
        "?!",
    ],
)
def test_a_part_or_a_name_is_asked_for(question: str) -> None:
    assert not asks_for_a_description(question)
