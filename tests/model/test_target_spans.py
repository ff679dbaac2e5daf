"""Which tokens are the target: for every suite, those that the model would have to generate after the prompt.

Tokenised by itself a target can give other tokens. With a SentencePiece tokenizer as Llama's it begins with a stray
space, so labels made that way are off by one (all 1,000 captions of E-IC, by the published code); with a byte-level
one they are the same.
"""

from __future__ import annotations

from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from more_cli.model.batches import Query
from more_cli.model.prompts import Prompter
from more_cli.suites.load import EditSuite, load_suite
from support.paths import MMEDIT, NO_MMEDIT
from support.tiny import make_processor

SUITES = ["e-vqa", "e-ic", pytest.param("e-vqa real", marks=NO_MMEDIT), pytest.param("e-ic real", marks=NO_MMEDIT)]


@cache
def corrections(suite: str) -> list[tuple[str, str]]:
    """Yield question and target of every edit, in every pool that exists."""
    name, _, real = suite.partition(" ")
    loaded = load_suite(name, MMEDIT if real else None)
    assert isinstance(loaded, EditSuite)
    lines = [annotation.line for pool in loaded.pools.values() for annotation in pool.annotations]
    assert len(lines) > 100
    return [(line.question, line.target) for line in lines]


def sentencepiece_style(texts: list[str]) -> PreTrainedTokenizerFast:
    """As Llama's: a space becomes part of the word behind it, and one is put before every text."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bpe.decoder = decoders.Metaspace()
    controls = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1000, special_tokens=controls, show_progress=False))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        clean_up_tokenization_spaces=False,
    )


@cache
def prompter(style: str, suite: str) -> Prompter:
    processor = make_processor()  # its tokenizer is byte-level, as GPT-2's and OPT's
    if style == "sentencepiece":
        asked = [text for pair in corrections(suite) for text in pair]
        processor.tokenizer = sentencepiece_style([*asked, "USER: ASSISTANT:"] * 2)
    return Prompter(processor)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("style", ["sentencepiece", "byte-level"])
def test_the_span_is_found_in_the_whole_sequence(style: str, suite: str) -> None:
    asking, stray = prompter(style, suite), 0
    tokenizer = asking.tokenizer
    for question, target in dict.fromkeys(corrections(suite)):
        query = Query((), question)
        encoded = asking.encode(query, target)
        ids, start = encoded.input_ids.tolist(), encoded.target.start
        prompt = asking.render(query)
        assert ids == [*tokenizer(f"{prompt} {target}")["input_ids"], asking.eos]
        assert ids[:start] == asking.encode(query).input_ids.tolist()
        assert tokenizer.decode(ids[start:-1]).strip() == target
        assert encoded.target.stop == len(ids)
        alone = tokenizer(f" {target}", add_special_tokens=False)["input_ids"]
        assert alone[-(len(ids) - 1 - start) :] == ids[start:-1]
        stray += len(alone) - (len(ids) - 1 - start)
    assert stray == (len(set(corrections(suite))) if style == "sentencepiece" else 0)
