"""From a question, its images and a target to tokens.

The span of the target is found in the tokens of the whole sequence: tokenised by itself the same text can give
other tokens, and a label that is off by one trains and scores the wrong position.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from more_cli.clock import timed
from more_cli.errors import DataError, StateError
from more_cli.inputs.images import ImageSource
from more_cli.inputs.turns import shown_in
from more_cli.inputs.wording import asks_for_a_description
from more_cli.model.batches import PER_TOKEN, Encoded, Query, Span
from more_cli.model.families import Family, Phrasing
from more_cli.system.confined import Exceeded, confined
from more_cli.text import counted, first_line, shorten

_QUESTION = "\ue000question\ue000"
_TURN = "\ue000turn {}\ue000"
_ANSWER = "\ue000answer\ue000"
_Shape = tuple[tuple[str, int], ...]
"""Role and number of images of each earlier turn."""
_Form = tuple[int, str | None, _Shape]
"""Number of the question's images, the answer if it is part of the chat, and the earlier turns."""
_Prompted = tuple[str, Tensor, dict[str, Tensor]]
SEQUENCE, ALONE = "sequence", "alone"
"""Tokens of a target: those that it has in the whole sequence, or by itself."""
OWN, MMEDIT = "own", "mmedit"
"""Wordings of questions: as they are, in the checkpoint's template or phrasing; or as MMEdit's code words them."""
RECENT = 64 << 20
"""Bytes of recent questions that are kept, mostly pixels."""
ENTRY = 1 << 10
"""Rough bytes of a question beside its tensors."""
TEMPLATE_MEMORY, TEMPLATE_SECONDS = 256 << 20, 5
"""What a chat template may take: bytes and processor time."""
ANSWERING = dict.fromkeys(("enable_thinking", "thinking", "reasoning"), False)
"""Names under which templates take whether the model thinks first: a correction is about the answer."""
DAY = datetime(2024, 7, 26)
"""The date of every prompt whose template writes one: where there is no clock, Llama's templates have this date."""
_CLOCK = "{{% macro strftime_now(format) %}}{{{{ format{} }}}}{{% endmacro %}}\n".format(
    "".join(f"|replace('%{code}', '{DAY.strftime('%' + code)}')" for code in "aAbBdHIjmMpSyY")
)
"""Before such a template: prompts must be the same tomorrow. transformers drops the last line break."""
_THINKS = re.compile(r"enable_thinking|think\w*>")
_BEGUN_THOUGHTS = re.compile(r"<(\w*think\w*)>\s*$")
"""At the end of a prompt."""
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_NOT_INPUTS = {"input_ids", "attention_mask", "labels"}
FAILURES = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""With what a processor fails, when it loads or on a picture."""
_RENDERED: dict[tuple[str, str, str, bool], dict[_Form, str]] = {}
"""What chat templates made of their forms in this process: by template, special tokens, system message, and whether
the model sees."""


class UnfitImage(DataError):
    """The model's processor fails on a picture."""

    def __init__(self, sources: Sequence[ImageSource], error: Exception) -> None:
        names = ", ".join(f"`{shorten(source.spelled, 200)}`" for source in sources)
        hint = "crop it, or leave it out: some models take no picture that is very narrow"
        super().__init__(f"the model's processor fails on image {names}: {shorten(first_line(error), 120)}", hint)
        self.error = error


