"""`--anchors auto`: anchors made from pictures that the user has and from questions that the recipe ships.

Every picture of a file of edits is asked the questions of other edits, and some neutral questions. A question that may
be about an edit is left out, because the edit changes its answer: it has similar words, or the base gives it the same
answer as the question that the edit corrects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from more_cli.editors.anchors import ANSWER_TOKENS
from more_cli.errors import DataError
from more_cli.files import sha256_bytes
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import FORMATS, ImageCache, ImageSource
from more_cli.inputs.wording import words_of
from more_cli.model.batches import Query
from more_cli.ops.about import Corrected, Question
from more_cli.ops.anchors import identity
from more_cli.recipe.schema import Recipe
from more_cli.text import canonical_json, reason_of

if TYPE_CHECKING:
    from more_cli.model.runtime import Runtime

AUTO: Final = "auto"
"""In place of a file of anchors."""
SIZE = 160
"""Largest number of anchors that are made."""
TEXT = SIZE // 4
"""Largest number of anchors without a picture."""
OWN = 120
"""Largest number of questions that the base asks itself, and how many are sampled at once."""
OWN_ROUNDS = 8
"""Largest number of times that they are sampled, until there are `OWN` different ones."""
OWN_TOKENS = 16
"""Longest of these questions, tokens."""
PICTURED = SIZE - TEXT
"""Largest number of anchors with a picture."""
CANDIDATES = PICTURED * 3 // 2
"""Largest number of candidates in each list: more than are used, because the base's answers rule some of them out."""
NEUTRAL = PICTURED // 4
"""Number of anchors that ask a picture of an edit a neutral question; more if there are few other questions."""
PER_PICTURE = 2
"""Largest number of neutral questions to one picture of an edit: the edit may change a part of the answer."""
CONSIDERED = 500
"""Largest number of pictures, and of questions, of a file that candidates are drawn from."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"})

Item = TypeVar("Item")


@dataclass(frozen=True)
class Candidates:
    """Questions that anchors are taken from, each list in the order in which it is used."""

    pairs: Sequence[Probe]
    """Pictures of edits with questions of other edits."""
    general: Sequence[Probe]
    """Pictures with neutral questions."""
    prompts: Sequence[Probe]
    """Questions without a picture."""
    about: Sequence[Edit] = ()
    """The edits that no anchor may be about."""

    @property
    def anchors(self) -> list[Probe]:
        """The first `SIZE` of them: enough neutral ones, and as many pairs as fit."""
        general = self.general[: max(NEUTRAL, PICTURED - len(self.pairs))]
        pictured = {identity(probe): probe for probe in (*self.pairs[: PICTURED - len(general)], *general)}
        return [*pictured.values(), *self.prompts[:TEXT]]

    def only(self, keep: Callable[[Probe], bool]) -> Candidates:
        """Return those for which `keep` is true."""
        pairs, general, prompts = (list(filter(keep, each)) for each in (self.pairs, self.general, self.prompts))
        return Candidates(pairs, general, prompts, self.about)

    def __iter__(self) -> Iterator[Probe]:
        return chain(self.pairs, self.general, self.prompts)


def without_corrected_answers(runtime: Runtime, candidates: Candidates) -> Candidates:
    """Leave out a question if the base gives it an answer that an edit about the same picture corrects.

    The two may ask for the same thing in different words, such as `What is on the left?` and `What is the red one?`.
    """
    if not candidates.about:
        return candidates
    pictures = {image.sha256 for probe in candidates for image in probe.images}
    corrected = [edit for edit in candidates.about if len(edit.images) == 1 and edit.images[0].sha256 in pictures]
    asked = [probe for probe in candidates if probe.images]
    queries = [Query.of(edit) for edit in corrected]
    queries += list(map(Query.of, asked))
    # In batches, because only the choice is kept: the answer that an anchor holds is asked for again, alone.
    with runtime.base():
        answers = list(map(tuple, runtime.generate(queries, ANSWER_TOKENS)))
    wrong = {(edit.images[0].sha256, said) for edit, said in zip(corrected, answers, strict=False)}
    said = dict(zip(map(identity, asked), answers[len(corrected) :], strict=True))
    return candidates.only(
        lambda probe: not probe.images or (probe.images[0].sha256, said[identity(probe)]) not in wrong
    )


def own_questions(runtime: Runtime, recipe: Recipe, known: Iterable[Probe]) -> list[Probe]:
    """Return questions that the base puts itself where a user's turn without a picture stands; none is `known`.

    Prompts of a recipe are foreign to some models. These are the model's own words, sampled by the recipe's seed.
    A small model that never learnt to ask says fragments of answers, and they hold its text too.
    """
    if not recipe.anchors.prompts:
        return []
    taken, found = set(map(identity, known)), dict[tuple[str, str], Probe]()
    with runtime.base():
        for part in range(OWN_ROUNDS):
            for text in runtime.questions(OWN, OWN_TOKENS, recipe.seed + part):
                probe = Probe(text)
                if text and text.isprintable() and identity(probe) not in taken:
                    found.setdefault(identity(probe), probe)
            if len(found) >= OWN:
                break
    return list(found.values())[:OWN]


def with_prompts(anchors: Sequence[Probe], recipe: Recipe) -> tuple[Probe, ...]:
    """Return anchors and, where fewer of them are without a picture than one write draws, the recipe's prompts.

    Answers to questions without a picture drift where every anchor has one: 100 edits of a weak small model left them
    at 45 %, with the prompts at 85 %, and with the model's own questions too at 95 %.
    """
    alone = sum(not anchor.images for anchor in anchors)
    if not anchors or alone >= recipe.anchors.size:
        return tuple(anchors)
    known = set(map(identity, anchors))
    prompts = (Probe(prompt.text) for prompt in shipped(recipe.anchors.prompts, recipe.seed))
    missing = [prompt for prompt in prompts if identity(prompt) not in known]
    return *anchors, *missing[: TEXT - alone]


def of_edits(edits: Sequence[Edit], recipe: Recipe) -> Candidates:
    """Return candidates from the pictures and questions of edits, and from the recipe's questions and prompts.

    Drawn by the recipe's seed and spread evenly over pictures and questions. None is a question of the edits or of
    their probes, nor asks a picture in nearly the words in which it is corrected.
    """
    corrected, seed = Corrected.of(edits), recipe.seed
    pictures = drawn({image.sha256: image for edit in edits for image in edit.images}, seed)[:CONSIDERED]
    asked = drawn(Question.of_edits(edits), seed)[:CONSIDERED]
    neutral, prompts = shipped(recipe.anchors.questions, seed), shipped(recipe.anchors.prompts, seed)
    pairs = _pairs(pictures, asked, len(asked), corrected.allows)
    general = _pairs(pictures, neutral, PER_PICTURE, corrected.allows_neutral)
    alone = [Probe(prompt.text) for prompt in prompts if corrected.allows(prompt, None)]
    return Candidates(pairs, general, alone, about=edits)


def of_prompts(recipe: Recipe) -> Candidates:
    """Return the recipe's prompts as candidates, with no regard to edits: those that bring anchors come later."""
    return Candidates([], [], [Probe(prompt.text) for prompt in shipped(recipe.anchors.prompts, recipe.seed)])


