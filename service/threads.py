"""Work off the event loop that the process need not see to its end. Knows no work in particular."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start_daemon(work: Callable[[], T]) -> Future[T]:
    """Unlike asyncio.to_thread's, the thread doesn't keep a process that is told to end."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits for it may give up, the thread goes on
    Thread(target=settle, args=(future, work), daemon=True).start()
    return future


def settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
