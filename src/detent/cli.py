"""The command `detent`. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from detent import __version__
from detent.commands import check, compare, convert, emulate, evaluate, mix, options, sensitivity, tune
from detent.commands.images import takes_images
from detent.commands.options import NODES
from detent.compat.command import PASS_THROUGH, run
from detent.errors import DetentError, OutputError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130

app = typer.Typer(
    name="detent",
    help="Quantize trained ONNX models for NPUs, and see what it cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(context_settings=PASS_THROUGH)(run)


def main() -> None:
    """Run a command; every error that a user can cause is one message and an exit code that means something."""
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # how the command-line library answers Ctrl-C, without a word
            _stderr().print("Interrupted. Nothing was written.")
        raise
    except _InterruptedError as told:
        _stderr().print(str(told), markup=False, soft_wrap=True)
        sys.exit(INTERRUPTED)
    except DetentError as error:
        _stderr().print(f"[bold red]Error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Files are the concern of the commands, which name them; what is left is the terminal or pipe itself.
        _stderr().print(f"[bold red]Error:[/] Cannot print the result: {_escape(str(error))}", soft_wrap=True)
        sys.exit(OutputError.exit_code)


class _InterruptedError(Exception):
    """Ctrl-C, with something to say about what is left."""


def _interrupt_once(*_: object) -> None:
    """The first Ctrl-C stops the work; what follows while files are cleaned up is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        _stdout().print(__version__, highlight=False)
        raise typer.Exit