def of_folder(folder: Path, recipe: Recipe, *, strict_paths: bool = False) -> Candidates:
    """Return candidates that ask pictures of a folder the recipe's neutral questions, and its text-only prompts.

    Raises:
        DataError: it cannot be read or holds no pictures, or a picture cannot be read.
    """
    try:
        files = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    except OSError as error:
        raise DataError(f"`{folder}` cannot be read: {reason_of(error)}") from None
    names = {path.name: path.name for path in files if not path.name.startswith(".")}
    if not names:
        raise DataError(f"`{folder}` holds no pictures", f"readable are {', '.join(FORMATS)}; subfolders are not read")
    images, seed = ImageCache(folder, strict=strict_paths), recipe.seed
    pictures = list({image.sha256: image for image in map(images.locate, drawn(names, seed)[:PICTURED])}.values())
    neutral = shipped(recipe.anchors.questions, seed)
    general = _pairs(pictures, neutral, len(neutral), lambda *_: True)
    return Candidates([], general, of_prompts(recipe).prompts)


def _pairs(
    pictures: Sequence[ImageSource],
    questions: Sequence[Question],
    rounds: int,
    allowed: Callable[[Question, ImageSource], bool],
) -> list[Probe]:
    """Ask every picture in each round the allowed question that was asked least; return at most `CANDIDATES` pairs."""
    uses, pairs, left = Counter[str](), dict[tuple[str, str], Probe](), list(pictures)
    for _ in range(rounds):
        for picture in left[:]:
            free = (
                question
                for question in sorted(questions, key=lambda question: uses[question.text])
                if (picture.sha256, question.text) not in pairs and allowed(question, picture)
            )
            if question := next(free, None):
                pairs[picture.sha256, question.text] = Probe(question.text, (picture,))
                uses[question.text] += 1
                if len(pairs) == CANDIDATES:
                    return list(pairs.values())
            else:
                left.remove(picture)
    return list(pairs.values())


def shipped(texts: Iterable[str], seed: int) -> list[Question]:
    """Return questions of the recipe in the order of their draw."""
    return drawn({text: Question(text, (words_of(text),)) for text in texts}, seed)


def drawn(named: Mapping[str, Item], seed: int) -> list[Item]:
    """Return items in an order that depends on the seed and on their names, not on where they stand."""

    def key(name: str) -> str:  # the name of a file may be no valid text
        return sha256_bytes(canonical_json([seed, name]).encode(errors="surrogatepass"))

    return [named[name] for name in sorted(named, key=key)]
