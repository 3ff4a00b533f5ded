"""What a step costs the engine's process besides the model: microseconds, by number of sequences.

    .venv/bin/python -m benchmarks.overhead [--sequences 1,8,32]

Steps the engine core with a runner that computes nothing, all sequences decoding, and encodes each
report as the process does. Fails if the median with the most sequences is BUDGET_MICROSECONDS or
more.
"""

import argparse
import statistics
import sys
import time

import msgspec

from benchmarks.streams import quantile
from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.messages import Request, StepReport
from tests.endless_octavo import EndlessRunner

BUDGET_MICROSECONDS = 1000
PROMPT_LEN = 500
NUM_WARM_UP = 50


def main() -> None:
    arguments = parse_arguments()
    print("sequences    p50 us    p99 us")
    for num in map(int, arguments.sequences.split(",")):
        times = measure(num, num_steps=arguments.steps)
        median = statistics.median(times)
        print(f"{num:9}  {median:8.0f}  {quantile(times, 0.99):8.0f}", flush=True)
    sys.exit(median >= BUDGET_MICROSECONDS)


def parse_arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description="The engine's own time in a step.")
    made.add_argument("--sequences", default="1,8,32", help="how many decode, once for each")
    made.add_argument("--steps", type=int, default=2000)
    return made.parse_args()


def measure(num_sequences: int, *, num_steps: int) -> list[float]:
    """Of each step."""
    engine = decoding_engine(num_sequences)
    encoder = msgspec.msgpack.Encoder()
    times = []
    for _ in range(num_steps + NUM_WARM_UP):
        started = time.perf_counter()
        events = engine.step()
        encoder.encode(StepReport(events, engine.stats, engine.record))
        times.append(1e6 * (time.perf_counter() - started))
        assert len(events) == num_sequences
    return times[NUM_WARM_UP:]


def decoding_engine(num_sequences: int) -> Engine:
    """With all prompts computed."""
    engine = Engine(EndlessRunner(), max_batch_tokens=512, max_sequences=64)
    for number in range(num_sequences):
        request = Request(
            id=f"cmpl-{number:032x}",
            prompt_ids=[number] * PROMPT_LEN,
            max_tokens=EndlessRunner.max_model_len - PROMPT_LEN,
            sampling=SamplingParams(seed=number),
            stop_token_ids=frozenset({2}),
        )
        engine.add(request)
    while len(engine.step()) < num_sequences:
        pass
    return engine


if __name__ == "__main__":
    main()
