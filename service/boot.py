"""Answers the liveness probe while the app is still being imported.

An ASGI app in front of another that is slow to make. Of routes it knows /livez alone: all other
requests wait for the app, which is a matter of a moment.
"""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.context import RequestContext
from service.api.responses import JsonResponse
from service.threads import start_daemon

AppT = TypeVar("AppT", bound=ASGIApp)


class Boot(Generic[AppT]):
    """Stands for the app that `build` makes, in a thread, from the server's start on."""

    def __init__(self, build: Callable[[], AppT]) -> None:
        self._build = build
        self._built: Future[AppT] | None = None
        self._alive = RequestContext(JsonResponse({"status": "starting"}))

    @property
    def app(self) -> AppT | None:
        """None until it is there. Raises what `build` raised."""
        return self._built.result() if self._built and self._built.done() else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        assert self._built is not None, "servers begin with the lifespan"
        if is_probe(scope) and not self._built.done():
            await self._alive(scope, receive, send)
        else:
            await (await wait_for(self._built))(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say at once that it has started up; then go through the same with the app."""
        messages = [await receive()]
        self._built = start_daemon(partial(uncollected, self._build))
        await send({"type": "lifespan.startup.complete"})

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        async def send_rest(message: Message) -> None:
            if message["type"] != "lifespan.startup.complete":
                await send(message)

        await (await wait_for(self._built))(scope, receive_again, send_rest)


async def wait_for(built: Future[AppT]) -> ASGIApp:
    """The app; if it can't be built, what stands for it until the server has ended."""
    try:
        return await asyncio.wrap_future(built)
    except Exception as error:
        return RequestContext(Unbuilt(error))


class Unbuilt:
    """Fails every request, for the one reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            raise self._error
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})


def is_probe(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and scope["path"] == "/livez"


def uncollected(build: Callable[[], AppT]) -> AppT:
    """Nothing that imports make is garbage; see main.py."""
    gc.disable()
    try:
        return build()
    finally:
        gc.freeze()
        gc.enable()
