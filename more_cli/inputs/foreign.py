"""Records of other projects, converted to edit lines: MMEdit (E-VQA, E-IC), VLKEB, MMKE-Bench, zsRE and facts.

Nothing is lost: values without a field of their own go into `tags` under their name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache

from more_cli.inputs.facts import fact_to_native, is_fact, tags_with, without_none

MMEDIT_COLUMNS = ("src", "alt", "rephrase", "image", "image_rephrase", "loc", "loc_ans", "m_loc", "m_loc_q", "m_loc_a")
"""Fields of every MMEdit record, except `pred`, the model's old answer."""
_CONVERTED = {*MMEDIT_COLUMNS, "port_new", "one_hop_img", "portability", "id", "tags"}
_MISSPELT = 0.8
"""How similar to one of these a name is that is taken for a misspelt one."""
_HOP = re.compile(r"(\d{1,3})-hop")


def is_foreign(record: Mapping[str, object]) -> bool:
    """Return whether a record has the question of MMEdit and zsRE (`src`) or is a fact, and has none of an edit's."""
    return is_fact(record) or _has_source(record)


def _has_source(record: Mapping[str, object]) -> bool:
    if "question" in record or "target" in record:
        return False
    return "src" in record and ("alt" in record or not is_fact(record))


def to_native(record: Mapping[str, object]) -> dict[str, object]:
    """Return a foreign record as the fields of an edit line; the reader checks the values.

    Text is not changed; locality questions of MMEdit and zsRE keep their prefix `nq question: `.
    """
    if not _has_source(record):
        return fact_to_native(record)
    names = {"src": "question", "alt": "target", "id": "id", "image": "image"}
    native = {name: record[theirs] for theirs, name in names.items() if theirs in record}
    if "m_loc" in record and "image" in native and native["image"] is None:
        native["image"] = [None]  # MMEdit's questions are about a picture: the reader reports the missing one
    for name, theirs in (("rephrases", "rephrase"), ("image_rephrases", "image_rephrase")):
        if theirs in record:
            native[name] = _listed(record[theirs])
    if locality := _locality(record):
        native["locality"] = locality
    if "port_new" in record:
        native["portability"] = _portability(record)
    elif (hop := record.get("portability")) is not None:
        native["portability"] = [_zsre_probe(hop)] if isinstance(hop, Mapping) else hop
    others = {name: value for name, value in record.items() if name not in _CONVERTED}
    misspelt = {name for name in others if _is_misspelt(name)}
    kept = {name: value for name, value in others.items() if name not in misspelt}
    native["tags"] = tags_with(record.get("tags", {}), kept)
    return native | {name: others[name] for name in others if name in misspelt}  # the reader reports them


@lru_cache(1_000)
def _is_misspelt(name: str) -> bool:
    return bool(difflib.get_close_matches(name, _CONVERTED, 1, _MISSPELT))


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _locality(record: Mapping[str, object]) -> list[dict[str, object]]:
    probes: list[dict[str, object]] = []
    if "loc" in record:
        probes.append(without_none(question=record["loc"], answer=record.get("loc_ans")))
    if "m_loc" in record:
        fields = without_none(image=record["m_loc"], answer=record.get("m_loc_a"))
        probes.append({**fields, "question": record.get("m_loc_q")})
    return probes


def _portability(record: Mapping[str, object]) -> object:
    """Turn `port_new` into probes; VLKEB uses the edit's image, MMKE-Bench may name another one."""
    entries = record["port_new"]
    if not isinstance(entries, list):
        return entries
    return [_port_probe(entry, record) for entry in entries]


def _zsre_probe(hop: Mapping[str, object]) -> dict[str, object]:
    """Return the question of EasyEdit's zsRE that follows from the edit."""
    return without_none(question=hop.get("New Question"), answer=hop.get("New Answer"), hop=1)


def _port_probe(entry: object, record: Mapping[str, object]) -> object:
    if not isinstance(entry, Mapping):
        return entry
    image = record.get("image")
    if isinstance(image, list):
        image = image[0] if image else None
    if "port_q" in entry:  # VLKEB's eval_edit_onehop.json
        return without_none(image=image, question=entry["port_q"], answer=entry.get("port_a"), hop=1)
    asked = entry.get("Q&A")
    kind = entry.get("port_type")
    if not isinstance(asked, Mapping) or not isinstance(kind, str):
        return dict(entry)
    found = _HOP.fullmatch(kind)
    hop = int(found[1]) if found else None
    if hop == 1:
        image = record.get("one_hop_img", image)
    return without_none(image=image, question=asked.get("Question"), answer=asked.get("Answer"), hop=hop)
