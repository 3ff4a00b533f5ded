"""Checks grammars off the event loop, a few at once, each once, and for a limited time.

A thread can't be killed: what a grammar may cost is bounded in `service.text.grammar`, and here
only for how long anybody waits. Verdicts are kept in memory, by a hash of what they are about.
"""

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from service.api.errors import unavailable
from service.text.grammar import GrammarError, Part, check_grammar, compose
from service.threads import start_daemon

DEADLINE_SECONDS = 2.0
MAX_AT_ONCE = 2
MAX_VERDICTS = 1024
POLL_SECONDS = 0.005


class GrammarChecks:
    def __init__(self) -> None:
        self._slots = threading.Semaphore(MAX_AT_ONCE)
        self._problems: OrderedDict[bytes, str] = OrderedDict()

    async def find_problem(self, parts: Mapping[str, Part], rules: str) -> str:
        """Why what these make can't be followed; "": it can."""
        try:
            grammar = compose(parts, rules)
        except GrammarError as error:
            return str(error)
        key = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        if key not in self._problems:
            self._problems[key] = await self._judge(grammar)
            if len(self._problems) > MAX_VERDICTS:
                self._problems.popitem(last=False)
        self._problems.move_to_end(key)
        return self._problems[key]

    async def _judge(self, grammar: str) -> str:
        started = False
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not self._slots.acquire(blocking=False):  # noqa: ASYNC110 threads release it
                    await asyncio.sleep(POLL_SECONDS)
                started = True
                return await asyncio.wrap_future(start_daemon(partial(self._check, grammar)))
        except TimeoutError:
            if started:
                return f"it takes more than {DEADLINE_SECONDS:.0f} s to compile; make it smaller"
            raise unavailable(
                "Other grammars are being compiled; try again in a moment.", code="grammars_busy"
            ) from None

    def _check(self, grammar: str) -> str:
        try:
            check_grammar(grammar)
        except GrammarError as error:
            return str(error)
        finally:
            self._slots.release()
        return ""
