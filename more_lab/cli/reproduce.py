"""`more reproduce`: tables and figures of the M-ORE paper, measured beside what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli.outlets import Reports
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import FailedEditsError, UsageError
from more_cli.model.machine import Machine
from more_cli.options import SUITE, option
from more_lab.cli import suite_options as suites

if TYPE_CHECKING:
    from more_cli.render.page import Page
    from more_lab.experiments.run import LabOptions
    from more_lab.paper.exhibits import Exhibit
    from more_lab.paper.reproduce import Reproduction


KIT = "kit"


@dataclass(frozen=True)
class PaperOptions(suites.MeasureOptions):
    """What is measured of the paper, on which data, and where it is written."""

    data_root: Path | None = option(
        None, "Folder with the files of E-VQA and E-IC. [default: the embedded suites]", metavar="DIR"
    )
    image_root: Path | None = option(
        None, "Folder that image paths start from. [default: found below --data-root]", metavar="DIR"
    )
    mme: Path | None = option(None, "Folder with the questions of MME. [default: the embedded ones]", metavar="DIR")
    prompts: str = option("own", "Wording of questions: the checkpoint's own, or mmedit.", metavar="own|mmedit")
    out: Path | None = option(None, "Folder for figures, their runs and a page.", "--out", "-o", metavar="DIR")
    checkpoints: str = option(
        "", "Numbers of edits after which scores are reported. [default: the paper's]", metavar="1,10,..", panel=SUITE
    )

    def check(self, exhibits: Sequence[Exhibit]) -> None:
        """Refuse what cannot be done.

        Raises:
            UsageError: figures without a folder, a folder of something else, or an unknown wording.
        """
        if self.prompts not in ("own", "mmedit"):
            raise UsageError(f"`--prompts {self.prompts}` is not a wording", "use own or mmedit")
        if self.out is None and (drawn := next((each.name for each in exhibits if each.analyses), None)):
            raise UsageError(f"`{drawn}` has figures, and they need a folder", "add --out DIR")
        if self.out is not None:
            from more_lab.paper.reproduce import check_folder

            check_folder(self.out)

    def write(self, page: Page) -> None:
        """Write the page into the folder, if one was named.

        Raises:
            StateError, ResourceError: it cannot be written.
        """
        if self.out is None:
            return
        from more_cli.files import disk_errors
        from more_cli.render.outlets import write_outlets
        from more_lab.paper.reproduce import PAGES

        with disk_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        write_outlets(page, [self.out / name for name in PAGES])

    def run_options(self) -> LabOptions:
        """Return them as a run takes them; no checkpoints stand for those of the paper.

        Raises:
            UsageError: not a list of numbers above 0.
        """
        from more_cli.runner.protocols import Scored

        found = suites.checked(replace(self, checkpoints=self.checkpoints or "1"), "more", limit=None)
        marks = found.scored.checkpoints if self.checkpoints else ()
        wording = () if self.prompts == "own" else (f"prompts={self.prompts}",)
        return replace(found, scored=Scored((), marks, ()), settings=wording)


@command
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A table or figure, all, or kit; without it they are listed."),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Checkpoint folders, one for each of the paper's backbones. [default: embedded]"
        ),
    ] = None,
    editor: Annotated[
        list[str] | None,
        typer.Option(
            "--editor",
            metavar="NAME",
            help="Only this editor; repeatable. [default: those of the paper]",
            autocompletion=completion.editors,
        ),
    ] = None,
    *,
    options: PaperOptions,
    files: Reports,
    machine: Machine,
    output: Output,
) -> None:
    """Measure tables and figures of the M-ORE paper, beside what it prints.

    M-ORE is scored right after each edit, as the paper defines it; other editors after the last one and against the
    base, as MMEdit and LiveEdit score them. A second run continues an interrupted one. What cannot be run says why.

    \b
    Examples:
      more reproduce table-1 --editor ft-m --editor more:paper --checkpoints 1,10
      more reproduce all -o paper/
      more reproduce all llava-1.5-7b-hf/ blip2-opt-2.7b/ --data-root editing-data/ -o paper/ --device cuda
      more reproduce kit -o kit/      # a folder to take to a machine with a real model and a GPU
    """
    from more_lab.paper.exhibits import chosen

    if name is None:
        _list(output)
        return
    if name == KIT:
        _write_kit(output, options.out)
        return
    exhibits = chosen(name)
    options.check(exhibits)
    files.check()
    results = _measured(exhibits, models or [_demo(output)], options, machine, editor or (), output)
    from more_lab.render.reproduction import of_reproductions

    files.write(of_reproductions(results), lambda: _show(output, results, options.out))
    if not all(found.complete for found in results):
        raise FailedEditsError("not everything was measured", "the lines `not run` say why")


def _measured(
    exhibits: Sequence[Exhibit],
    models: Sequence[Path],
    options: PaperOptions,
    machine: Machine,
    editors: Sequence[str],
    output: Output,
) -> list[Reproduction]:
    from more_lab.paper.reproduce import Measurement, Sources, placed
    from more_lab.render.reproduction import of_reproductions

    sources = Sources(options.data_root, options.image_root, options.mme, options.out)
    run, results = options.run_options(), list["Reproduction"]()
    names = [model.resolve().name for model in models]
    if twice := next((model for number, model in enumerate(models) if names[number] in names[:number]), None):
        raise UsageError(
            f"two models are called `{twice.resolve().name}`: results go by that name", "rename one folder"
        )
    places = [(exhibit, *place) for exhibit in exhibits for place in placed(exhibit, models)]
    for model in models:
        if all(model != chosen for _, chosen, _, _ in places):
            output.note(f"note: `{model}` is not used: the paper shows this on other models, or another one came first")
    with output.progress() as progress:
        for exhibit, model, backbone, notices in places:
            task = Measurement(exhibit, model, backbone, sources, run, machine, editors, progress)
            if task.variants:
                results.append(task.run(notices))
                options.write(of_reproductions(results))  # what is there can be read while the rest runs
    if not results:
        raise UsageError(f"no such run has an editor of {', '.join(editors)}", "leave --editor out")
    first = next((found.first for found in results if found.first), None)
    if first and not any(found.measured for found in results):
        raise first
    return results


def _list(output: Output) -> None:
    from more_lab.outputs.comparisons import ExhibitsOutput
    from more_lab.paper.exhibits import exhibits

    found = list(exhibits().values())
    output.json(ExhibitsOutput.model_validate({"exhibits": found}))
    rows = [
        (one.name, one.title, ", ".join(one.labels), ", ".join(one.backbones), len(one.variants) * len(one.suites))
        for one in found
    ]
    output.table(("name", "shows", "in the paper", "on", "runs"), rows, numbers=("runs",))
    output.line("all: every one, and a page")


def _write_kit(output: Output, out: Path | None) -> None:
    from more_lab.outputs.comparisons import KitOutput
    from more_lab.paper.kit_folder import write_kit

    if out is None:
        raise UsageError("`reproduce kit` needs a folder", "add --out DIR")
    files = write_kit(out)
    output.json(KitOutput(folder=out, files=files))
    output.line(f"wrote {out}: take it to a machine with a model and a GPU, and begin with {out / 'README.md'}")


def _demo(output: Output) -> Path:
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL given; using the embedded demo model")
    return demo_model_dir()


def _show(output: Output, results: Sequence[Reproduction], out: Path | None) -> None:
    from more_lab.outputs.comparisons import ReproduceOutput

    output.json(ReproduceOutput.of_results(results, out / "index.html" if out else None))
    for found in results:
        if len(results) > 1:
            output.line(f"{found.exhibit.name}: {found.exhibit.title}, on {found.model.resolve().name}")
        _show_one(output, found)
    for notice in dict.fromkeys(notice for found in results for notice in found.notices):
        output.note(f"note: {notice}")
    if out is not None:
        output.note(f"page: {out / 'index.html'}")


def _show_one(output: Output, found: Reproduction) -> None:
    from more_lab.paper.reproduce import COLUMNS
    from more_lab.render.reproduction import HEADER, lines_of, printed_beside

    for suite in dict.fromkeys(row.suite for row in found.rows):
        output.line(f"{suite}, in %")
        rows = [line for row in found.rows if row.suite == suite for line in lines_of(row)]
        output.table(HEADER, rows, numbers=("edits", *COLUMNS))
        output.line()
    scalars = [
        (done.analysis.name, suite, str(scalar))
        for suite, analyses in found.figures.items()
        for done in analyses
        for scalar in done.result.scalars
    ]
    if scalars:
        output.table(("figure", "suite", "95 % interval in brackets"), scalars)
    for label, values in printed_beside(found):
        output.line(f"printed: {label}: {values}")
    for row in found.missing:
        output.line(f"not run: {row.name} on {row.suite}: {row.reason}")
    for sentence in [*(f"not run: {problem}" for problem in found.problems), *found.warnings]:
        output.line(sentence)