@app.command()
@takes_images
def quantize(
    model: Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")],
    output: Annotated[Path | None, typer.Argument(help="Where to write the result.", metavar="OUTPUT")] = None,
    calib: Annotated[
        Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file. Without: random data.")
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", help="A name that `detent recipes` lists, or a .toml file.")
    ] = "XINT8",
    settings: options.Settings = [],  # noqa: B006
    target: Annotated[
        str | None, typer.Option("--target", help="npu-cnn, npu-float-scale, npu-vaiml, npu-bf16 or cpu.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="MinMSE, Percentile:percentile=99.99, ...")] = None,
    activations: Annotated[
        str | None, typer.Option("--activations", help="int8, uint16, bfloat16, ..., if not the recipe's.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="qdq, qoperator, extended-qdq, vitis-qdq, fix-neuron, ...")
    ] = None,
    opset: Annotated[int | None, typer.Option("--opset", help="The least operator set of the result.")] = None,
    equalize: options.Equalize = None,
    equalize_with: options.EqualizeWith = None,
    smooth: options.Smooth = None,
    search_ranges: options.SearchRanges = None,
    refine: options.Refine = None,
    no_bias_correction: options.NoBiasCorrection = False,
    memory: options.Memory = None,
    include: Annotated[
        list[str], typer.Option(help="Only nodes that match.", metavar="PATTERN", rich_help_panel=NODES)
    ] = [],  # noqa: B006
    exclude: Annotated[
        list[str], typer.Option(help="Leave these float.", metavar="PATTERN", rich_help_panel=NODES)
    ] = [],  # noqa: B006
    op_types: Annotated[
        list[str], typer.Option("--op-types", help="Only these operators.", metavar="TYPE", rich_help_panel=NODES)
    ] = [],  # noqa: B006
    start: Annotated[
        list[str], typer.Option("--from", help="Only what follows NODE.", metavar="NODE", rich_help_panel=NODES)
    ] = [],  # noqa: B006
    end: Annotated[
        list[str], typer.Option("--to", help="Only what leads to NODE.", metavar="NODE", rich_help_panel=NODES)
    ] = [],  # noqa: B006
    fix_shape: Annotated[
        list[str], typer.Option(help="Make a dynamic shape fixed: input=1,3,224,224.", metavar="INPUT=DIMS")
    ] = [],  # noqa: B006
    limit: options.Limit = None,
    seed: options.Seed = None,
    batch: options.Batch = None,
    images: Any = None,
    threads: Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")] = 0,
    workers: options.Workers = None,
    dask: options.Dask = None,
    providers: options.Providers = [],  # noqa: B006
    stats: options.Stats = None,
    save_stats: options.SaveStats = None,
    resume: options.ContinueCounting = True,
    report: Annotated[Path | None, typer.Option("--report", help="Also save the report as JSON.")] = None,
    html: options.Html = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; run nothing, write no model.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Quantize MODEL and write it to OUTPUT.

    Example: detent quantize mobilenetv2.onnx mobilenetv2_int8.onnx --calib images/
    """
    if output is None and not dry_run:
        raise UsageError("Give an OUTPUT to write to, or --dry-run.")
    import detent
    from detent.calibrate import checkpoint_beside, refinement_beside
    from detent.graph.save import check_output
    from detent.observe.executors import open_executor
    from detent.progress_bar import progress_bar

    if report is not None:
        check_output(report, model, output)
    options.check_page(html, model, output, report, stats, save_stats)
    chosen = options.change_recipe(
        recipe,
        settings,
        target=target,
        method=method,
        activations=activations,
        format=form,
        opset=opset,
        equalize=options.equalization(equalize, equalize_with),
        smooth=smooth,
        search_ranges=search_ranges,
        refinement=refine,
    )
    if no_bias_correction:
        chosen = options.without_bias_correction(chosen)
    try:
        with open_executor(workers, dask) as executor, progress_bar(_stderr()) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the report says it
            result = detent.quantize(
                model,
                output,
                calib,
                chosen,
                include=include,
                exclude=exclude,
                op_types=op_types,
                start=start,
                end=end,
                preprocess=images,
                fix_shapes=options.shapes(fix_shape),
                limit=limit,
                seed=seed,
                batch=batch,
                threads=threads,
                executor=executor,
                providers=providers,
                stats=stats,
                save_stats=save_stats,
                resume=resume,
                memory=memory,
                dry_run=dry_run,
                progress=progress,
            )
    except KeyboardInterrupt:
        if output is None:
            raise
        beside = {"What was counted is": checkpoint_beside(output), "Refined layers are": refinement_beside(output)}
        for what, kept in beside.items():
            if kept.exists():
                raise _InterruptedError(f"Interrupted. {what} kept in {kept}: the same command continues.") from None
        raise
    if report is not None:
        result.save(report)
    options.write_html(result, html)
    if json:
        typer.echo(result.to_json())
        return
    from detent.report.terminal import print_report

    print_report(result, _stdout())


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")],
    nodes: Annotated[bool, typer.Option("--nodes", help="Also list every node.")] = False,
    json: options.Json = False,
) -> None:
    """Show what is in a model: operators, types, and the scale and position of every quantized tensor."""
    from detent.measure.inspection import inspect_model
    from detent.report.terminal import print_inspection

    inspection = inspect_model(model)
    if json:
        _echo_json(inspection.to_dict())
        return
    print_inspection(inspection, _stdout(), nodes=nodes)


@app.command()
def stats(
    file: Annotated[Path, typer.Argument(help="Statistics written by --save-stats.", metavar="FILE")],
    tensor: Annotated[list[str], typer.Option("--tensor", help="Only tensors that match.", metavar="PATTERN")] = [],  # noqa: B006
    sort: Annotated[
        Literal["graph", "outliers"], typer.Option("--sort", help="Graph order, or most outliers first.")
    ] = "graph",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw each tensor into this folder, as SVG.", metavar="DIR")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what calibration saw: range, sparsity and outliers of every tensor, and what each method would choose."""
    from detent.observe.statistics_file import load_statistics
    from detent.report.plots import plot_statistics
    from detent.report.statistics_view import choices_of, print_statistics, view_statistics

    loaded = load_statistics(file)
    view = view_statistics(loaded, choices_of, patterns=tensor, order=sort)
    if plot is not None:
        drawn = plot_statistics(loaded.statistics, plot, {each.name: each.choices for each in view.tensors})
        _stderr().print(f"{len(drawn)} plots in {plot}", markup=False)
    if json:
        _echo_json(view.to_dict())
        return
    print_statistics(view, _stdout())


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one, or that in a .toml file.", metavar="NAME")] = None,
    settings: options.Settings = [],  # noqa: B006
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a file to edit.")] = False,
    json: options.Json = False,
) -> None:
    """List the recipes, or show one.

    Example: detent recipes A8W8 --toml > my.toml, then detent quantize MODEL OUTPUT --recipe my.toml
    """
    from detent.presets import PRESETS
    from detent.recipe_file import to_plain, to_toml
    from detent.report.recipes_view import print_recipe, print_recipes

    if name is None:
        if toml or settings:
            raise UsageError("Give the NAME of a recipe: `detent recipes XINT8 --toml`.")
        if json:
            _echo_json({recipe.name: to_plain(recipe) for recipe in PRESETS.values()})
        else:
            print_recipes(list(PRESETS.values()), _stdout())
        return
    recipe = options.change_recipe(name, settings)
    if toml:
        typer.echo(to_toml(recipe), nl=False)
    elif json:
        _echo_json(to_plain(recipe))
    else:
        print_recipe(recipe, _stdout())


@app.command()
def demo(
    output: Annotated[Path, typer.Argument(help="Where to write the result.")] = Path("detent-demo/digits_xint8.onnx"),
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Only copy its model and images there, to try things on.", metavar="DIR"),
    ] = None,
) -> None:
    """Quantize the small digit classifier that comes with Detent, and measure what it cost."""
    from detent.demo.run import copy_files, run_demo
    from detent.progress_bar import progress_bar

    if files is not None:
        copy_files(files)
        return
    with progress_bar(_stderr()) as progress:
        result = run_demo(output, progress)
    result.show(_stdout())


def _echo_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _stdout() -> Console:
    return _console(lambda: sys.stdout)


def _stderr() -> Console:
    return _console(lambda: sys.stderr)


def _console(stream: Callable[[], Any]) -> Console:
    from rich.console import Console

    console = Console(file=stream(), highlight=False)
    # Into a file or a pipe, lines are as long as they are: tools that read them do not want ours folded at column 80.
    return console if console.is_terminal else Console(file=stream(), highlight=False, width=200)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


convert.register(app, _stdout)
evaluate.register(app, _stdout, _stderr)
compare.register(app, _stdout, _stderr)
sensitivity.register(app, _stdout, _stderr)
mix.register(app, _stdout, _stderr)
tune.register(app, _stdout, _stderr)
check.register(app, _stdout)
emulate.register(app, _stdout, _stderr)

if __name__ == "__main__":
    main()
