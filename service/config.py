"""Every knob of octavo, frozen and validated once.

The command line makes a flag `--kebab-case` of each field, with OCTAVO_SNAKE_CASE as its variable
in the environment; nothing else reads flags or the environment.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

GIB = 1 << 30
INT64_END = 1 << 63
"""Messages to the engine count in 64 bits."""
SEPARATE = "write names, a comma between"
TOOL_PARSERS = ("auto", "hermes", "llama3_json", "mistral", "mistral_v11", "json")
REASONING_PARSERS = ("auto", "none", "deepseek_r1", "qwen3", "mistral", "seed_oss")
MOST_STOPS = 16
"""Of a request, whatever its server allows."""
MOST_SIMULATED = 10_000_000
"""Of anything that a simulation keeps in memory."""


class ConfigError(ValueError):
    """A knob's value can't be used; the message names the knob, the value and the remedy."""


def knob(default: Any, help: str, *, variables: Sequence[str] = ()) -> Any:
    """A config field with its default, the sentence that `--help` shows for it, and the variables
    of the environment by which others than us know it."""
    return field(default=default, metadata={"help": help, "variables": variables})


def require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"--{name.replace('_', '-')} is {value!r}: {remedy}")


def at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value >= least, name, value, f"take {least} or more")


def between(config: object, least: int, most: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(least <= value <= most, name, value, f"take {least} to {most}")


def split_names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def one_of(config: object, choices: Collection[str], name: str) -> None:
    value = getattr(config, name)
    require(value in choices, name, value, f"take one of {choices}")


def fit_batch(max_sequences: int, max_batch_tokens: int) -> None:
    """Each sequence of a step has a token in it at least."""
    remedy = f"take 1 to {max_batch_tokens}, as --max-batch-tokens allows"
    require(1 <= max_sequences <= max_batch_tokens, "max_sequences", max_sequences, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine process is told: how much it may compute and keep at once."""

    max_batch_tokens: int = knob(640, "Most tokens that one step computes.")
    max_sequences: int = knob(64, "Most requests that are computed in the same step.")
    max_model_len: int = knob(0, "Most tokens of prompt and output; 0: the model's.")
    kv_cache_memory: int = knob(0, "Bytes for the KV cache; 0: a share of free memory.")
    threads: int = knob(0, "Threads that compute the model; 0: as many as there are usable cores.")
    quantization: str = knob(
        "auto",
        "int8, on a GPU also int4 or fp8; none: as the model; auto: int8 where a CPU has it.",
    )
    dtype: str = knob(
        "auto", "float32, bfloat16 or float16; auto: on a GPU halves, on a CPU what is fastest."
    )
    kv_cache_dtype: str = knob(
        "auto", "fp8: keys and values in 8 bits, with a scale for each; auto: as the model."
    )
    gpu_memory_utilization: float = knob(
        0.0, "Share of a GPU's memory to take, cache and all; 0: nine tenths."
    )
    tensor_parallel_size: int = knob(
        1, "Processes that compute the model together, one for each GPU; on CPUs in float32."
    )
    speculative: str = knob(
        "none",
        "prompt-lookup: guess that an answer goes on as the prompt, or it, did before; or none.",
    )
    no_graphs: bool = knob(
        False, "Whether a GPU is told of each kernel, without CUDA graphs: slower, to find faults."
    )
    no_overlap: bool = knob(
        False, "Whether a step waits for the one before it, on a GPU too: slower, to find faults."
    )
    step_timeout: float = knob(120.0, "Seconds of silence after which the engine is restarted.")

    def __post_init__(self) -> None:
        words = ("quantization", "speculative", "dtype", "kv_cache_dtype")
        for name in [field_.name for field_ in fields(self) if field_.name not in words]:
            value = getattr(self, name)
            require(value < INT64_END, name, value, f"take less than {INT64_END}")
        one_of(self, ("auto", "none", "int8", "int4", "fp8"), "quantization")
        one_of(self, ("none", "prompt-lookup"), "speculative")
        one_of(self, ("auto", "float32", "bfloat16", "float16"), "dtype")
        one_of(self, ("auto", "fp8"), "kv_cache_dtype")
        between(self, 0, 1, "gpu_memory_utilization")
        at_least(self, 1, "max_batch_tokens", "step_timeout", "tensor_parallel_size")
        fit_batch(self.max_sequences, self.max_batch_tokens)
        at_least(self, 0, "max_model_len", "kv_cache_memory", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the API process is told: where it listens and what it takes."""

    host: str = knob("127.0.0.1", "Address to listen on.")
    port: int = knob(8000, "Port to listen on; 0 takes any free one.")
    uds: str = knob("", "Unix socket to listen on, in place of host and port.")
    ssl_certfile: str = knob("", "PEM file of the certificate's chain; with one, it is HTTPS.")
    ssl_keyfile: str = knob("", "PEM file of its key, if that isn't in the same file.")
    root_path: str = knob("", "Path under which a proxy shows the server, such as /octavo.")
    allowed_hosts: str = knob("", "Host names to answer to, comma-separated; none: any.")
    cors_origins: str = knob("", "Web origins that may call, comma-separated, or *.")
    keep_alive_timeout: int = knob(75, "Seconds that a connection may idle; more than a proxy's.")
    drain_timeout: float = knob(30.0, "Seconds that running answers have to end after a SIGTERM.")
    served_model_name: str = knob("", "Names that clients may ask for, comma-separated.")
    max_body_bytes: int = knob(4 << 20, "Largest request body taken, in bytes.")
    max_queued_requests: int = knob(1024, "Most requests without a token yet; 0: no limit.")
    max_queued_tokens: int = knob(
        1 << 18,  # 256 for each of the requests: seconds of a GPU's work, minutes of a laptop's
        "Most tokens of their prompts; 0: no limit.",
    )
    api_key_file: str = knob("", "TOML file of API keys; without one, none is asked for.")
    max_stops: int = knob(4, f"Most stop strings of a request, {MOST_STOPS} or fewer.")
    generation_config: str = knob(
        "auto", "auto: sample by default as the model's maker recommends; none: as OpenAI does."
    )
    tool_parser: str = knob(
        "auto", "How the model writes tool calls; auto: as its chat template says."
    )
    reasoning_parser: str = knob(
        "auto", "How it marks what it thinks; auto: as its chat template says."
    )
    tokenizer_info: bool = knob(False, "Whether /tokenizer_info shows the chat template and more.")
    debug_endpoints: bool = knob(False, "Whether /debug/steps shows the engine's last steps.")
    metrics_compat: str = knob("none", "vllm: metrics under vLLM's names, too; or none.")
    log_format: str = knob("auto", "json, pretty, or auto: pretty on a terminal.")
    otlp_endpoint: str = knob(
        "",
        "URL of an OpenTelemetry collector, such as http://localhost:4318; none: no traces.",
        variables=["OTEL_EXPORTER_OTLP_ENDPOINT"],
    )

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, "port", self.port, "take 0 to 65535")
        at_least(self, 1, "max_body_bytes", "keep_alive_timeout")
        at_least(self, 0, "drain_timeout")
        remedy = "begin it with /, and end it with none"
        is_path = not self.root_path or re.fullmatch(r"(/[^/?#\s]+)+", self.root_path)
        require(bool(is_path), "root_path", self.root_path, remedy)
        remedy = "name --ssl-certfile too"
        require(
            bool(self.ssl_certfile) or not self.ssl_keyfile, "ssl_keyfile", self.ssl_keyfile, remedy
        )
        at_least(self, 0, "max_queued_requests", "max_queued_tokens")
        for name in ("served_model_name", "allowed_hosts", "cors_origins"):
            names = getattr(self, name)
            require(not names or all(split_names(names)), name, names, SEPARATE)
        one_of(self, ("auto", "none"), "generation_config")
        one_of(self, ("none", "vllm"), "metrics_compat")
        fits = 1 <= self.max_stops <= MOST_STOPS
        require(fits, "max_stops", self.max_stops, f"take 1 to {MOST_STOPS}")
        one_of(self, TOOL_PARSERS, "tool_parser")
        one_of(self, REASONING_PARSERS, "reasoning_parser")
        one_of(self, ("auto", "json", "pretty"), "log_format")
        is_url = not self.otlp_endpoint or re.fullmatch(r"https?://[^/\s]\S*", self.otlp_endpoint)
        require(bool(is_url), "otlp_endpoint", self.otlp_endpoint, "write http://HOST:PORT")

    @property
    def served_names(self) -> list[str]:
        return split_names(self.served_model_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How `octavo generate` and `octavo chat` draw their answers."""

    temperature: float = knob(0.7, "0 takes the most likely token each time.")
    top_p: float = knob(0.95, "Draw from the most likely tokens that reach this probability.")
    max_tokens: int = knob(1024, "Most tokens of an answer.")
    seed: int | None = knob(None, "Draw the same answer again; random if not given.")

    def __post_init__(self) -> None:
        require(0 <= self.temperature <= 2, "temperature", self.temperature, "take 0 to 2")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "take more than 0, up to 1")
        at_least(self, 1, "max_tokens")
        fits = -INT64_END <= (self.seed or 0) < INT64_END
        require(fits, "seed", self.seed, f"take {-INT64_END} to {INT64_END - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """What `octavo simulate` plays, and on which machine."""

    trace: str = knob("", "File of requests; without one, requests are made up.")
    requests: int = knob(0, "How many to play; 0: all of the trace, or 1000 made-up ones.")
    rate: float = knob(0.0, "Arrivals per second, in the mean; 0: the trace's, or 1.")
    prompt_tokens: int = knob(0, "Mean prompt length of made-up requests; 0: 128.")
    output_tokens: int = knob(0, "Mean output length of made-up requests; 0: 64.")
    seed: int = knob(0, "Make up the same requests again, or others.")
    pages: int = knob(4096, "Pages of the KV cache.")
    page_size: int = knob(16, "Tokens that a page holds.")
    max_model_len: int = knob(0, "Most tokens of prompt and output; 0: what the pages hold.")
    max_batch_tokens: int = knob(640, "Most tokens that one step computes.")
    max_sequences: int = knob(64, "Most requests that are computed in the same step.")
    step_cost: str = knob(
        # As the default model's on a laptop: half of what its steps took one core of an AMD EPYC.
        "base=30ms,prompt=1.2ms,decode=1.1ms,context=6ms",
        "What a step takes: itself, each prompt token, each decode, 1,000 cached tokens read.",
    )
    json: bool = knob(False, "Whether to print JSON.")

    def __post_init__(self) -> None:
        free = ("requests", "prompt_tokens", "output_tokens", "seed", "max_model_len")
        between(self, 0, MOST_SIMULATED, *free)
        between(self, 1, MOST_SIMULATED, "pages", "page_size", "max_batch_tokens")
        remedy = "take 0.001 to 1000000, or 0"
        require(self.rate == 0 or 1e-3 <= self.rate <= 1e6, "rate", self.rate, remedy)
        for name in ("prompt_tokens", "output_tokens", "seed"):
            value = getattr(self, name)
            require(not (self.trace and value), name, value, "leave it out: --trace says it")
        fit_batch(self.max_sequences, self.max_batch_tokens)
