"""Command-line flags made from config dataclasses, so that a knob is written down once.

A field `kv_cache_memory` becomes `--kv-cache-memory`, with OCTAVO_KV_CACHE_MEMORY as its variable
in the environment. What a knob means, and which values it takes, is the dataclass's business.
"""

import re
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from decimal import Decimal
from inspect import Parameter, signature
from typing import Annotated, Any, cast

import typer

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
MAX_SIZE = (1 << 63) - 1  # messages to the engine count in 64 bits
SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMG]I?|)B?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """A number of bytes, written as 500000000, 500MB or 2GiB."""
    match = SIZE.fullmatch(str(text))
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size: write bytes, or a number with MB, GiB, …")
    size = Decimal(match[1]) * UNITS[match[2].upper()]
    if size > MAX_SIZE:
        raise typer.BadParameter(f"{text!r} is too large a size: take less than 8589934592GiB")
    return int(size)


def with_knobs(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters typed as config dataclasses are flags, one per field."""
    original = signature(command).parameters.values()
    configs: dict[str, type[Any]] = {
        p.name: p.annotation
        for p in original
        if isinstance(p.annotation, type) and is_dataclass(p.annotation)
    }

    def run(**values: Any) -> None:
        for name, config in configs.items():
            values[name] = config(**{f.name: values.pop(f.name) for f in fields(config)})
        command(**values)

    parameters = [p for p in original if p.name not in configs]
    for config in configs.values():
        panel = config.__name__.removesuffix("Config")
        parameters += [flag(field, panel=panel) for field in fields(config)]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def flag(field: Field[Any], *, panel: str) -> Parameter:
    """The parameter from which typer makes a field's flag."""
    option = typer.Option(
        f"--{field.name.replace('_', '-')}",
        envvar=[f"OCTAVO_{field.name.upper()}", *field.metadata["variables"]],
        help=field.metadata["help"],
        rich_help_panel=panel,
        parser=parse_size if is_size(field) else None,
        metavar="SIZE" if is_size(field) else None,
    )
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[cast(type, field.type), option],
    )


def is_size(field: Field[Any]) -> bool:
    return field.name.endswith(("_bytes", "_memory"))
