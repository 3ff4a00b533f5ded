"""GET /debug/steps: the engine's last steps, to read or to look at in a trace viewer.

Chrome's format, which https://ui.perfetto.dev opens: complete events ("X") on a track for each
phase, and counters ("C") of what the engine had after each step. Times are microseconds.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from service.api.description import OF_ALL, described
from service.api.errors import bad_request, shown
from service.api.responses import JsonResponse
from service.api.schema_answers import Steps
from service.api.served import Served
from service.engine.recorder import Step

router = APIRouter(prefix="/debug", tags=["operations"])

EARLY_PHASES = ("report", "intake")
"""A step's record is begun after these, which its time counts too."""
COUNTERS = ("num_running", "num_waiting", "num_free_pages")

FORMAT = {
    "name": "format",
    "in": "query",
    "description": "chrome: for a trace viewer.",
    "schema": {"type": "string", "enum": ["json", "chrome"], "default": "json"},
    "example": "chrome",
}


@router.get(
    "/steps", openapi_extra=described(Steps, errors=(*OF_ALL, 400, 403), parameters=[FORMAT])
)
async def get_steps(request: Request, served: Served) -> JsonResponse:
    steps = list(served.recorder.steps)
    match request.query_params.get("format", "json"):
        case "json":
            return JsonResponse({"steps": [step.as_dict() for step in steps]})
        case "chrome":
            return JsonResponse({"traceEvents": list(trace(steps))})
        case other:
            raise bad_request(f"format is {shown(other)}: take json or chrome.", param="format")


def trace(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    tracks = {"step": 0}
    for step in steps:
        begin = _begin(step)
        yield _span("step", 0, begin, sum(step.record.phase_seconds.values()), args=step.as_dict())
        for phase, seconds in step.record.phase_seconds.items():
            yield _span(phase, tracks.setdefault(phase, len(tracks)), begin, seconds)
            begin += seconds
        yield from _counters(step, begin)
    for name, track in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": track, "args": {"name": name}}


def _begin(step: Step) -> float:
    """Where the first of its phases begins, each of which follows the one before."""
    early = sum(step.record.phase_seconds.get(phase, 0.0) for phase in EARLY_PHASES)
    return step.record.started - early


def _span(
    name: str, track: int, begin: float, seconds: float, *, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    times = {"ts": begin * 1e6, "dur": seconds * 1e6}
    return {"ph": "X", "name": name, "pid": 0, "tid": track, **times, "args": args or {}}


def _counters(step: Step, now: float) -> Iterator[dict[str, Any]]:
    for name in COUNTERS:
        args = {"value": getattr(step.stats, name)}
        yield {"ph": "C", "name": name, "pid": 0, "ts": now * 1e6, "args": args}
