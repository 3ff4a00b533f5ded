"""Knobs are validated once, with a message that names knob, value and remedy; all are listed."""

from dataclasses import Field, fields
from typing import Any

import pytest

from service.config import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    ConfigError,
    EngineConfig,
    SamplingConfig,
    ServerConfig,
    SimulationConfig,
)

# A new knob needs a reason in writing, and a line here.
KNOBS = {
    EngineConfig: [
        "max_batch_tokens",
        "max_sequences",
        "max_model_len",
        "kv_cache_memory",
        "threads",
        "quantization",
        "dtype",
        "kv_cache_dtype",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "speculative",
        "no_graphs",
        "no_overlap",
        "step_timeout",
    ],
    ServerConfig: [
        "host",
        "port",
        "uds",
        "ssl_certfile",
        "ssl_keyfile",
        "root_path",
        "allowed_hosts",
        "cors_origins",
        "keep_alive_timeout",
        "drain_timeout",
        "served_model_name",
        "max_body_bytes",
        "max_queued_requests",
        "max_queued_tokens",
        "api_key_file",
        "max_stops",
        "generation_config",
        "tool_parser",
        "reasoning_parser",
        "tokenizer_info",
        "debug_endpoints",
        "metrics_compat",
        "log_format",
        "otlp_endpoint",
    ],
    SamplingConfig: ["temperature", "top_p", "max_tokens", "seed"],
    SimulationConfig: [
        "trace",
        "requests",
        "rate",
        "prompt_tokens",
        "output_tokens",
        "seed",
        "pages",
        "page_size",
        "max_model_len",
        "max_batch_tokens",
        "max_sequences",
        "step_cost",
        "json",
    ],
}


@pytest.mark.parametrize("config", KNOBS)
def test_all_knobs_are_listed(config: type[Any]) -> None:
    assert [field.name for field in fields(config)] == KNOBS[config]


@pytest.mark.parametrize("field", [field for config in KNOBS for field in fields(config)])
def test_every_knob_is_explained_in_a_sentence(field: Field[Any]) -> None:
    assert field.metadata["help"].endswith(".")


@pytest.mark.parametrize("config", KNOBS)
def test_defaults_are_valid(config: type[Any]) -> None:
    assert config() == config()


WEIGHTS = ("auto", "none", "int8", "int4", "fp8")


