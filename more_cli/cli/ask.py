"""`more ask`: asks the base and the edited model the same questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.checkpoint.hub import is_hub_id
from more_cli.cli import options as opt
from more_cli.cli.hub import fetched
from more_cli.cli.output import Output, fail
from more_cli.cli.records import command
from more_cli.cli.suite_source import embedded_target
from more_cli.cli.words import names_model, refuse_swapped
from more_cli.errors import DataError, UsageError
from more_cli.model.machine import Machine
from more_cli.options import HubOptions
from more_cli.store.target import Target, locate

if TYPE_CHECKING:
    from more_cli.inputs.images import ImageSource
    from more_cli.inputs.records import Record
    from more_cli.inputs.turns import Turn
    from more_cli.ops.ask import Answers

USAGE = 'more ask MODEL --image FILE "QUESTION"'


@command
def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [QUESTION]",
            help="Checkpoint folder, and a question in quotes. Without a question, each line of standard input is one; "
            "on a terminal you are asked for it.",
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", metavar="FILE", help="Picture to ask about; repeatable."),
    ] = None,
    video: Annotated[
        str | None, typer.Option(metavar="FILE", help="Animated GIF, WebP or PNG to ask about: four of its frames.")
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON list of the earlier turns of a conversation, as in an edit line."),
    ] = None,
    merged: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Ask this merged checkpoint too, beside the base.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")] = 64,
    state: opt.StateFile = None,
    *,
    hub: HubOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Ask the base and the edited model the same question.

    Beside each answer stands how unlikely each model finds it: its mean negative log-likelihood (NLL), in nats per
    token. Without a state the base answers alone.

    \b
    Examples:
      more ask llava/ --image tram.jpg "What is on the left?"
      more ask llava/ --messages talk.json "And what is on the right?"
      more ask llava/ --image tram.jpg --merged llava-edited/ --json < questions.txt
    """
    target, question = _named(output, words or [], state, hub)
    if state is not None:
        target.require_state()
    images, turns = _said_before(image or (), video, messages)  # a mistyped name is refused before torch is imported
    from more_cli.ops.ask import asking

    with ExitStack() as stack:
        with output.progress() as progress:
            asker = stack.enter_context(asking(target, machine, merged=merged, progress=progress))
        output.replayed(asker.replayed)
        if "edited" not in asker.models:
            output.note(f"note: `{target.model}` has no state: the base answers alone")
        show = partial(_show, output, target, merged)
        asks = partial(asker.ask, images=images, tokens=max_tokens, turns=turns)
        if question is not None:
            show(asks(question))
        elif not _answer_each(output, lambda text: show(asks(text))):
            raise typer.Exit(DataError.exit_code)


def _said_before(
    image: Sequence[str], video: str | None, messages: Path | None
) -> tuple[tuple[ImageSource, ...], tuple[Turn, ...]]:
    """Return the pictures that every question is about, those of the earlier turns first, and these turns."""
    from more_cli.inputs.images import ImageCache, pictures
    from more_cli.inputs.turns import read_messages, turns_of
    from more_cli.inputs.video import frames_of

    if image and video is not None:
        raise UsageError("`--image` and `--video` exclude each other", "leave one of them out")
    own = pictures(image) if video is None else frames_of(video, ImageCache(Path()))
    if messages is None:
        return own, ()
    said, root = read_messages(messages), ImageCache(messages.parent)
    earlier = tuple(root.locate(spelled) for message in said for spelled in message.images)
    return (*earlier, *own), turns_of(said)


def _named(output: Output, words: Sequence[str], state: Path | None, hub: HubOptions) -> tuple[Target, str | None]:
    """Return the model and the question that the words name: a word that is no checkpoint folder is the question."""
    model, rest = (Path(words[0]), words[1:]) if _is_model(words, hub) else (None, words)
    if model is None and words:
        refuse_swapped(words[0], words[1:2], "more ask {} {}")
    if model is None and words and (len(words) > 1 or _is_path(words[0])):
        fetch = "; --fetch downloads an id on the hub" if is_hub_id(Path(words[0])) else ""
        raise UsageError(f"no checkpoint folder `{words[0]}`", f"type: {USAGE}{fetch}")
    if len(rest) > 1:
        raise UsageError(f"one question at a time, not {len(rest)} words", f"put it in quotes: {USAGE}")
    model, state = fetched(output, model, state, hub)
    target = embedded_target(output, model, state) or locate(model, state)
    return target, rest[0] if rest else None


def _is_model(words: Sequence[str], hub: HubOptions) -> bool:
    return bool(words) and (names_model(words[0]) or (hub.fetch and is_hub_id(Path(words[0]))))


def _is_path(word: str) -> bool:
    return (os.sep in word or "/" in word) and " " not in word


def _answer_each(output: Output, answer: Callable[[str], None]) -> bool:
    """Answer every line of standard input, go on after a bad one, and return whether there was none."""
    good, came = True, False
    for record in _lines_typed(output):
        came = True
        try:
            if record.problem:
                raise DataError(str(record.problem), record.problem.hint)
            answer(str(record.value))
        except DataError as error:
            good = False
            fail(error if record.problem else DataError(f"{record.where}: {error.message}", error.hint))
    if not came:
        output.note("no question arrived")
    return good


def _lines_typed(output: Output) -> Iterator[Record]:
    """Return the lines of standard input; a person at a terminal is asked for each."""
    from more_cli.inputs.records import text_lines

    if sys.stdin is None:
        raise UsageError("standard input is closed", f"type the question: {USAGE}")
    return text_lines(_Typed(output) if sys.stdin.isatty() else sys.stdin, "<stdin>")


@dataclass(frozen=True)
class _Typed:
    """Lines that a person types, each after a prompt; an empty one is the last."""

    output: Output

    def readline(self, limit: int, /) -> bytes:
        """Ask for a line and return it; empty at the end."""
        self.output.prompt("question (an empty line or Ctrl-D ends): ")
        line = sys.stdin.buffer.readline(limit)
        if not line:
            self.output.note("")  # Ctrl-D leaves the cursor behind the prompt
        return line if line.strip() else b""


def _show(output: Output, target: Target, merged: Path | None, answers: Answers) -> None:
    from more_cli.outputs.evaluations import AskOutput

    output.json(
        AskOutput.of(
            answers,
            model=target.model,
            state=target.sidecar if answers.edited is not None else None,
            merged=merged,
            images=[image.sha256 for image in answers.images],
            answers=answers.said,
        )
    )
    output.line(answers.question)
    numbers = [f"NLL by {voice}" for voice in answers.said]
    output.table(
        ("model", "answer", *numbers),
        [(voice, said.text, *(f"{nll:.3f}" for nll in said.nll.values())) for voice, said in answers.said.items()],
        numbers=numbers,
    )
