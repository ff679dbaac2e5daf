"""Trains a language model of the table and writes a complete checkpoint.

    python -m tests.worlds.language.train NAME --out DIR --work DIR [--steps N]

A row is one fact in one wording; only the answer and its end are learnt. A stopped training goes on when it is called
again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ..embedded.loop import Schedule, fit
from ..embedded.world.pools import Dice
from .world import MEMBERS, Fact, Member

IGNORE, BATCH, STEPS = -100, 64, 2400
CONTROLS = ("<|pad|>", "<|begin|>", "<|end|>")


def tokenizer_of(member: Member) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the member's world: frequent words are one token, names are several."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=list(CONTROLS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        (f"{fact.asked(number)} {fact.answer}" for fact in member.facts for number in range(5)), trainer
    )
    begin = CONTROLS[1]
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, bpe.token_to_id(begin))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        pad_token=CONTROLS[0],
        bos_token=begin,
        eos_token=CONTROLS[2],
    )
    with (
        tempfile.TemporaryDirectory() as scratch
    ):  # a model type can have a tokenizer class that splits words otherwise
        AutoConfig.for_model(member.model_type).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        return AutoTokenizer.from_pretrained(scratch)


def model_of(member: Member, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A model with fresh weights."""
    wide = 4 if member.model_type == "gpt_neox" else 3  # two matrices in a feed-forward part, or three
    config = AutoConfig.for_model(
        member.model_type,
        vocab_size=len(tokenizer),
        hidden_size=member.width,
        intermediate_size=wide * member.width,
        num_hidden_layers=member.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    torch.manual_seed(member.seed)
    return AutoModelForCausalLM.from_config(config)


class Learner(torch.nn.Module):
    """The model and its facts as tokens."""

    def __init__(self, member: Member, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.member, self.model, self.tokenizer = member, model, tokenizer

    def row(self, fact: Fact, wording: int) -> tuple[list[int], list[int]]:
        """Tokens of a fact, and their labels."""
        prompt = self.tokenizer(fact.asked(wording))["input_ids"]
        answer = self.tokenizer(f" {fact.answer}", add_special_tokens=False)["input_ids"]
        answer = [*answer, self.tokenizer.eos_token_id]
        return [*prompt, *answer], [*[IGNORE] * len(prompt), *answer]

    def loss(self, step: int) -> Tensor:
        """Cross-entropy of the answers of one batch."""
        dice, facts = Dice(self.member.seed, 2, step), self.member.facts
        rows = [self.row(facts[dice.below(len(facts))], dice.below(5)) for _ in range(BATCH)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in rows])
        labels = torch.tensor([[*labels, *[IGNORE] * (longest - len(labels))] for _, labels in rows])
        learnt = labels[:, 1:] != IGNORE
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learnt]
        return cross_entropy(self.model.get_output_embeddings()(hidden), labels[:, 1:][learnt])

    @torch.no_grad()
    def right(self, count: int = 400) -> float:
        """Share of facts, in per cent, whose answer is predicted whole, in the wording that is edited."""
        dice, good = Dice(self.member.seed, 3), 0
        for fact in dice.some(self.member.facts, count):
            ids, labels = self.row(fact, 0)
            best = self.model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0].argmax(-1).tolist()
            good += all(label in (IGNORE, said) for label, said in zip(labels[1:], best, strict=True))
        return 100 * good / count


def main() -> None:
    """Train, write the checkpoint and its accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MEMBERS))
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--work", type=Path, required=True, help="folder for the state of a stopped training")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    member, began = MEMBERS[arguments.name], time.process_time()
    tokenizer = tokenizer_of(member)
    learner = Learner(member, model_of(member, tokenizer), tokenizer)
    schedule = Schedule(arguments.steps, 3e-3, 100)
    fit("facts", learner, learner.loss, schedule, arguments.work / member.name, lambda _: f"{learner.right():.1f} %")
    accuracy = learner.right()
    part = arguments.out.with_name(f"{arguments.out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    learner.model.to(getattr(torch, member.precision)).save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(arguments.out, ignore_errors=True)
    part.replace(arguments.out)
    minutes = (time.process_time() - began) / 60
    print(json.dumps({"name": member.name, "core_minutes": round(minutes, 1), "right": accuracy}), flush=True)


if __name__ == "__main__":
    main()
