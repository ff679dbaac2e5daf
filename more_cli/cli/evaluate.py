"""`more eval`: a state or an editor scored, with gates and report files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli import outlets, suite_eval
from more_cli.cli.output import Output


def evaluate(
    model: opt.Model = None,
    probes: Annotated[Path | None, typer.Option(help="Score a JSON Lines file of questions instead.")] = None,
    gate: outlets.Gates = None,
    report: outlets.Reports = None,
    junit: outlets.Junit = None,
    suite: suite_eval.SuiteName = None,
    data_root: suite_eval.DataRoot = None,
    editor: suite_eval.EditorName = "more",
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    limit: suite_eval.Limit = 100,
    protocol: suite_eval.ProtocolNames = None,
    checkpoints: suite_eval.Checkpoints = "1,10,100",
    lags: suite_eval.Lags = "10",
    cache: suite_eval.Cache = None,
    metrics: suite_eval.Metrics = None,
    again: suite_eval.Again = False,
    calibrate: suite_eval.Calibrate = 0,
    anchors: suite_eval.Anchors = None,
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
      more eval llava/ --suite e-vqa --data-root data/mmedit --metrics mmedit
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
        "--metrics": metrics,
        "--again": again,
        "--anchors": anchors,
    }
    suite_eval.check_together(suite, probes, [option for option, value in given.items() if value])
    files = outlets.Outlets(report or (), junit, gate or ())
    files.check()
    if suite is not None:
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
            metrics=metrics,
            anchors=anchors,
        )
        place = opt.machine(device, dtype, device_map, memory)
        suite_eval.evaluate_suite(
            output, suite, data_root, image_root, model, state, options, place, files, strict_paths=strict_paths
        )
        return
    gates = files.gates_on()

    from more_cli.cli.scores import show_eval
    from more_cli.evaluation.gates import judge
    from more_cli.ops.evaluate import evaluate_probes, evaluate_state
    from more_cli.ops.session import locate
    from more_cli.render.pages import of_state

    target, machine = locate(model, state), opt.machine(device, dtype, device_map, memory)
    ask_base = bool(files.reports)
    with output.progress() as progress:
        if probes is None:
            found = evaluate_state(target, machine, progress, ask_base=ask_base)
        else:
            found = evaluate_probes(
                target, probes, image_root, machine, progress, ask_base=ask_base, strict_paths=strict_paths
            )
    found.gates = judge(gates, found.estimates)
    show_eval(output, found)
    files.write(of_state(found))
