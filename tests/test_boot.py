"""What is answered before there is an app to answer, and how the app takes over."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from service.boot import Boot


class SlowBuild:
    """Makes an app once it may; notes what happened to the app."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.calls: list[str] = []
        self._error = error

    def __call__(self) -> ASGIApp:
        self.calls.append("build" if not gc.isenabled() else "build with gc")
        assert self.may_end.wait(60)
        if self._error:
            raise self._error
        paths = [Route(path, self._answer) for path in ("/livez", "/other")]
        return Starlette(routes=paths, lifespan=self._live)

    async def _answer(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"app: {request.url.path}")

    @asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        self.calls.append("start")
        yield
        self.calls.append("stop")


@asynccontextmanager
async def running(boot: Boot[ASGIApp]) -> AsyncIterator[httpx.AsyncClient]:
    """As a server does: the lifespan first, then requests, then its end."""
    received: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    received.put_nowait({"type": "lifespan.startup"})
    living = asyncio.create_task(boot({"type": "lifespan"}, received.get, sent.put))
    async with asyncio.timeout(60):
        assert await sent.get() == {"type": "lifespan.startup.complete"}
        transport = httpx.ASGITransport(boot, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
            yield client
        received.put_nowait({"type": "lifespan.shutdown"})
        assert await sent.get() == {"type": "lifespan.shutdown.complete"}
        await living
        assert sent.empty()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a thread's work
            await asyncio.sleep(0.001)


def test_a_probe_is_answered_before_the_app_is_there() -> None:
    build = SlowBuild()
    boot = Boot(build)
    assert boot.app is None

    async def scenario() -> None:
        async with running(boot) as client:
            answer = await client.get("/livez", headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.json()) == (200, {"status": "starting"})
            assert answer.headers["x-request-id"] == "mine"
            assert boot.app is None
            build.may_end.set()
            await until(lambda: boot.app is not None)
            assert (await client.get("/livez")).text == "app: /livez"

    asyncio.run(scenario())


@pytest.mark.parametrize(("method", "path"), [("GET", "/other"), ("POST", "/livez")])
def test_all_else_waits_for_the_app(method: str, path: str) -> None:
    build = SlowBuild()

    async def scenario() -> None:
        async with running(Boot(build)) as client:
            asked = asyncio.create_task(client.request(method, path))
            left = asyncio.create_task(client.request(method, path))
            await client.get("/livez")
            assert not asked.done()
            left.cancel()
            build.may_end.set()
            assert (await asked).status_code == (200 if method == "GET" else 405)

    asyncio.run(scenario())


def test_the_app_has_its_own_lifespan() -> None:
    build = SlowBuild()

    async def scenario() -> None:
        async with running(Boot(build)):
            build.may_end.set()
            await until(lambda: "start" in build.calls)
            assert "stop" not in build.calls
        assert build.calls == ["build", "start", "stop"]

    asyncio.run(scenario())


def test_a_stop_in_the_meantime_is_in_order_too() -> None:
    build = SlowBuild()

    async def scenario() -> None:
        async with running(Boot(build)):
            await until(lambda: bool(build.calls))
            build.may_end.set()
        assert build.calls == ["build", "start", "stop"]

    asyncio.run(scenario())


def test_garbage_is_collected_again_once_the_app_is_there() -> None:
    build = SlowBuild()

    async def scenario() -> None:
        async with running(Boot(build)):
            await until(lambda: bool(build.calls))
            assert not gc.isenabled()
            build.may_end.set()

    asyncio.run(scenario())
    assert gc.isenabled()


def test_an_app_that_cannot_be_built(caplog: pytest.LogCaptureFixture) -> None:
    build = SlowBuild(KeyError("a secret"))
    boot = Boot(build)

    async def scenario() -> None:
        async with running(boot) as client:
            asked = asyncio.create_task(client.get("/other"))
            await client.get("/livez")
            build.may_end.set()
            for answer in (await asked, await client.get("/livez")):
                assert answer.status_code == 500
                assert answer.json()["error"]["code"] == "internal_error"
                assert "a secret" not in answer.text
            with pytest.raises(KeyError, match="a secret"):
                _ = boot.app

    asyncio.run(scenario())
    assert "unexpected error" in caplog.text
