"""`more eval`: scores a state, or an editor on a suite, with gates and report files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli import outlets
from more_cli.cli import suite_options as suites
from more_cli.cli.output import ROWS, Output
from more_cli.cli.scores import estimate_cells, metrics_values, values_of_edit
from more_cli.cli.suite_eval import evaluate_suite
from more_cli.errors import UsageError
from more_cli.store.target import locate

if TYPE_CHECKING:
    from more_cli.ops.evaluate import EvalReport


def evaluate(
    model: opt.Model = None,
    probes: Annotated[
        Path | None, typer.Option(help="Score the questions of this JSON Lines file instead of the edits.")
    ] = None,
    gate: outlets.Gates = None,
    report: outlets.Reports = None,
    junit: outlets.Junit = None,
    suite: suites.SuiteName = None,
    data_root: suites.DataRoot = None,
    editor: suites.EditorName = "more",
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    limit: suites.Limit = 100,
    protocol: suites.ProtocolNames = None,
    checkpoints: suites.Checkpoints = "1,10,100",
    lags: suites.Lags = "10",
    cache: suites.Cache = None,
    metrics: suites.Metrics = None,
    again: suites.Again = False,
    calibrate: suites.Calibrate = 0,
    anchors: suites.Anchors = None,
    state: opt.StateFile = None,
    image_root: opt.ImageRoot = None,
    strict_paths: opt.StrictPaths = False,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Score all edits and their probes.

    Reverted and superseded edits are not scored; refused and not-learnt ones are. With --suite, an editor runs on a
    suite of edits instead, from the untouched base, and no state is changed.

    \b
    Examples:
      more eval llava/
      more eval llava/ --probes regression.jsonl --json
      more eval llava/ --gate "rel.gen_exact>=0.95" --junit more.xml --report more.html
      more eval --suite e-ic
      more eval llava/ --suite e-vqa --data-root data/mmedit --editor naive
      more eval llava/ --suite e-vqa --data-root data/mmedit --metrics mmedit
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    for_suites = {
        "--editor": editor != "more",
        "--recipe": recipe,
        "--set": set_,
        "--data-root": data_root,
        "--protocol": protocol,
        "--cache": cache,
        "--calibrate": calibrate,
        "--metrics": metrics,
        "--again": again,
        "--anchors": anchors,
    }
    _check_together(suite, probes, [option for option, value in for_suites.items() if value])
    files = outlets.Outlets(report or (), junit, gate or ())
    files.check()
    if suite is not None:
        options = suites.run_options(
            editor=editor,
            recipe=recipe,
            settings=set_ or (),
            limit=limit,
            protocols=protocol or (),
            checkpoints=checkpoints,
            lags=lags,
            cache=cache,
            again=again,
            calibrate=calibrate,
            metrics=metrics,
            anchors=anchors,
        )
        machine = opt.machine(device, dtype, device_map, memory)
        loaded = suites.SuiteSource(suite, data_root, image_root, strict_paths).load(output)
        target = suites.suite_target(output, model, state)
        evaluate_suite(output, loaded, target, options, machine=machine, files=files)
        return
    gates = files.gates_on()

    from more_cli.evaluation.gates import judge
    from more_cli.ops.evaluate import evaluate_probes, evaluate_state
    from more_cli.render.pages import of_state

    target, machine = locate(model, state), opt.machine(device, dtype, device_map, memory)
    ask_base = bool(files.reports)
    with output.progress() as progress:
        if probes is None:
            scored = evaluate_state(target, machine, progress, ask_base=ask_base)
        else:
            scored = evaluate_probes(
                target, probes, image_root, machine, progress, ask_base=ask_base, strict_paths=strict_paths
            )
    scored.gates = judge(gates, scored.estimates)
    _show_eval(output, scored)
    files.write(of_state(scored))


def _check_together(suite: str | None, probes: Path | None, for_suites: list[str]) -> None:
    """Refuse options that exclude each other, and options of suites without a suite."""
    if suite is not None and probes is not None:
        raise UsageError("`--suite` and `--probes` were both given", "leave one of them out")
    if suite is None and for_suites:
        raise UsageError(f"`{for_suites[0]}` needs `--suite`", "add --suite NAME; see `more suites list`")


def _show_eval(output: Output, report: EvalReport) -> None:
    """Show every metric with n and interval, the gates, and the edits that do not hold with their answers."""
    if output.as_json:
        output.json("more.eval/1", eval_values(report))
    output.replayed(report.replayed)
    if not report.estimates:
        output.line("nothing to score: no edits, or all of them reverted")
    else:
        output.line(f"protocol {report.protocol}, locality against {report.baseline}, {report.scope}")
        _show_numbers(output, report)
    outlets.show_gates(output, report.gates)


def _show_numbers(output: Output, report: EvalReport) -> None:
    output.table(
        ("metric", "value", "95 % interval", "n"),
        [(name, *estimate_cells(value)) for name, value in report.listed.items()],
        numbers=("value", "n"),
    )
    if len(report.retention) > 1:
        output.line()
        output.table(
            ("edits since", "rel.gen_exact", "95 % interval", "n"),
            [(ages, *estimate_cells(value)) for ages, value in report.retention.items()],
            numbers=("rel.gen_exact", "n"),
        )
    if report.failing:
        output.line()
        oldest = f", the oldest of them {report.first_forgotten}" if report.first_forgotten else ""
        output.line(f"{len(report.failing)} do not hold{oldest}:")
    output.table(
        ("edit", "question", "target", "answer"),
        [(s.probe.edit, s.probe.query.question, s.probe.target, s.answer) for s in report.failing[:ROWS]],
    )


def eval_values(report: EvalReport) -> dict[str, Any]:
    """Return an evaluation as JSON values."""
    return {
        "state": str(report.target.sidecar),
        "source": report.source,
        "protocol": report.protocol,
        "baseline": report.baseline,
        "edits": report.edits,
        "replayed": report.replayed,
        "metrics": metrics_values(report.estimates, report.protocol, report.baseline),
        "retention": {ages: asdict(value) for ages, value in report.retention.items()},
        "gates": [outlets.gate_values(gate) for gate in report.gates],
        "first_forgotten": report.first_forgotten,
        "failing": [
            {
                "id": score.probe.edit,
                "question": score.probe.query.question,
                "target": score.probe.target,
                "answer": score.answer,
                "values": score.values,
            }
            for score in report.failing
        ],
        "per_edit": [values_of_edit(scores, report.base_answers.get(scores.id)) for scores in report.per_edit],
        "reproduce": report.reproduce,
    }
