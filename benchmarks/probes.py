"""How long probes and scrapes take while the server has four times the work that it can take.

    .venv/bin/python -m benchmarks.probes [MODEL] [--seconds 20]

Keeps 4 x --max-sequences streams on it, from a process of their own, and asks each route in turn,
on a new connection as a kubelet does. Prints milliseconds; fails if the 99th percentile of any
route is BUDGET_MS or more.
"""

import argparse
import asyncio
import http.client
import multiprocessing
import sys
import time
from urllib.parse import urlsplit

from benchmarks.streams import Answer, parser, quantile, server, stream, words

BUDGET_MS = 100
OVERLOAD = 4
ROUTES = ("/livez", "/readyz", "/metrics")
PAUSE_SECONDS = 0.02


def main() -> None:
    arguments = parse_arguments()
    with server(arguments) as url:
        load = multiprocessing.Process(target=overload, args=(url, OVERLOAD * arguments.sequences))
        load.start()
        try:
            wait_for_queue(url)
            times = measure(url, arguments.seconds)
        finally:
            load.terminate()
            load.join()
    sys.exit(report(times))


def parse_arguments() -> argparse.Namespace:
    made = parser("Probes of a server under too much load.")
    made.add_argument("--seconds", type=float, default=20)
    made.add_argument("--sequences", type=int, default=64, help="the server's --max-sequences")
    return made.parse_args()


def overload(url: str, num_streams: int) -> None:
    asyncio.run(keep_streams(url, num_streams))


async def keep_streams(url: str, num_streams: int) -> None:
    """Each is followed by another."""

    async def ask_again() -> None:
        while True:
            body = {"prompt": words(50), "max_tokens": 60, "ignore_eos": True}
            await stream(url, "/v1/completions", body, Answer())

    async with asyncio.TaskGroup() as group:
        for _ in range(num_streams):
            group.create_task(ask_again())


def wait_for_queue(url: str) -> None:
    while b"octavo_requests_waiting 0.0" in get(url, "/metrics"):
        time.sleep(0.1)


def measure(url: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds, by route."""
    times: dict[str, list[float]] = {route: [] for route in ROUTES}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for route in ROUTES:
            begun = time.monotonic()
            get(url, route)
            times[route].append((time.monotonic() - begun) * 1000)
            time.sleep(PAUSE_SECONDS)
    return times


def get(url: str, route: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", route)
        response = connection.getresponse()
        assert response.status == 200, response.status
        return response.read()
    finally:
        connection.close()


def report(times: dict[str, list[float]]) -> bool:
    """Whether any is too slow."""
    print("route         n     p50     p99     max   ms")
    for route, values in times.items():
        p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
        print(f"{route:9}  {len(values):4}  {p50:6.1f}  {p99:6.1f}  {max(values):6.1f}")
    return any(quantile(values, 0.99) >= BUDGET_MS for values in times.values())


if __name__ == "__main__":
    main()
