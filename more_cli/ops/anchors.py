"""A state's anchors: stored beside it with their images, and answered once by the untouched base."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jsonlines

from more_cli.errors import ResourceError, StateError, StreamErrors, UsageError
from more_cli.files import disk_errors, replacing, require_regular, sha256_bytes, sha256_json, write_whole
from more_cli.inputs.edits import Edit, Probe, read_probes
from more_cli.inputs.images import ImageStore
from more_cli.inputs.turns import Turn
from more_cli.model.families import Family
from more_cli.progress import Progress, no_progress
from more_cli.recipe.schema import Recipe
from more_cli.store.entry import ProbeEntry, shown_as, turn_fields, turns_in
from more_cli.text import canonical_json, counted, reason_of, shorten

if TYPE_CHECKING:  # the stored files are read without torch
    from torch import Tensor

    from more_cli.editors.anchors import Anchor, ReadKeys
    from more_cli.model.runtime import Runtime

FILE = "anchors.jsonl"
Said: TypeAlias = "tuple[Tensor, Tensor]"
"""The base's answer to an anchor: its tokens, and the log-probabilities at them."""
NOTHING: Mapping[str, Said] = {}
_RESTORE = "restore it from a backup, or make the state again"


def read_anchors(file: Path, image_root: Path | None = None, *, strict_paths: bool = False) -> tuple[Probe, ...]:
    """Read and check a file of anchors.

    Raises:
        StreamErrors: there are problems, or a question has two answers.
        DataError: the file cannot be read at all.
    """
    questions = read_probes(file, image_root, strict_paths=strict_paths)
    found = [
        f"{_another_answer(file, each, before)} than line {before.line} to the same question"
        for each, before in contradictions((), questions)
    ]
    if found:
        raise StreamErrors(found, "keep one of the two lines")
    return questions


def require_askable(file: Path, questions: Iterable[Probe], family: Family) -> None:
    """Check that a model of this family can be asked the questions of a file.

    Raises:
        StreamErrors: one has an image more, or less, than the model takes.
    """
    found = [(each.line, refused) for each in questions if (refused := family.refuses(len(each.images), alone=True))]
    if found:
        raise StreamErrors([f"{file}:{line}: {reason}" for line, (reason, _) in found], found[0][1][1])


def require_agreement(file: Path, held: Iterable[Probe], questions: Iterable[Probe]) -> None:
    """Check that no question of a file has another answer than an anchor that is held.

    Raises:
        StreamErrors: one has.
    """
    found = [
        f"{_another_answer(file, each, before)} than the anchor that is held"
        for each, before in contradictions(held, questions)
    ]
    if found:
        raise StreamErrors(found, "leave the line out, or correct the model with an edit")


def contradictions(held: Iterable[Probe], questions: Iterable[Probe]) -> Iterator[tuple[Probe, Probe]]:
    """Yield each question whose answer is another one than that of an anchor, or of a question before it, and this."""
    answered = {identity(anchor): anchor for anchor in held if anchor.answer is not None}
    for question in questions:
        if question.answer is not None:
            before = answered.setdefault(identity(question), question)
            if before.answer != question.answer:
                yield question, before


def _another_answer(file: Path, question: Probe, before: Probe) -> str:
    answers = f"`{shorten(question.answer or '', 40)}`, there `{shorten(before.answer or '', 40)}`"
    return f"{file}:{question.line}: gives another answer ({answers})"


def keep_anchors(folder: Path, questions: Sequence[Probe], *, first: bool = False) -> str:
    """Write a set of anchors and their images into a state's folder, and return its digest.

    The `first` set is the one that a state was made with; a later set holds all anchors of the one before, then more.
    """
    digest = anchors_digest(questions)
    store = ImageStore(folder / "images")
    for item in questions:
        for image in item.images:
            store.put(image.read())
    store.sync()
    path = folder / FILE if first else later_file(folder, digest)
    with disk_errors(path), replacing(path) as scratch:
        scratch.write_bytes(_as_lines(questions))
    return digest


