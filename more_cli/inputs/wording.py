"""Which things a question names, judged by its words; English only."""

from __future__ import annotations

import re

Words = frozenset[str]

_EMPTY = (
    "a about an and any are as at be been by can caption could depict depicted describe did display displayed do does "
    "few for from had happening has have here how i image in is it its like look looking looks many me much my of on "
    "one or our photo photograph pic picture please s say scene see seen short show shown so some t taken tell that "
    "the their them there these they this those to us was we were what when where which who whose why will with word "
    "words would write you your"
)
_EMPTY_WORDS = frozenset(_EMPTY.split())
"""Words that name nothing in a picture; a question without others is neutral, such as `what is it ?`."""

# A neutral question asks for a description if it names the picture, and for one part of it if it has one of `_PARTS`:
# `a photo of`, but not `which photo is it ?` or `how many pictures are there ?`.
_PICTURES = {"caption", "depict", "depicted", "describe", "image", "photo", "photograph", "pic", "picture", "scene"}
_PARTS = {"any", "few", "how", "many", "one", "say", "tell", "when", "where", "which", "who", "whose", "why"}
_YES_OR_NO = {"are", "did", "do", "does", "had", "has", "have", "is", "was", "were"}
"""A question that begins with one of these is answered by yes or no."""


def words_of(text: str) -> Words:
    """Return the words of a text that name something: case-folded, without punctuation and plural endings."""
    words = (word for word in re.findall(r"\w+", text.casefold()) if word not in _EMPTY_WORDS)
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words) - _EMPTY_WORDS


def asks_for_a_description(question: str) -> bool:
    """Return whether a question asks for the whole picture in words, such as `a photo of` or `What does it depict?`."""
    first, *rest = re.findall(r"\w+", question.casefold()) or [""]
    words = {first, *rest}
    return bool(words & _PICTURES) and not words & _PARTS and first not in _YES_OR_NO and not words_of(question)
