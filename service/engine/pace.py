"""How many prompt tokens may go beside decodes in a step, so that no long prompt holds up streams.

Of a step's time, prompts get what decodes take, so that streams go on at half their pace at least.
Where more requests wait for their first token than decode, prompts get as many times that, since
each request has the same right to get on; up to MOST_SHARES, since streams have readers; and as
much as readers don't notice, since large chunks are computed faster. What decodes and a prompt
token take is learnt from the steps themselves, because it depends on the machine, the model, the
batch and, slowly growing, the prompt's length. Is told times; reads no clock.
"""

MOST_SHARES = 8.0
UNNOTICED_SECONDS = 0.05
"""Between tokens: some 20 a second are more than anyone reads."""
LEAST_TOKENS = 4
"""However slow they are: a prompt must get on."""
FIRST_TOKENS = 32
"""While it isn't known what one takes."""
MOST_MIXED_STEPS = 32
"""In a row; then decodes go alone once, so that it stays known what they take."""
NEWEST_SHARE = 0.5
"""Of a measurement in the estimate that it updates."""


class Pace:
    def __init__(self) -> None:
        self._decode_seconds: dict[int, float] = {}  # a step's, by size class of its decodes
        self._token_seconds = 0.0  # of one prompt token
        self._num_mixed_steps = 0

    def num_prompt_tokens(self, num_decodes: int, *, num_prompts: int = 1) -> int:
        """The most that shall go beside this many decodes; 0 where these should go alone.

        num_prompts: requests that wait for their first token.
        """
        if not self._decode_seconds or self._num_mixed_steps >= MOST_MIXED_STEPS:
            return 0
        if not self._token_seconds:
            return FIRST_TOKENS
        spare = self._seconds_alone(num_decodes)
        if num_prompts > num_decodes:
            shares = min(MOST_SHARES, num_prompts / num_decodes)
            spare = max(shares * spare, UNNOTICED_SECONDS)
        return max(LEAST_TOKENS, int(spare / self._token_seconds))

    def observe(self, *, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        if num_prompt_tokens == 0:
            size = num_decodes.bit_length()
            self._decode_seconds[size] = _blend(self._decode_seconds.get(size, 0.0), seconds)
            self._num_mixed_steps = 0
            return
        if num_decodes:
            self._num_mixed_steps += 1
            seconds -= self._seconds_alone(num_decodes)
        if seconds > 0:
            self._token_seconds = _blend(self._token_seconds, seconds / num_prompt_tokens)

    def _seconds_alone(self, num_decodes: int) -> float:
        """Of the nearest size seen, a smaller one if there is one; 0 if none was seen."""
        size = num_decodes.bit_length()
        known = sorted(self._decode_seconds, key=lambda other: (other > size, abs(other - size)))
        return self._decode_seconds[known[0]] if known else 0.0


def _blend(old: float, new: float) -> float:
    return new if not old else (1 - NEWEST_SHARE) * old + NEWEST_SHARE * new