def require_anchors(recipe: Recipe, questions: Collection[Probe]) -> None:
    """Refuse to go on without anchors where the basis is computed from them.

    Raises:
        UsageError: there are none.
    """
    if recipe.basis == "pca" and not questions:
        raise UsageError("basis `pca` is computed from anchors, and there are none", "add --anchors FILE|auto")


def later_file(folder: Path, digest: str) -> Path:
    """Return the file of a set of anchors that was not the first."""
    return folder / f"anchors-{digest[:16]}.jsonl"


def anchors_digest(questions: Sequence[Probe]) -> str:
    """Return the SHA-256 of the file that holds this set."""
    return sha256_bytes(_as_lines(questions))


def _as_lines(questions: Sequence[Probe]) -> bytes:
    return "".join(f"{as_line(question)}\n" for question in questions).encode()


def as_line(anchor: Probe) -> str:
    """Return an anchor as a file of anchors has it."""
    return canonical_json(line_of(anchor) | {"answer": anchor.answer})


def line_of(anchor: Probe) -> dict[str, Any]:
    """Return what an anchor asks, as a line of the ledger or of a file of anchors has it."""
    asked = {"question": anchor.question, **shown_as([image.sha256 for image in anchor.images])}
    return asked | ({"turns": turn_fields(anchor.turns)} if anchor.turns else {})


