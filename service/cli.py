"""The command line, where it is all put together.

    octavo serve | generate | chat | pull | inspect | doctor | simulate | bench

Errors that a user can mend are one line on stderr: exit code 2 for the command line's own, 1 for
the rest.
"""

import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import metadata
from json import dumps
from typing import Annotated

import typer

from model.errors import ModelError
from service import (
    app as api,
    bench as load,
    doctor as physician,
    hub,
    inspection,
    logs,
    otel,
    server,
    sockets,
    terminal,
)
from service.auth import KeyRing, read_keys
from service.boot import Boot
from service.config import (
    ConfigError,
    EngineConfig,
    SamplingConfig,
    ServerConfig,
    SimulationConfig,
)
from service.engine import client, ranks
from service.engine.protocol import EngineStatus
from service.errors import CommandError
from service.flags import with_knobs
from service.simulation import run as simulation
from service.text import model as text
from service.tracing import Tracer

DEFAULT_MODEL = "smollm2-135m"
MODEL_HELP = "An alias, a Hugging Face id (org/name, org/name/file.gguf), a folder or a .gguf file."

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", envvar="OCTAVO_MODEL", help=MODEL_HELP)
]
ModelOption = Annotated[
    str, typer.Option("--model", metavar="MODEL", envvar="OCTAVO_MODEL", help=MODEL_HELP)
]
JsonOption = Annotated[bool, typer.Option("--json", help="As a JSON object.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Go on from the text itself, without the chat template.")
]

app = typer.Typer(no_args_is_help=True, add_completion=False)


def main() -> None:
    try:
        app(prog_name="octavo")
    except ConfigError as error:
        fail(error, code=2)
    except (ModelError, CommandError, OSError) as error:
        fail(error, code=1)


def fail(error: Exception, *, code: int) -> None:
    logging.shutdown()  # so that this is the last line
    print(f"octavo: {error}", file=sys.stderr)
    sys.exit(code)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"octavo {metadata.version('octavo')}")
        raise typer.Exit


@app.callback()
def octavo(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Serve a language model over OpenAI's HTTP API, or talk to one here."""


@app.command()
@with_knobs
def serve(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    engine: EngineConfig,
    server_config: ServerConfig,
) -> None:
    """Serve MODEL over HTTP, by OpenAI's API."""
    logs.configure(server_config.log_format)
    if engine.tensor_parallel_size > 1 and ranks.is_other(engine, os.environ):
        ranks.serve_rank(hub.resolve(model), engine)
    keys = read_keys(server_config.api_key_file) if server_config.api_key_file else None
    # Before anything is imported, fetched or loaded, which may take minutes:
    with (
        sockets.bind(server_config) as listener,
        open_tracer(server_config.otlp_endpoint) as tracer,
    ):
        boot = Boot(lambda: build(model, engine, server_config, keys, tracer))
        server.run(boot, listener, lambda: status(boot.app), server_config, keys)


@app.command()
@with_knobs
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to answer.")],
    *,
    model: ModelOption = DEFAULT_MODEL,
    raw: RawOption = False,
    sampling: SamplingConfig,
    engine: EngineConfig,
) -> None:
    """Answer PROMPT in the terminal, without a server."""
    with open_session(model, sampling, engine) as session:
        if raw:
            session.complete(prompt)
        else:
            session.reply([{"role": "user", "content": prompt}])


@app.command()
@with_knobs
def chat(
    *,
    model: ModelOption = DEFAULT_MODEL,
    sampling: SamplingConfig,
    engine: EngineConfig,
) -> None:
    """Talk with MODEL in the terminal, without a server."""
    with open_session(model, sampling, engine) as session:
        terminal.chat(session)


@app.command()
def pull(model: ModelArgument = DEFAULT_MODEL) -> None:
    """Fetch MODEL, unless it is here already, and print its path."""
    print(hub.resolve(model))


@app.command("inspect")
def inspect_model(model: ModelArgument = DEFAULT_MODEL, *, json: JsonOption = False) -> None:
    """Say what MODEL is and what it costs to run, without loading it; config.json alone will do."""
    facts = inspection.inspect(hub.resolve(model))
    print(dumps(facts, indent=2) if json else inspection.show(facts))


@app.command()
@with_knobs
def doctor(model: ModelArgument = DEFAULT_MODEL, *, server_config: ServerConfig) -> None:
    """Look at this machine as `octavo serve` with the same options would, and say what to do."""
    physician.run(model, server_config)


@app.command()
@with_knobs
def simulate(*, config: SimulationConfig) -> None:
    """Play a trace of requests on the engine's scheduler and pages, without a model or waiting."""
    simulation.run(config)


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def bench(context: typer.Context) -> None:
    """Measure a server under load, and write a report; or, by `bench step`, the model alone. Their
    options: octavo bench --help, octavo bench step --help."""
    load.run(context.args)


def build(
    model: str,
    engine: EngineConfig,
    config: ServerConfig,
    keys: KeyRing | None,
    tracer: Tracer | None,
) -> "api.App":
    names = config.served_model_name or hub.public_names(model)
    named = replace(config, served_model_name=names)
    fetch = partial(hub.resolve, model)
    load_text = partial(
        text.TextModel.load, use_generation_config=config.generation_config == "auto"
    )
    return api.create_app(client.EngineClient(engine), fetch, load_text, named, keys, tracer)


def open_tracer(endpoint: str) -> AbstractContextManager[Tracer | None]:
    """None takes none of the time that OpenTelemetry's import does."""
    return otel.open_tracer(endpoint) if endpoint else nullcontext()


def status(app: "api.App | None") -> EngineStatus:
    return api.read_status(app) if app else EngineStatus("starting")


def open_session(
    model: str, sampling: SamplingConfig, engine: EngineConfig
) -> "AbstractContextManager[terminal.Session]":
    path = hub.resolve(model)
    engine_client = client.EngineClient(engine)
    return terminal.open_session(engine_client, path, text.TextModel.load, sampling)
