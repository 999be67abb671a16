"""The `twinpath` command. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from twinpath import __version__
from twinpath.cli.settings import SETTINGS, load_file

app = typer.Typer(
    name="twinpath",
    help="An OpenAI-compatible LLM inference server for agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Its tables cut long flags at 80 columns, and take [...] for markup.
)
models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)
app.add_typer(models_app, name="models")
plan_app = typer.Typer(help="What a load would see on a machine, by simulation.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")

DEFAULT_MODEL = "smollm2-135m"
MODEL_HELP = "Alias, GGUF file, safetensors directory, hf://org/name[@rev] or pypi://..."
#: Where a value came from, in the words of the start-up table; nothing for a default.
ORIGINS = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Eager callback of --config: the file's values become defaults, below flags and environment."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **load_file(path)}
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="TWINPATH_CONFIG",
        is_eager=True,
        callback=read_config_file,
        help="TOML or JSON file of settings.",
    ),
]
Model = Annotated[str | None, typer.Argument(help=f"{MODEL_HELP} [default: {DEFAULT_MODEL}]", show_default=False)]
ModelFlag = Annotated[
    str | None, typer.Option("--model", envvar="TWINPATH_MODEL", help="The same as MODEL.", show_default=False)
]


#: For `twinpath chat`, whose server must not outlive it.
UntilEof = Annotated[bool, typer.Option("--until-eof", hidden=True, help="Stop when standard input ends.")]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes `**values` one typed option per entry of `SETTINGS`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [setting.parameter() for setting in SETTINGS]
    command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return command


@app.command()
@with_settings
def serve(
    context: typer.Context,
    model: Model = None,
    *,
    model_flag: ModelFlag = None,
    config: ConfigFile = None,
    until_eof: UntilEof = False,
    **values: Any,
) -> None:
    """Serve a model with an OpenAI-compatible API. Every setting is also TWINPATH_<NAME> and a key of --config."""
    from twinpath.cli.resolve import choose_model, resolve
    from twinpath.cli.serve import run_server, stop_at_eof

    if until_eof:
        stop_at_eof()
    origins = {name: ORIGINS.get(source.name, "") for name in values if (source := context.get_parameter_source(name))}
    chosen = choose_model(model, model_flag, DEFAULT_MODEL)
    raise typer.Exit(run_server(resolve(chosen, values), origins, context.obj))


@app.command()
def chat(
    model: Model = None,
    url: Annotated[str | None, typer.Option(help="A running server; unset: start one for this chat.")] = None,
    api_key: Annotated[str, typer.Option(envvar="TWINPATH_API_KEY", help="Key that the server asks for.")] = "",
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
) -> None:
    """Talk to a model in the terminal. Ctrl-C stops an answer, Ctrl-D leaves; /reset forgets, /exit leaves."""
    from twinpath.cli.chat import run_chat

    raise typer.Exit(run_chat(model or DEFAULT_MODEL, url, api_key=api_key, system=system, max_tokens=max_tokens))


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Check what this machine offers and what would stop or slow a server."""
    from twinpath.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json))


@app.command()
def version() -> None:
    """Print the version."""
    print(f"twinpath {__version__}")


@models_app.command("list")
def models_list(as_json: JsonFlag = False) -> None:
    """List known aliases and what is on this disk."""
    from twinpath.cli.models import list_models

    list_models(as_json)


@models_app.command("pull")
def models_pull(model: Annotated[str, typer.Argument(help=MODEL_HELP)]) -> None:
    """Fetch and verify a model; an interrupted download resumes."""
    from twinpath.cli.models import pull_model

    pull_model(model)


@models_app.command("rm")
def models_rm(model: Annotated[str, typer.Argument(help=MODEL_HELP)]) -> None:
    """Remove a fetched model from this disk."""
    from twinpath.cli.models import remove_model

    remove_model(model)


@plan_app.command("simulate")
def plan_simulate(
    trace: Annotated[str, typer.Option(help="Trace file (Mooncake, Azure 2023, Claude Code), or: mix, bursts.")],
    policy: Annotated[list[str] | None, typer.Option(help="Queue policy; several are compared.")] = None,
    machine: Annotated[str, typer.Option(help="Machine to simulate: h200-8b or cpu-smollm2.")] = "h200-8b",
    cost: Annotated[Path | None, typer.Option(help="JSON file of measured step costs, in ms.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="Class NAME:TTFT_MS:TPOT_MS[:MAX_NEW_TOKENS].")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per run.")] = 2000,
    load: Annotated[float, typer.Option(help="So many times the recorded rate.")] = 1.0,
    token_scale: Annotated[float, typer.Option(help="Multiplies prompt and output lengths.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per policy, each with its own window of the trace.")] = 1,
    noise: Annotated[float, typer.Option(min=0.0, help="Spread of step times (sigma of their logarithm).")] = 0.0,
    lanes: Annotated[bool, typer.Option(help="Plan in lanes.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write the waits for the first token as SVG.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the server's scheduler on a load in simulated time: attainment per class, percentiles, starvation."""
    from twinpath.cli.plan import SimulateArguments, run_simulate

    arguments = SimulateArguments(
        trace=trace,
        policies=tuple(policy or ["twinpath"]),
        machine=machine,
        cost=cost,
        slo=tuple(slo or ()),
        num_requests=requests,
        load=load,
        token_scale=token_scale,
        num_seeds=seeds,
        noise=noise,
        lanes=lanes,
        plot=plot,
    )
    raise typer.Exit(run_simulate(arguments, as_json))