@pytest.mark.parametrize(
    ("config", "name", "value", "remedy"),
    [
        (EngineConfig, "max_batch_tokens", 0, "take 1 or more"),
        (EngineConfig, "max_sequences", 0, "take 1 to 640, as --max-batch-tokens allows"),
        (EngineConfig, "max_sequences", 641, "take 1 to 640, as --max-batch-tokens allows"),
        (EngineConfig, "max_model_len", -1, "take 0 or more"),
        (EngineConfig, "kv_cache_memory", -1, "take 0 or more"),
        (EngineConfig, "threads", -1, "take 0 or more"),
        *[
            (EngineConfig, field.name, 1 << 63, f"take less than {1 << 63}")
            for field in fields(EngineConfig)
            if isinstance(field.default, int | float)
        ],
        (EngineConfig, "quantization", "int2", f"take one of {WEIGHTS}"),
        (EngineConfig, "dtype", "int4", "take one of ('auto', 'float32', 'bfloat16', 'float16')"),
        (EngineConfig, "kv_cache_dtype", "int8", "take one of ('auto', 'fp8')"),
        (EngineConfig, "gpu_memory_utilization", 1.1, "take 0 to 1"),
        (EngineConfig, "speculative", "draft", "take one of ('none', 'prompt-lookup')"),
        (ServerConfig, "port", -1, "take 0 to 65535"),
        (ServerConfig, "port", 65536, "take 0 to 65535"),
        (ServerConfig, "max_body_bytes", 0, "take 1 or more"),
        (ServerConfig, "max_stops", 0, "take 1 to 16"),
        (ServerConfig, "max_stops", 17, "take 1 to 16"),
        (ServerConfig, "keep_alive_timeout", 0, "take 1 or more"),
        (ServerConfig, "drain_timeout", -1.0, "take 0 or more"),
        (ServerConfig, "drain_timeout", float("nan"), "take 0 or more"),
        (ServerConfig, "root_path", "octavo", "begin it with /, and end it with none"),
        (ServerConfig, "root_path", "/octavo/", "begin it with /, and end it with none"),
        (ServerConfig, "ssl_keyfile", "key.pem", "name --ssl-certfile too"),
        (ServerConfig, "allowed_hosts", "a,", "write names, a comma between"),
        (ServerConfig, "cors_origins", " ", "write names, a comma between"),
        (ServerConfig, "max_queued_requests", -1, "take 0 or more"),
        (ServerConfig, "max_queued_tokens", -1, "take 0 or more"),
        (ServerConfig, "served_model_name", "a,,b", "write names, a comma between"),
        (ServerConfig, "served_model_name", ",", "write names, a comma between"),
        (ServerConfig, "served_model_name", " ", "write names, a comma between"),
        (ServerConfig, "generation_config", "vllm", "take one of ('auto', 'none')"),
        (ServerConfig, "tool_parser", "none", f"take one of {TOOL_PARSERS}"),
        (ServerConfig, "reasoning_parser", "x", f"take one of {REASONING_PARSERS}"),
        (ServerConfig, "log_format", "xml", "take one of ('auto', 'json', 'pretty')"),
        (ServerConfig, "otlp_endpoint", "localhost:4318", "write http://HOST:PORT"),
        (ServerConfig, "otlp_endpoint", "grpc://localhost:4317", "write http://HOST:PORT"),
        (SamplingConfig, "temperature", -0.1, "take 0 to 2"),
        (SamplingConfig, "temperature", float("nan"), "take 0 to 2"),
        (SamplingConfig, "top_p", 0.0, "take more than 0, up to 1"),
        (SamplingConfig, "top_p", 1.1, "take more than 0, up to 1"),
        (SamplingConfig, "max_tokens", 0, "take 1 or more"),
        (SamplingConfig, "seed", 1 << 63, f"take {-1 << 63} to {(1 << 63) - 1}"),
        (SamplingConfig, "seed", (-1 << 63) - 1, f"take {-1 << 63} to {(1 << 63) - 1}"),
        (SimulationConfig, "requests", -1, "take 0 to 10000000"),
        (SimulationConfig, "prompt_tokens", 10_000_001, "take 0 to 10000000"),
        (SimulationConfig, "output_tokens", -1, "take 0 to 10000000"),
        (SimulationConfig, "seed", -1, "take 0 to 10000000"),
        (SimulationConfig, "max_model_len", -1, "take 0 to 10000000"),
        (SimulationConfig, "pages", 0, "take 1 to 10000000"),
        (SimulationConfig, "page_size", 0, "take 1 to 10000000"),
        (SimulationConfig, "max_batch_tokens", 0, "take 1 to 10000000"),
        (SimulationConfig, "max_sequences", 641, "take 1 to 640, as --max-batch-tokens allows"),
        (SimulationConfig, "rate", -1.0, "take 0.001 to 1000000, or 0"),
        (SimulationConfig, "rate", float("nan"), "take 0.001 to 1000000, or 0"),
    ],
)
def test_bad_values_are_named(config: type[Any], name: str, value: object, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**{name: value})
    assert str(error.value) == f"--{name.replace('_', '-')} is {value!r}: {remedy}"


def test_a_batch_has_room_for_its_sequences() -> None:
    assert EngineConfig(max_batch_tokens=8, max_sequences=8).max_sequences == 8
    with pytest.raises(ConfigError, match=r"--max-sequences is 9: take 1 to 8"):
        EngineConfig(max_batch_tokens=8, max_sequences=9)


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens", "seed"])
def test_what_a_trace_says_is_not_asked_for(name: str) -> None:
    values: dict[str, Any] = {name: 3}
    assert getattr(SimulationConfig(**values), name) == 3
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} is 3: leave it out"):
        SimulationConfig(trace="trace.jsonl", **values)


@pytest.mark.parametrize(("text", "names"), [("a", ["a"]), (" a, b/c", ["a", "b/c"])])
def test_served_names_are_written_between_commas(text: str, names: list[str]) -> None:
    assert ServerConfig(served_model_name=text).served_names == names
