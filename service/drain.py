"""How the server tells protocol and app that it takes no more work: a key of ASGI's lifespan state.

Each request's scope has a copy of that state, taken when the request began: what began before the
drain doesn't learn of it, and goes on.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

KEY = "draining"


def begin_drain(state: MutableMapping[str, Any]) -> None:
    state[KEY] = True


def is_draining(state: Mapping[str, Any]) -> bool:
    return KEY in state
