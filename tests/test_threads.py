"""Work in threads that a process may leave behind."""

import asyncio
import threading

import pytest

from service.threads import start_daemon


def test_the_result_comes_from_a_thread_that_keeps_no_process() -> None:
    assert start_daemon(lambda: threading.current_thread().daemon).result(10)


def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        start_daemon(lambda: 1 // 0).result(10)


@pytest.mark.parametrize("fails", [False, True])
def test_it_goes_on_when_nobody_waits(fails: bool) -> None:
    may_end = threading.Event()

    def work() -> str:
        may_end.wait(10)
        if fails:
            raise KeyError
        return "done"

    async def give_up() -> None:
        waiting = asyncio.wrap_future(future)
        waiting.cancel()
        await asyncio.wait({waiting})

    future = start_daemon(work)
    asyncio.run(give_up())
    assert not future.done()
    may_end.set()
    assert isinstance(future.exception(10), KeyError) == fails
    assert fails or future.result() == "done"
