"""Work in threads that a process may leave behind."""

import asyncio
import threading

import pytest

from service.threads import in_daemon_thread


def test_the_result_comes_from_a_thread_that_keeps_no_process() -> None:
    assert asyncio.run(in_daemon_thread(lambda: threading.current_thread().daemon))


def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 // 0))


@pytest.mark.parametrize("fails", [False, True])
def test_who_gives_up_waiting_hears_no_more(fails: bool) -> None:
    """Nor does anybody else: what a thread raises is a warning, and an error in tests."""
    may_end = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.current_thread())
        may_end.wait(10)
        assert not fails

    async def scenario() -> None:
        waiting = asyncio.create_task(in_daemon_thread(work))
        while not threads:  # noqa: ASYNC110 - a thread's work
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    asyncio.run(scenario())
    may_end.set()
    threads[0].join()