class Prompter:
    """Renders questions with the checkpoint's chat template, or its family's phrasing, and tokenises them."""

    def __init__(
        self,
        processor: Any,
        family: Family | None = None,
        *,
        system: str = "",
        prompts: str = OWN,
        labels: str = SEQUENCE,
        max_length: int | None = None,
        decoder_start: int | None = None,
        stops: Sequence[int] = (),
    ) -> None:
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.family = family or Family()
        self.system = system
        self.prompts = prompts
        self.labels = labels
        self.max_length = max_length
        self.decoder_start = decoder_start
        self._recent: OrderedDict[Query, _Prompted] = OrderedDict()
        self._bytes = 0
        self._pictures: dict[str, Image] = {}
        self._chat = self._chat_template()
        named = json.dumps(self.tokenizer.special_tokens_map, sort_keys=True, default=str)
        self._rendered = _RENDERED.setdefault((self._chat, named, system, self.family.sees), {})
        phrasing = Phrasing("") if self._chat else self.family.phrasing
        if phrasing is None:
            raise StateError(
                f"`{self.tokenizer.name_or_path}`: the checkpoint has no chat template",
                "put the model's chat_template.jinja beside its config.json",
            )
        self._phrasing = unphrased(phrasing) if prompts == MMEDIT else phrasing
        self.template: str = self._chat or phrasing.prompt
        self._image_token = str(getattr(processor, "image_token", "") or "")
        self._control = sorted(self._control_tokens(), key=len, reverse=True)
        self._opening, self._separator, end = self._around_answer()
        self.eos = self._end_of_answer(end, stops)
        self.stops = tuple(dict.fromkeys((self.eos, self.tokenizer.eos_token_id, *stops)))

    @property
    def thinks(self) -> bool:
        """Whether the model can think before it answers; it is asked to answer at once."""
        return bool(_THINKS.search(self._chat))

    @timed("preprocess")
    def encode(self, query: Query, target: str | None = None) -> Encoded:
        """Tokenise a question and, when given, its target followed by the token that ends an answer.

        Raises:
            DataError: the sequence is longer than the model's context, an image cannot be read or is one that the
                processor fails on, or the model takes another number of images.
        """
        if problem := self.family.refuses(len(query.images), alone=True):
            raise DataError(*problem)
        prompt, ids, extras = self._prompted(query)
        start = len(ids)
        if target is not None:
            ids = torch.cat([ids, ids.new_tensor([*self._answer(prompt, self.inert(target)), self.eos])])
        if self.max_length is not None and len(ids) > self.max_length:
            raise DataError(
                f"question and target take {counted(len(ids), 'token')}, the model's context has {self.max_length}",
                "shorten the question or the target",
            )
        extras = {name: value[:, :start] if name in PER_TOKEN else value for name, value in extras.items()}
        images = tuple(source.sha256 for source in query.images)
        return Encoded(ids, Span(start, len(ids)), images, extras, self.family.answer_type, self.decoder_start)

    def render(self, query: Query) -> str:
        """Return the prompt up to where the answer begins, control tokens inside the question made inert."""
        text = self._render(query).replace(_QUESTION, self.inert(self._worded(query)))
        for number, turn in enumerate(query.turns):
            text = text.replace(_TURN.format(number), self.inert(turn.text))
        return text

    def turn(self) -> tuple[list[int], str]:
        """Return the tokens before the question of a prompt without a picture, and the text that follows it."""
        before, _, after = self._render(Query((), "")).partition(_QUESTION)
        # Without the last space: most tokenizers join it to the word that follows.
        return self._tokens(before.rstrip(" ")), after

    def asked(self, ids: Sequence[int]) -> str:
        """Return the question at the start of these tokens.

        It ends before a line break, a control token, or what the prompt has after a question.
        """
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
        ends = filter(str.strip, (self.turn()[1].strip(), *self._control))
        for end in ("\n", *ends):
            text = text.partition(end)[0]
        return text.strip()

    def _worded(self, query: Query) -> str:
        """Return the question in the wording of `prompts`.

        MMEdit words every question about a picture, but the `a photo of` of captions, and no text-only one.
        """
        if self.prompts == OWN or not query.images or asks_for_a_description(query.question):
            return query.question
        return f"Question: {query.question} Short answer:"

    def inert(self, text: str) -> str:
        """Break up every control token inside a user's text, so that it is read as text and never as control."""
        for token in self._control:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def unwritten(self, target: str) -> str:
        """Return the words of a target that the tokenizer has no tokens for; of most targets none."""
        token = self.tokenizer.unk_token_id

        def unknown(text: str) -> bool:
            ids = self.tokenizer(self.inert(text), add_special_tokens=False)["input_ids"]
            return token is not None and token in ids

        if not unknown(target):
            return ""
        return " ".join(filter(unknown, target.split())) or target

    def text(self, ids: Sequence[int] | Tensor) -> str:
        """Return the text of an answer's tokens, without control tokens."""
        return str(self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=True)).strip()

    def spoken(self, ids: Sequence[int]) -> str:
        """Return the text of a generated answer's tokens; it ends in `...` if it was cut off before its end."""
        return self.text(ids) + ("" if ids and ids[-1] in self.stops else "...")

    def _answer(self, prompt: str, target: str) -> list[int]:
        """Return the tokens of a target behind its prompt."""
        if self.decoder_start is not None or self.labels == ALONE:
            return list(self.tokenizer(target, add_special_tokens=False)["input_ids"])
        prompt += self._phrasing.appended
        # Both without images: how often the image placeholder repeats does not change the target's tokens.
        before, whole = self._tokens(prompt), self._tokens(prompt + self._separator + target)
        if whole[: len(before)] == before:
            return whole[len(before) :]
        # The prompt's last token, such as a space, would merge with the target: an answer comes behind it as it is.
        return list(self.tokenizer(self._separator + target, add_special_tokens=False)["input_ids"])

    def _chat_template(self) -> str:
        found = getattr(self.processor, "chat_template", None) or self.tokenizer.chat_template or ""
        return str(found.get("default", "") if isinstance(found, dict) else found)

    def _control_tokens(self) -> set[str]:
        added = {str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        named = {str(getattr(self.processor, name, "") or "") for name in ("image_token", "video_token")}
        return ({str(token) for token in self.tokenizer.all_special_tokens} | added | named) - {""}

    def _render(self, query: Query) -> str:
        """Return the prompt with placeholders for the question and for what was said before it."""
        images = len(query.images) - shown_in(query.turns)
        shape = tuple((turn.role, turn.images) for turn in query.turns)
        if not self._chat:
            prompt = self._phrased(images, shape)
            return f"{self.system} {prompt}" if self.system else prompt
        (text,) = self._chatted([(images, None, shape)])
        return text + self._opening

    def _phrased(self, images: int, shape: _Shape) -> str:
        """Return a prompt without a chat template: each earlier question with its answer on a line of its own."""
        phrasing, text = self._phrasing, ""
        for number, (role, shown) in enumerate((*shape, ("user", images))):
            said = _TURN.format(number) if number < len(shape) else _QUESTION
            asked = phrasing.prompt.format(images=self._image_token * shown, question=said)
            text += asked if role == "user" else f"{phrasing.appended}{phrasing.separator}{said}\n"
        return text

    def _chatted(self, forms: Sequence[_Form]) -> list[str]:
        """Return what the chat template makes of a placeholder for a question, with so many images and this answer.

        A template is a program of the checkpoint, and what it does can depend on anything, also on chance. So only its
        texts come into this process, once per form and for all prompters that have it.
        """
        new = [form for form in forms if form not in self._rendered]
        if not new:
            return [self._rendered[form] for form in forms]
        try:
            texts = confined(
                lambda: json.dumps([self._chat_text(*form) for form in new]), TEMPLATE_MEMORY, TEMPLATE_SECONDS
            )
        except Exceeded as error:
            raise self._unusable(str(error)) from None
        self._rendered.update(zip(new, json.loads(texts), strict=True))
        return [self._rendered[form] for form in forms]

    def _chat_text(self, images: int, answer: str | None, shape: _Shape) -> str:
        turns, clock = enumerate(shape), _CLOCK if "strftime_now" in self._chat else ""
        messages = [self._message(role, _TURN.format(number), shown) for number, (role, shown) in turns]
        messages.append(self._message("user", _QUESTION, images))
        if self.system:
            messages.insert(0, self._message("system", self.system))
        if answer is not None:
            messages.append(self._message("assistant", answer))
        # The tokenizer's method: that of some processors needs a video processor.
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                chat_template=clock + self._chat,
                tokenize=False,
                add_generation_prompt=answer is None,
                **ANSWERING,
            )
        )

    def _message(self, role: str, text: str, images: int = 0) -> dict[str, Any]:
        """Return a message in the form that the template reads: parts, or plain text in a language model."""
        if not self.family.sees:
            return {"role": role, "content": text}
        return {"role": role, "content": [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]}

    def _unusable(self, why: str) -> StateError:
        hint = "put the chat template that the model was trained with beside its config.json"
        if self.system:
            hint += "; if it takes no system message, leave `system` out of the recipe"
        return StateError(f"{self._template_file()}: the chat template {why}", hint)

    def _template_file(self) -> str:
        """Return the path of the file that holds the chat template, as transformers chooses it."""
        folder = Path(str(self.tokenizer.name_or_path))
        files = (folder / name for name in TEMPLATE_FILES)
        return str(next((file for file in files if file.is_file()), folder))

    def _around_answer(self) -> tuple[str, str, str | None]:
        """Return what the template puts between the generation prompt and the answer, and the control token behind it.

        Of what comes between, the first part belongs to the prompt, such as empty thoughts, and the second to the
        answer, often one space.

        Raises:
            StateError: the template fails, or leaves out or changes the question.
        """
        if not self._chat:
            return "", self._phrasing.separator, None
        pictured: list[_Form] = [(1, None, ())] if self.family.sees else []
        # In one go: what every command needs.
        prompt, whole, *others = self._chatted([(0, None, ()), (0, _ANSWER, ()), *pictured])
        if not all(_QUESTION in text for text in (prompt, *others)):  # such as one for texts, given lists of parts
            raise self._unusable("leaves out or changes the question")
        before, _, after = whole.partition(_ANSWER)
        end = min((token for token in self._control if token in after), key=after.index, default=None)
        return *_between(prompt, before if _ANSWER in whole else ""), end

    def _end_of_answer(self, control: str | None, stops: Sequence[int]) -> int:
        """Return the token that ends an answer: the template's, else the tokenizer's."""
        if control is not None:
            return int(self.tokenizer.convert_tokens_to_ids(control))
        own = int(self.tokenizer.eos_token_id)
        # Plain `generate` goes on behind an end that the checkpoint does not name: BLIP-2 with OPT ends at line breaks.
        return own if own in stops or not stops else stops[0]

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=not self._begun(text))["input_ids"])

    def _prompted(self, query: Query) -> _Prompted:
        """Return a question's text, tokens and other inputs, from the recent questions if it is one of them."""
        if query not in self._recent:
            text = self.render(query)
            ids, extras = self._process(text, query)
            self._recent[query] = text, ids, extras
            self._bytes += _size(self._recent[query])
            while self._bytes > RECENT and len(self._recent) > 1:
                self._bytes -= _size(self._recent.popitem(last=False)[1])
        self._recent.move_to_end(query)
        return self._recent[query]

    def _process(self, text: str, query: Query) -> tuple[Tensor, dict[str, Tensor]]:
        images = self._open(query.images)
        begun = {"add_special_tokens": False} if self._begun(text) else {}
        try:
            values = dict(self.processor(text=[text], images=images or None, return_tensors="pt", **begun))
        except FAILURES as error:
            if not images:
                raise
            raise UnfitImage(query.images, error) from None
        ids: Tensor = values["input_ids"][0]
        # Without an image a Q-Former gets no input.
        extras = values.keys() - _NOT_INPUTS if images else values.keys() & {*PER_TOKEN}
        return ids, {name: values[name] for name in sorted(extras) if isinstance(values[name], Tensor)}

    def _open(self, sources: Sequence[ImageSource]) -> list[Image]:
        """Return decoded pictures; they stay decoded until others come, since the next question is often about them."""
        if sources:
            known = self._pictures
            self._pictures = {each.sha256: known.get(each.sha256) or each.open() for each in sources}
        return [self._pictures[each.sha256] for each in sources]

    def _begun(self, text: str) -> bool:
        """Whether a prompt already has what begins a sequence: the tokenizer must not add it.

        As in transformers: a language model's chat template writes all of it, a processor adds the token if it is not
        there.
        """
        if self._chat and not self.family.sees:
            return True
        return bool(self.tokenizer.bos_token) and text.startswith(self.tokenizer.bos_token)


def _between(prompt: str, before: str) -> tuple[str, str]:
    """Split what comes between a generation prompt and an answer, given all that comes before the answer."""
    if before.startswith(prompt):
        between = before[len(prompt) :]
        opening = between.rstrip(" ") if between.strip() else ""
        return opening, between[len(opening) :]
    # The template does not continue its own prompt: thoughts end as they began, and words are separated by one space.
    begun = _BEGUN_THOUGHTS.search(prompt)
    opening = f"\n</{begun[1]}>\n\n" if begun else ""
    return opening, "" if (prompt + opening)[-1:].isspace() else " "


def unphrased(phrasing: Phrasing) -> Phrasing:
    """Return the format of a bare question: only the images and what the processor adds by itself stay."""
    images = "{images}" if "{images}" in phrasing.prompt else ""
    return replace(phrasing, prompt=f"{images}{{question}}")


def _size(prompted: _Prompted) -> int:
    _, ids, extras = prompted
    return ENTRY + ids.nbytes + sum(value.nbytes for value in extras.values())
