"""The commands: parse, call one function of `ops`, show its report, exit with its code.

Nothing heavy is imported before a command runs, so `more --help` is instant.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from more_cli import __version__
from more_cli.cli import ledger, suites
from more_cli.cli import options as opt
from more_cli.cli.bench import bench
from more_cli.cli.compare import compare
from more_cli.cli.edit import edit
from more_cli.cli.evaluate import evaluate
from more_cli.cli.failures import EDITS_FAILED, INTERRUPTED, MISUSE, as_user_error, show_misuse
from more_cli.cli.output import Output, fail, give_up
from more_cli.cli.revert import gc, revert
from more_cli.errors import MoreError

EXIT_CODES = """Exit codes: 0 done, every edit of the stream stands; 1 bug; 2 usage or recipe; 3 some edits are not
learnt or refused, or lost by a merge; 4 bad input data; 5 model or state does not fit; 6 a gate was missed; 7 out
of memory or disk; 130 interrupted, state saved."""


class _Commands(typer.core.TyperGroup):
    """The commands, with a word on Ctrl-C and on a reader that is gone, where Typer would leave in silence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                print(end="", flush=True)  # noqa: T201 (at exit Python would complain by itself)
        except BrokenPipeError:
            give_up()
            raise typer.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            print("interrupted; what the ledger holds is safe, run the same command again", file=sys.stderr)  # noqa: T201
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
    help="Correct a vision-language checkpoint from a stream of fixes.",
)
app.add_typer(suites.app, name="suites")
app.add_typer(ledger.app, name="log")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Bugs are not caught: they keep their traceback."""
    try:
        code: int | None = app(args=argv, prog_name="more", standalone_mode=False)
    except MISUSE as misuse:
        return show_misuse(misuse)
    except (MoreError, MemoryError, RuntimeError, OSError) as error:
        known = as_user_error(error)
        if known is None or os.environ.get("MORE_DEBUG") == "1":
            raise
        fail(known)
        return known.exit_code
    return code or 0


def _exit(code: int) -> NoReturn:
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"more {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=EXIT_CODES)
def init(
    model: opt.ModelFolder,
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    state: opt.StateFile = None,
    anchors: Annotated[
        Path | None, typer.Option(help="JSON Lines of questions whose answers must not move; loads the model.")
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Edits to choose constants of the recipe by, then forgotten; loads the model.")
    ] = None,
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
    """Write the state of a checkpoint, without edits yet.

    Picks the recipe for the architecture. Reads the config and shard headers only, unless there are anchors or edits
    to calibrate with.

    \b
    Examples:
      more init llava/
      more init llava/ --anchors regression.jsonl
      more init llava/ --recipe paper-llava --set rank=256
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.ops.init import Inputs, initialise
    from more_cli.ops.session import locate

    inputs = Inputs(anchors, calibrate, image_root, strict_paths)
    with output.progress() as progress:
        report = initialise(
            locate(model, state), recipe, set_ or (), inputs, opt.machine(device, dtype, device_map, memory), progress
        )
    reports.show_init(output, report)


app.command(epilog=EXIT_CODES)(edit)
app.command("eval", epilog=EXIT_CODES)(evaluate)
app.command(epilog=EXIT_CODES)(compare)
app.command(epilog=EXIT_CODES)(revert)
app.command(epilog=EXIT_CODES)(gc)
app.command(epilog=EXIT_CODES)(ledger.verify)
app.command(epilog=EXIT_CODES)(bench)


@app.command(epilog=EXIT_CODES)
def merge(
    model: opt.Model = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the edited checkpoint.")] = ...,  # type: ignore[assignment]
    state: opt.StateFile = None,
    force: Annotated[bool, typer.Option(help="Replace a folder that an earlier merge wrote.")] = False,
    verify: Annotated[bool, typer.Option(help="Load the result and compare its verdict on every edit.")] = False,
    rounding: Annotated[opt.Rounding, typer.Option(help="How folded weights are rounded.")] = opt.Rounding.nearest,
    seed: Annotated[int, typer.Option(min=0, help="Seed of stochastic rounding.")] = 0,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Hard-link the shards without editable weights: shared with the base, so write into neither.",
        ),
    ] = False,
    sha256: Annotated[
        bool, typer.Option("--sha256", help="Note what each shard hashes to: `more verify OUT --deep` reads it again.")
    ] = False,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Write a standalone checkpoint with the edits folded in.

    \b
    Examples:
      more merge llava/ -o llava-edited/
      more merge llava/ -o llava-edited/ --verify --sha256
      more merge llava/ -o llava-edited/ --link
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.ops.merge import merge as run
    from more_cli.store.target import locate

    with output.progress() as progress:
        report = run(
            locate(model, state),
            out,
            opt.machine(device, dtype, device_map, memory),
            force=force,
            verify=verify,
            rounding=rounding.value,
            seed=seed,
            link=link,
            sha256=sha256,
            dry_run=dry_run,
            progress=progress,
        )
    reports.show_merge(output, report)
    if report.verification is not None and report.verification.lost:
        _exit(EDITS_FAILED)


@app.command(epilog=EXIT_CODES)
def export(
    model: opt.Model = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Adapter folder, or the delta's file.")] = ...,  # type: ignore[assignment]
    format: Annotated[
        opt.Format, typer.Option(help="A PEFT LoRA adapter, or one safetensors file of weight deltas.")
    ] = (opt.Format.peft),
    state: opt.StateFile = None,
    force: Annotated[bool, typer.Option(help="Replace what an earlier export wrote.")] = False,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Write the edits as an adapter that PEFT loads, or as weight deltas.

    \b
    Examples:
      more export llava/ -o llava-adapter/
      more export llava/ --format delta -o deltas.safetensors
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.ops.export import export as run
    from more_cli.ops.session import locate

    with output.progress() as progress:
        report = run(
            locate(model, state),
            out,
            format.value,
            opt.machine(device, dtype, device_map, memory),
            force=force,
            progress=progress,
        )
    reports.show_export(output, report)


@app.command(epilog=EXIT_CODES)
def status(
    model: opt.Model = None,
    state: opt.StateFile = None,
    estimate: opt.Estimate = False,
    tokens: opt.Tokens = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Say what a state holds, or what `init` would choose.

    \b
    Examples:
      more status llava/
      more status llava/ --estimate
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.ops.status import estimated
    from more_cli.ops.status import status as run
    from more_cli.store.target import locate

    report = run(locate(model, state))
    if estimate:
        report = estimated(report, opt.machine(device, dtype, device_map, memory), tokens)
    reports.show_status(output, report)


@app.command(epilog=EXIT_CODES)
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder for model, edits and results.")] = Path(
        "more-demo"
    ),
    force: Annotated[bool, typer.Option(help="Replace what an earlier demo wrote.")] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Correct 24 mistakes of the embedded model.

    Runs init, edit, eval and merge on it, in under a minute.

    \b
    Examples:
      more demo
      more demo /tmp/try --json
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.demo.run import run_demo

    with output.progress() as progress:
        report = run_demo(folder, force=force, progress=progress)
    reports.show_demo(output, report)
    if report.edit.failed:
        _exit(EDITS_FAILED)
