"""Known facts about each suite: file names, folders, and hashes and counts of the published files."""

from __future__ import annotations

from dataclasses import dataclass

from more_cli.inputs.foreign import MMEDIT_COLUMNS

FIT = "fit"
"""Pool that editors are fitted on before their first edit; suites without one use their calibration pool."""


@dataclass(frozen=True)
class Measured:
    """Hash and record count of one published file."""

    sha256: str
    """First 16 hex digits."""
    records: int


@dataclass(frozen=True)
class EditEntry:
    """A suite of edits with probes: one annotation file per pool, images below one folder."""

    name: str
    title: str
    files: dict[str, tuple[str, ...]]
    """Per pool the names its file may have, the first that exists is used; only `evaluation` is required."""
    folders: tuple[str, ...]
    """Where those files may lie below the data root."""
    image_folders: tuple[str, ...]
    """Where image paths may start below the data root."""
    columns: tuple[str, ...]
    """Fields that every record must have."""
    measured: dict[str, Measured]
    """By file name."""
    published: str
    notice: str = ""
    """Conditions of the licence."""
    embedded: str | None = None
    """Name of its mini suite in the package."""


@dataclass(frozen=True)
class YesNoEntry:
    """A suite of yes/no questions, two per image, in categories."""

    name: str
    title: str
    folders: tuple[str, ...]
    """Where the category folders may lie below the data root."""
    groups: dict[str, tuple[str, ...]]
    """Categories by the total that they count towards."""
    questions: int
    """In the published release."""
    published: str
    notice: str = ""
    embedded: str | None = None

    @property
    def categories(self) -> tuple[str, ...]:
        """All categories, in the order they are reported in."""
        return tuple(category for group in self.groups.values() for category in group)


_KNOWEDIT = "Hugging Face data set zjunlp/KnowEdit"
_MMEDIT = "the MMEdit folder of zjunlp/EasyEdit (editing-data.zip, and the images with val2014/)"

_FACTS = (".", "data", "zsre", "counterfact", "ZsRE", "wiki_recent", "wiki_counterfact", "WikiBio")


def _of_facts(
    name: str, title: str, evaluation: tuple[str, ...], calibration: tuple[str, ...], published: str
) -> EditEntry:
    """A suite of facts in text."""
    folders = (*_FACTS, *(f"benchmark/{folder}" for folder in _FACTS[1:]))
    files = {"evaluation": (*evaluation, "eval.json"), "calibration": (*calibration, "calibration.json")}
    return EditEntry(name, title, files, folders, (".",), (), {}, published)


CATALOG: dict[str, EditEntry | YesNoEntry] = {
    entry.name: entry
    for entry in (
        EditEntry(
            name="e-vqa",
            title="MMEdit: corrected answers to questions about COCO pictures",
            files={
                "evaluation": ("vqa_eval.json", "eval.json"),
                "calibration": ("vqa_train.json", "calibration.json"),
                FIT: ("fit.json",),
            },
            folders=(".", "vqa", "editing-data/vqa"),
            image_folders=(".", "images"),
            columns=MMEDIT_COLUMNS,
            measured={
                "vqa_eval.json": Measured("7299743ebe2854b2", 2093),
                "vqa_train.json": Measured("82e242bd7fd3ab85", 6345),
            },
            published=_MMEDIT,
            embedded="e-vqa-mini",
        ),
        EditEntry(
            name="e-ic",
            title="MMEdit: corrected captions of COCO pictures, all under the prompt `a photo of`",
            files={
                "evaluation": ("caption_eval_edit.json", "eval.json"),
                "calibration": ("caption_train_edit.json", "calibration.json"),
                FIT: ("fit.json",),
            },
            folders=(".", "caption", "editing-data/caption"),
            image_folders=(".", "images"),
            columns=MMEDIT_COLUMNS,
            measured={
                "caption_eval_edit.json": Measured("7c2215a419b82249", 1000),
                "caption_train_edit.json": Measured("583e306d72d06ad9", 2849),
            },
            published=_MMEDIT,
            embedded="e-ic-mini",
        ),
        EditEntry(
            name="vlkeb",
            title="VLKEB: corrected names of things in images, with portability where the file has it",
            files={
                "evaluation": ("eval_multihop.json", "eval.json", "eval_edit_onehop.json"),
                "calibration": ("train.json",),
            },
            folders=(".", "VLKEB"),
            image_folders=(".", "VLKEB_images", "mmkb_images", "images"),
            columns=MMEDIT_COLUMNS,
            measured={
                "eval.json": Measured("72c47efe00773bb1", 3174),
                "eval_edit_onehop.json": Measured("f32256e7c317d5a1", 1278),
                "train.json": Measured("6e40e0e9a28dc3e7", 5000),
            },
            published="Hugging Face data set HymanH/VLKEB-data, Kaggle hymanh/vlkeb-data",
        ),
        _of_facts(
            "zsre",
            "zsRE: corrected answers to questions about facts, for plain language models",
            ("zsre_mend_eval.json", "ZsRE-test-all.json"),
            ("zsre_mend_train_10000.json", "zsre_mend_train.json"),
            "rome.baulab.info/data/dsets",
        ),
        _of_facts(
            "counterfact",
            "CounterFact: facts replaced by false ones, for plain language models",
            ("counterfact.json", "multi_counterfact.json"),
            (),
            "rome.baulab.info/data/dsets",
        ),
        _of_facts("knowedit-recent", "KnowEdit: facts that changed", ("recent_test.json",), (), _KNOWEDIT),
        _of_facts("knowedit-counterfact", "KnowEdit: facts replaced by false ones", ("test_cf.json",), (), _KNOWEDIT),
        _of_facts("knowedit-wikibio", "KnowEdit: passages about people", ("wikibio-test-all.json",), (), _KNOWEDIT),
        YesNoEntry(
            name="mme",
            title="MME: yes/no questions on what a model can do, two per image",
            folders=(
                ".",
                "MME_Benchmark",
                "MME_Benchmark_release_version",
                "MME_Benchmark_release_version/MME_Benchmark",
            ),
            groups={
                "perception": (
                    "existence",
                    "count",
                    "position",
                    "color",
                    "posters",
                    "celebrity",
                    "scene",
                    "landmark",
                    "artwork",
                    "OCR",
                ),
                "cognition": ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning"),
            },
            questions=2374,
            published="the MME release (MME_Benchmark_release_version)",
            notice="MME is for academic research only: do not redistribute or modify it, and publish only scores",
            embedded="mme-mini",
        ),
    )
}
