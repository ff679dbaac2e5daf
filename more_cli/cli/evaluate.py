"""`more eval` and `more compare`: a state or an editor scored, with gates and report files; two results in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli import suite_eval
from more_cli.cli.output import Output
from more_cli.errors import UsageError


def evaluate(
    model: opt.Model = None,
    probes: Annotated[Path | None, typer.Option(help="Score a JSON Lines file of questions instead.")] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC>=NUMBER",
            help="Exit with 6 if missed; METRIC.low or .high is an end of its interval; repeatable.",
        ),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write tables, plots and a gallery (.html), or a summary (.md); repeatable."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML: one case per edit and per gate.")
    ] = None,
    suite: suite_eval.Suite = None,
    data_root: suite_eval.DataRoot = None,
    editor: suite_eval.EditorName = "more",
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    limit: suite_eval.Limit = 100,
    protocol: suite_eval.ProtocolNames = None,
    checkpoints: suite_eval.Checkpoints = "1,10,100",
    lags: suite_eval.Lags = "10",
    cache: suite_eval.Cache = None,
    again: suite_eval.Again = False,
    calibrate: suite_eval.Calibrate = 0,
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
    """Score every edit that stands, and what should not have moved.

    With --suite an editor goes through a suite of edits from the untouched base instead, and no state is touched.

    \b
    Examples:
      more eval llava/
      more eval llava/ --probes regression.jsonl --json
      more eval llava/ --gate "rel.gen_exact>=0.95" --junit more.xml --report more.html
      more eval --suite e-ic
      more eval llava/ --suite e-vqa --data-root data/mmedit --editor naive
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    given = {
        "--editor": editor != "more",
        "--recipe": recipe,
        "--set": set_,
        "--data-root": data_root,
        "--protocol": protocol,
        "--cache": cache,
        "--calibrate": calibrate,
        "--again": again,
    }
    suite_eval.check_together(suite, probes, [option for option, value in given.items() if value])
    if suite is not None:
        if gate or report or junit:
            raise UsageError("--suite goes without --gate, --report and --junit", "--json has every number")
        options = suite_eval.run_options(
            editor=editor,
            recipe=recipe,
            settings=set_,
            limit=limit,
            protocols=protocol,
            checkpoints=checkpoints,
            lags=lags,
            cache=cache,
            again=again,
            calibrate=calibrate,
        )
        place = opt.machine(device, dtype, device_map, memory)
        loaded = suite_eval.loaded(output, suite, data_root, image_root, strict_paths)
        suite_eval.evaluate_suite(output, loaded, model, state, options, place)
        return
    from more_cli.evaluation.gates import judge, parse_gate, require
    from more_cli.render.outlets import check_outlets, write_outlets

    gates, reports = [parse_gate(text) for text in gate or ()], report or []
    check_outlets(reports, junit)

    from more_cli.cli.scores import show_eval
    from more_cli.ops.evaluate import evaluate_probes, evaluate_state
    from more_cli.ops.session import locate

    target, machine = locate(model, state), opt.machine(device, dtype, device_map, memory)
    with output.progress() as progress:
        if probes is None:
            found = evaluate_state(target, machine, progress, ask_base=bool(reports))
        else:
            found = evaluate_probes(
                target, probes, image_root, machine, progress, ask_base=bool(reports), strict_paths=strict_paths
            )
    found.gates = judge(gates, found.estimates)
    show_eval(output, found)
    write_outlets(found, reports, junit)
    require(found.gates)


def compare(
    paired: Annotated[
        tuple[Path, Path],
        typer.Option("--paired", metavar="A.json B.json", help="Two outputs of `eval --json` about the same edits."),
    ],
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Compare two results edit by edit.

    Every metric with the mean difference, its 95 % interval and an exact sign test. Results that did not measure the
    same edits the same way are refused.

    \b
    Examples:
      more compare --paired before.json after.json
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli.scores import show_comparison
    from more_cli.ops.compare import compare_runs

    show_comparison(output, compare_runs(*paired))
