"""`more export`: writes the edits as a PEFT adapter or as weight deltas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.words import refuse_swapped
from more_cli.model.machine import Machine
from more_cli.options import ExportOptions
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.export import ExportReport


@command
def export(
    model: opt.Model = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="Folder of the adapter, or file of the deltas.")
    ] = ...,  # type: ignore[assignment]
    state: opt.StateFile = None,
    *,
    options: ExportOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Write the edits as a PEFT adapter or as weight deltas.

    \b
    Examples:
      more export llava/ -o llava-adapter/
      more export llava/ --rank 64 -o llava-adapter/
      more export llava/ --format delta -o deltas.safetensors
    """
    from more_cli.ops.export import export as run

    if model is not None:
        refuse_swapped(model, [out], "more export {} -o {}")
    target = locate(model, state)
    with output.progress() as progress:
        report = run(target, out, machine, options, progress)
    _show_export(output, report)


def _show_export(output: Output, report: ExportReport) -> None:
    from more_cli.outputs.products import ExportOutput
    from more_cli.store.entry import failed_sentence

    output.json(ExportOutput.of(report))
    output.replayed(report.replayed)
    what = counted(len(report.modules), "module" if report.format == "peft" else "weight delta")
    of = " of the model" if report.format == "peft" else ""
    output.line(f"wrote {report.out}: {counted(report.edits, 'edit')} in {what}{of}")
    if report.needs_unpacked:
        output.note("load the base for PEFT with quantization_config=CompressedTensorsConfig(dequantize=True)")
    if report.kept:
        least = min(report.kept, key=lambda module: report.kept[module])
        output.line(f"the rank keeps {report.kept[least]:.1%} or more of each update; least in {least}")
    if report.failed:
        output.line(failed_sentence(report.failed, report.asked))
