"""How many prompt tokens go beside decodes: learnt from what steps took."""

import pytest

from service.engine.pace import (
    FIRST_TOKENS,
    LEAST_TOKENS,
    MOST_MIXED_STEPS,
    MOST_SHARES,
    UNNOTICED_SECONDS,
    Pace,
)


class Machine:
    """A step takes 10 ms, 1 ms for each decode, and something for each prompt token."""

    def __init__(self, *, token_seconds: float) -> None:
        self.token_seconds = token_seconds
        self.pace = Pace()

    def seconds(self, num_decodes: int, num_prompt_tokens: int) -> float:
        return 0.010 + 0.001 * num_decodes + self.token_seconds * num_prompt_tokens

    def step(self, num_decodes: int, num_prompt_tokens: int) -> None:
        self.pace.observe(
            num_decodes=num_decodes,
            num_prompt_tokens=num_prompt_tokens,
            seconds=self.seconds(num_decodes, num_prompt_tokens),
        )


def test_at_first_decodes_go_alone_then_beside_a_small_chunk() -> None:
    machine = Machine(token_seconds=0.001)
    assert machine.pace.num_prompt_tokens(4) == 0
    machine.step(4, 0)
    assert machine.pace.num_prompt_tokens(4) == FIRST_TOKENS


def test_now_and_then_decodes_go_alone_to_be_measured_again() -> None:
    machine = Machine(token_seconds=0.001)
    machine.step(4, 0)
    chunks = []
    for _ in range(3 * MOST_MIXED_STEPS):
        chunks.append(machine.pace.num_prompt_tokens(4))
        machine.step(4, chunks[-1])
    assert 0 < chunks.count(0) <= 3
    assert chunks.index(0) == MOST_MIXED_STEPS


def test_a_flood_from_a_cold_start_finds_its_pace() -> None:
    machine = Machine(token_seconds=0.0001)
    machine.step(0, 512)
    for num_decodes in range(1, 60):
        machine.step(num_decodes, machine.pace.num_prompt_tokens(num_decodes))
    assert machine.pace.num_prompt_tokens(60) > 5 * FIRST_TOKENS


@pytest.mark.parametrize(
    ("num_prompts", "times"), [(1, 1), (4, 1), (20, 5), (32, 8), (1_000, MOST_SHARES)]
)
def test_each_that_waits_gets_the_time_of_each_that_decodes(num_prompts: int, times: int) -> None:
    """But half of a step at least, and not all that streams have."""
    machine = Machine(token_seconds=0.0005)
    chunk = settled(machine, num_decodes=4, num_prompts=num_prompts)
    alone = machine.seconds(4, 0)
    assert (times - 0.05) * alone < machine.seconds(4, chunk) - alone <= times * alone


def test_where_more_wait_than_decode_chunks_take_what_readers_dont_notice() -> None:
    machine = Machine(token_seconds=0.0005)
    chunk = settled(machine, num_decodes=4, num_prompts=5)
    assert chunk == pytest.approx(UNNOTICED_SECONDS / 0.0005, abs=1)


def settled(machine: Machine, *, num_decodes: int, num_prompts: int) -> int:
    """How many prompt tokens go in a step once times are known."""
    machine.step(num_decodes, 0)
    for _ in range(10):
        chunk = machine.pace.num_prompt_tokens(num_decodes, num_prompts=num_prompts)
        machine.step(num_decodes, chunk)
    return chunk


def test_it_follows_a_prompt_whose_tokens_cost_more_the_longer_it_gets() -> None:
    machine = Machine(token_seconds=0.0002)
    machine.step(8, 0)
    for _ in range(50):
        chunk = machine.pace.num_prompt_tokens(8)
        assert machine.seconds(8, chunk) <= 1.3 * 2 * machine.seconds(8, 0)
        machine.step(8, chunk)
        machine.token_seconds *= 1.05


def test_a_prompt_always_gets_on() -> None:
    machine = Machine(token_seconds=10.0)
    machine.step(4, 0)
    machine.step(4, 100)
    assert machine.pace.num_prompt_tokens(4) == LEAST_TOKENS


def test_steps_of_prompts_alone_tell_what_a_token_costs() -> None:
    machine = Machine(token_seconds=0.0001)
    machine.step(0, 500)
    machine.step(4, 0)
    assert machine.pace.num_prompt_tokens(4) > FIRST_TOKENS


def test_of_sizes_never_seen_the_nearest_smaller_one_stands_in() -> None:
    machine = Machine(token_seconds=0.0005)
    machine.step(0, 500)
    machine.step(2, 0)
    machine.step(32, 0)
    at_2, at_16, at_32 = (machine.pace.num_prompt_tokens(n) for n in (2, 16, 32))
    assert at_2 == at_16 < at_32
    assert machine.pace.num_prompt_tokens(1) == at_2


def test_a_mixed_step_that_took_no_longer_than_its_decodes_teaches_nothing() -> None:
    machine = Machine(token_seconds=0.0005)
    machine.step(0, 500)
    machine.step(4, 0)
    before = machine.pace.num_prompt_tokens(4)
    machine.pace.observe(num_decodes=4, num_prompt_tokens=16, seconds=0.001)
    assert machine.pace.num_prompt_tokens(4) == before
