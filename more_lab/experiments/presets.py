"""Presets of metrics, `--metrics NAME`: columns, protocol and yardstick of published work.

Taken from its code (MMEdit's trainer in EasyEdit, LiveEdit, ScopeEdit's script) and from the M-ORE paper, whose table
does not follow its appendix: shares of the 17 tokens of one caption explain values that a 0/1 indicator cannot give.
"""

from __future__ import annotations

from more_cli.errors import UsageError
from more_cli.evaluation.names import Yardstick, full_names
from more_cli.runner.plan import Preset
from more_cli.text import did_you_mean, shorten


def preset_of(name: str) -> Preset:
    """Return a preset.

    Raises:
        UsageError: there is none of this name.
    """
    if name in PRESETS:
        return PRESETS[name]
    hint = did_you_mean(name, PRESETS) or f"there are {', '.join(PRESETS)}"
    raise UsageError(f"unknown metrics `{shorten(name)}`", hint)


def _five(targets: str, text: str, image: str) -> dict[str, str]:
    """Return the usual five columns, for one metric of targets and one of each locality."""
    return {
        "Rel": f"rel.{targets}",
        "T-Gen": f"gen_text.{targets}",
        "M-Gen": f"gen_image.{targets}",
        "T-Loc": f"loc_text.{text}",
        "M-Loc": f"loc_image.{image}",
    }


_PROMPTS = "prompts use the checkpoint's own chat template"
_LABELS = "targets are tokenised with the prompt; the source tokenises them alone, which is one token off with Llama"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "all",
            "every metric, by its full name",
            ("final", "online"),
            Yardstick(everywhere=True),
            {name: name for name in full_names()},
        ),
        Preset(
            "paper-table",
            "the rule that explains most of the M-ORE paper's table",
            ("online",),
            Yardstick("prev", "gold"),
            _five("tf_token_acc_noeos", "loc_top1_answer", "loc_top10_rank_answer"),
            averaged=True,
            notices=(_PROMPTS, _LABELS, "the paper names no protocol, and some of its columns use another mask"),
        ),
        Preset(
            "paper-final",
            "as paper-table, after the last edit and against the base: the protocol of the paper's rivals",
            ("final",),
            Yardstick("base", "gold"),
            _five("tf_token_acc_noeos", "loc_top1_answer", "loc_top10_rank_answer"),
            averaged=True,
            notices=(_PROMPTS, _LABELS),
        ),
        Preset(
            "paper-appendix",
            "as the appendix of the M-ORE paper defines them",
            ("online",),
            Yardstick("prev", "own"),
            _five("gen_exact", "loc_expkl_answer", "loc_expkl_answer"),
            averaged=True,
            notices=(
                _PROMPTS,
                "the paper defines neither its normalisation nor the prefix of locality; here the prefix is the greedy "
                "answer before the edit",
            ),
        ),
        Preset(
            "mmedit",
            "MMEdit's trainer in EasyEdit",
            ("single",),
            Yardstick("base", "gold", everywhere=True),
            {
                "inner/acc": "rel.tf_token_acc_noeos",
                "edit/acc": "gen_text.tf_token_acc_noeos",
                "image_rephrase/acc": "gen_image.tf_token_acc_noeos",
                "loc/acc": "loc_text.loc_top1_all",
                "image_loc/acc": "loc_image.loc_top10_rank_all",
                "port/acc": "portability.tf_token_acc_noeos",
            },
            notices=(f"{_PROMPTS}: its positions count in loc/acc and image_loc/acc", _LABELS),
        ),
        Preset(
            "liveedit",
            "LiveEdit",
            ("final",),
            Yardstick("base", "gold"),
            {
                "reliability.acc": "rel.tf_token_acc_noeos",
                "generality.text_rephrase.acc": "gen_text.tf_token_acc_noeos",
                "generality.image_rephrase.acc": "gen_image.tf_token_acc_noeos",
                "locality.text_loc.acc": "loc_text.loc_top1_answer",
                "locality.image_loc.acc": "loc_image.loc_top1_answer",
            },
            notices=(
                f"{_PROMPTS}; LiveEdit asks `{{question}} The answer is:` without one",
                "the whole stream is one block; LiveEdit restores the model between blocks of a file",
            ),
        ),
        Preset(
            "scopeedit",
            "ScopeEdit's script, also M-ORE's; its `frozen` is our `final`",
            ("online", "final"),
            Yardstick("prev", "gold", everywhere=True),
            {
                "inner/acc": "rel.tf_token_acc_noeos",
                "edit/acc": "gen_text.tf_token_acc_noeos",
                "image_rephrase/acc": "gen_image.tf_token_acc_noeos",
                "loc/acc": "loc_text.loc_top1_all",
                "loc/acc_answer": "loc_text.loc_top1_answer",
                "image_loc/acc": "loc_image.loc_top10_rank_all",
                "image_loc/acc_answer": "loc_image.loc_top1_answer",
            },
            notices=(
                _PROMPTS,
                _LABELS,
                "*_answer covers the positions that predict the answer; the script's mask is one position later",
                "no edits to warm up; the script makes nine first",
            ),
        ),
    )
}
