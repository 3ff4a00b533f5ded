"""`octavo simulate`: from flags to a report."""

from pathlib import Path

import msgspec

from service.config import SimulationConfig
from service.engine.engine import Engine
from service.simulation.machine import NO_LIMIT, SimulatedRunner, VirtualClock, parse_step_cost
from service.simulation.replay import replay
from service.simulation.report import make_report, to_text
from service.simulation.trace import TracedRequest, at_rate, make_trace, read_trace

DEFAULT_REQUESTS = 1000
DEFAULT_RATE = 1.0
DEFAULT_PROMPT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 64


def run(config: SimulationConfig) -> None:
    """Print what serving the trace would have been like."""
    clock = VirtualClock()
    engine = make_engine(config, clock)
    report = make_report(replay(make_requests(config), engine, clock))
    print(msgspec.json.encode(report).decode() if config.json else to_text(report))


def make_engine(config: SimulationConfig, clock: VirtualClock) -> Engine:
    runner = SimulatedRunner(
        clock,
        parse_step_cost(config.step_cost),
        num_pages=config.pages,
        page_size=config.page_size,
        max_model_len=config.max_model_len or NO_LIMIT,
    )
    return Engine(
        runner,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        clock=clock,
    )


def make_requests(config: SimulationConfig) -> list[TracedRequest]:
    if not config.trace:
        return make_trace(
            config.requests or DEFAULT_REQUESTS,
            rate=config.rate or DEFAULT_RATE,
            prompt_len=config.prompt_tokens or DEFAULT_PROMPT_TOKENS,
            output_len=config.output_tokens or DEFAULT_OUTPUT_TOKENS,
            seed=config.seed,
        )
    trace = read_trace(Path(config.trace))[: config.requests or None]
    return at_rate(trace, config.rate) if config.rate else trace