def load_anchors(folder: Path, digest: str) -> list[Probe]:
    """Read the set of anchors with this digest.

    Raises:
        StateError: the file is missing, or has changed since it was written.
    """
    later, store = later_file(folder, digest), ImageStore(folder / "images")
    path = later if later.exists() else folder / FILE
    require_regular(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateError(f"`{path}` cannot be read: {reason_of(error)}", _RESTORE) from None
    if sha256_bytes(data) != digest:
        raise StateError(f"`{path}` has changed since it was written", _RESTORE)
    try:
        lines: list[ProbeEntry] = list(jsonlines.Reader(io.BytesIO(data), loads=ProbeEntry.model_validate_json))
    except jsonlines.InvalidLineError:
        raise StateError(f"`{path}` is damaged", _RESTORE) from None
    return [
        Probe(line.question, tuple(map(store.source, line.pictures)), line.answer, turns=turns_in(line.turns))
        for line in lines
    ]


def ask_anchors(
    runtime: Runtime,
    questions: Sequence[Probe],
    cache: Path,
    progress: Progress = no_progress,
    *,
    known: Sequence[Anchor] = (),
    said: Mapping[str, Said] = NOTHING,
    keys: ReadKeys | None = None,
) -> list[Anchor]:
    """Return anchors with the base's log-probabilities, read from the file `cache` or computed and written there.

    `known` are those of the first questions, if the base was asked them before; for `said` see `ask_once`, for `keys`
    `make_anchor`. The runtime must be attached, so that image features are kept; its branches are switched off
    meanwhile.

    Raises:
        StateError, DataError: a picture is missing or has changed.
    """
    from more_cli.editors.anchors import restore_anchor
    from more_cli.model.batches import Query

    cached = read_answers(cache, len(questions))
    if len(cached) == len(questions):
        for image in {image.sha256: image for question in questions for image in question.images}.values():
            image.read()  # raises now: it is decoded for the first write that draws the anchor
        return [
            restore_anchor(runtime, Query.of(question), tokens, base)
            for question, (tokens, base) in zip(questions, cached, strict=True)
        ]
    anchors = list(known)
    for question in questions[len(known) :]:
        progress(len(anchors), len(questions), "asking the base for anchors")
        anchors.append(ask_once(runtime, question, said, keys))
    keep_answers(cache, anchors)
    return anchors


def ask_once(runtime: Runtime, question: Probe, said: Mapping[str, Said], keys: ReadKeys | None = None) -> Anchor:
    """Return an anchor with the base's log-probabilities; `said` is what it said before, by the anchor's line."""
    from more_cli.editors.anchors import restore_anchor
    from more_cli.model.batches import Query

    if known := said.get(as_line(question)):
        return restore_anchor(runtime, Query.of(question), *known)
    return ask_base(runtime, question, keys)


def ask_base(runtime: Runtime, question: Probe, keys: ReadKeys | None = None) -> Anchor:
    """Return an anchor with the base's log-probabilities, and with its keys if these are to be read."""
    from more_cli.editors.anchors import make_anchor
    from more_cli.model.batches import Query

    return make_anchor(runtime, Query.of(question), question.answer, keys)


def read_answers(cache: Path, number: int) -> list[Said]:
    """Return the base's answers to so many anchors; none if the file is missing, damaged, or about others."""
    cached = read_cache(cache)
    if cached.keys() != {f"{n}.{part}" for n in range(number) for part in ("tokens", "base")}:
        return []
    found = [(cached[f"{n}.tokens"], cached[f"{n}.base"]) for n in range(number)]
    return found if all(_is_answer(*each) for each in found) else []


def _is_answer(tokens: Tensor, base: Tensor) -> bool:
    """Return whether these are tokens of an answer, and log-probabilities at each of them."""
    fits = tokens.dim() == 1 and base.dim() == 2 and len(tokens) == len(base) > 0
    if not fits or str(tokens.dtype) != "torch.int64" or str(base.dtype) != "torch.float32":
        return False
    return bool(tokens.min() >= 0) and bool(tokens.max() < base.shape[1]) and not bool(base.isnan().any())


def keep_answers(cache: Path, anchors: Sequence[Anchor]) -> None:
    """Write the base's answers to anchors into a file that `ask_anchors` reads."""
    tensors = {f"{n}.tokens": anchor.tokens for n, anchor in enumerate(anchors)}
    write_cache(cache, tensors | {f"{n}.base": anchor.base for n, anchor in enumerate(anchors)})


def write_cache(path: Path, tensors: dict[str, Tensor]) -> None:
    """Keep tensors that can be computed again, where the folder is writable and has space."""
    from safetensors.torch import save

    with suppress(StateError, ResourceError), disk_errors(path):
        if path.is_symlink():  # it can lead to any file
            path.unlink()
        write_whole(path, save(tensors))


def read_cache(path: Path) -> dict[str, Tensor]:
    """Return the cached tensors; nothing if the file is missing or damaged, since they can be computed again."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return {}


def cache_name(*facts: object, kind: str = "anchors") -> str:
    """Return the name of a cache file of this kind that is valid for these facts only."""
    return f"{kind}-{sha256_json(facts)[:16]}.safetensors"


def identity(asked: Probe | Edit) -> tuple[str, str]:
    """Return a key that is equal for the same question: images, and words without case and spacing."""
    return identity_of(asked.question, [image.sha256 for image in asked.images], asked.turns)


def identity_of(question: str, images: Sequence[str] = (), turns: Sequence[Turn] = ()) -> tuple[str, str]:
    """Return the `identity` of a question about pictures with these hashes, after these turns."""
    texts = (*(turn.text for turn in turns), question)
    return "+".join(images), "\n".join(" ".join(text.casefold().split()) for text in texts)


def identities(anchors: Iterable[Probe]) -> frozenset[tuple[str, str]]:
    """Return the identity of every anchor, to compare probes with."""
    return frozenset(map(identity, anchors))


def leave_out(edits: Iterable[Edit], anchors: Collection[tuple[str, str]]) -> tuple[list[Edit], int]:
    """Return edits without the locality probes that are anchors too, and how many these were.

    Such a probe would score training data.
    """
    kept, number = list[Edit](), 0
    for edit in edits:
        locality = tuple(probe for probe in edit.locality if identity(probe) not in anchors)
        number += len(edit.locality) - len(locality)
        kept.append(replace(edit, locality=locality) if len(locality) < len(edit.locality) else edit)
    return kept, number


def anchors_too(number: int, total: int, noun: str = "locality probe") -> str:
    """Return how many probes are anchors too, such as `2 of 40 locality probes are anchors too`."""
    return f"{number:,} of {counted(total, noun)} {'is an anchor' if number == 1 else 'are anchors'} too"


def left_out_sentence(number: int, total: int, noun: str = "locality probe") -> str:
    """Return that these probes were left out because they are anchors too; empty for none."""
    return f"{anchors_too(number, total, noun)} and {'was' if number == 1 else 'were'} left out" if number else ""
