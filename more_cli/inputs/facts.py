"""Records about facts in text, converted to edit lines: CounterFact, KnowEdit, and EasyEdit's flat form of both.

Nothing is lost: values without a field of their own go into `tags` under their name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_FLAT = ("prompt", "target_new")
_PASSAGE = ("text", "labels")
"""KnowEdit's WikiBio: the start of a passage, and how it goes on."""
_USED = {
    *(*_FLAT, *_PASSAGE, "id", "tags", "rephrase", "rephrase_prompt", "locality", "portability"),
    *("locality_prompt", "locality_ground_truth", "paraphrase_prompts", "neighborhood_prompts", "requested_rewrite"),
}


def is_fact(record: Mapping[str, object]) -> bool:
    """Return whether a record has the fields of CounterFact or of KnowEdit, and not those of an edit line."""
    if "question" in record or "target" in record:
        return False
    return "requested_rewrite" in record or any(all(name in record for name in pair) for pair in (_FLAT, _PASSAGE))


def fact_to_native(record: Mapping[str, object]) -> dict[str, object]:
    """Return a fact as the fields of an edit line; the reader checks the values.

    Of several correct answers the first is taken. Questions about other subjects (`neighborhood_prompts`, `locality`)
    become locality probes with their published answers.
    """
    if "requested_rewrite" in record:
        return _counterfact(record)
    question, target = _FLAT if "prompt" in record else _PASSAGE
    native: dict[str, object] = {"question": record[question], "target": _first(record[target])}
    rephrases = [text for name in ("rephrase", "rephrase_prompt") for text in _texts(record.get(name))]
    locality = [*_probes(record.get("locality")), *_flat_locality(record)]
    return _with_tags(record, native, rephrases, locality, list(_probes(record.get("portability"))))


def _counterfact(record: Mapping[str, object]) -> dict[str, object]:
    asked = record["requested_rewrite"]
    if not isinstance(asked, Mapping):
        return {"requested_rewrite": asked}  # the reader reports it
    prompt, subject = asked.get("prompt"), asked.get("subject")
    whole = prompt.replace("{}", subject) if isinstance(prompt, str) and isinstance(subject, str) else prompt
    native: dict[str, object] = {"question": whole, "target": _text(asked.get("target_new"))}
    true = _text(asked.get("target_true"))
    locality = [without_none(question=text, answer=true) for text in _texts(record.get("neighborhood_prompts"))]
    tags = {name: value for name, value in asked.items() if name not in ("prompt", "target_new")}
    return _with_tags({**tags, **record}, native, _texts(record.get("paraphrase_prompts")), locality, [])


def _with_tags(
    record: Mapping[str, object],
    native: dict[str, object],
    rephrases: Sequence[object],
    locality: Sequence[dict[str, object]],
    portability: Sequence[dict[str, object]],
) -> dict[str, object]:
    lists = {"rephrases": rephrases, "locality": locality, "portability": portability}
    native |= {name: list(values) for name, values in lists.items() if values}
    native |= {"id": record["id"]} if "id" in record else {}
    kept = {name: value for name, value in record.items() if name not in _USED}
    return native | {"tags": tags_with(record.get("tags", {}), kept)}


def _probes(groups: object) -> Iterator[dict[str, object]]:
    """Yield the questions of KnowEdit's groups, such as `Relation_Specificity`; those without a text are left out."""
    if not isinstance(groups, Mapping):
        return
    for probes in groups.values():
        for probe in probes if isinstance(probes, list) else []:
            if isinstance(probe, Mapping):
                question, answer = _first(probe.get("prompt")), _first(probe.get("ground_truth"))
                if question and answer:
                    yield {"question": question, "answer": answer}


def _flat_locality(record: Mapping[str, object]) -> Iterator[dict[str, object]]:
    questions, answers = (_texts(record.get(f"locality_{name}")) for name in ("prompt", "ground_truth"))
    for question, answer in zip(questions, answers, strict=False):
        yield {"question": question, "answer": answer}


def _first(value: object) -> object:
    """Return the first of nested lists: `[["Paris", "City of Light"]]` lists names of one answer."""
    while isinstance(value, list):
        value = value[0] if value else ""
    return value


def _text(value: object) -> object:
    return value.get("str") if isinstance(value, Mapping) else value


def _texts(value: object) -> list[object]:
    """Return a text or a list of them as a list; of CounterFact's later form, `{"prompt": ...}`, the prompt."""
    values = value if isinstance(value, list) else [] if value in (None, "") else [value]
    return [each.get("prompt") if isinstance(each, Mapping) else each for each in values]


def tags_with(own: object, kept: Mapping[str, object]) -> object:
    """Return a record's own tags with the values that are kept as tags; what cannot be tags is left for the reader."""
    if isinstance(own, list) and all(isinstance(tag, str) for tag in own):
        own = dict.fromkeys(own, True)
    return {**own, **kept} if isinstance(own, Mapping) else own


def without_none(**fields: object) -> dict[str, object]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
