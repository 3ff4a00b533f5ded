"""What operators ask: is it alive, is it ready, how busy is it, which version is it.

None of these waits for the engine: they read what it said last.
"""

from importlib.metadata import version

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.errors import RETRY_AFTER
from service.api.responses import JsonResponse
from service.api.served import Served
from service.drain import is_draining
from service.metrics import CONTENT_TYPE

HOPELESS = ("failed", "stopped", "stuck")

router = APIRouter(tags=["operations"])


@router.get("/livez")
async def get_liveness(served: Served) -> JsonResponse:
    """Fails when only a new process can help: the engine is gone and won't come back, or is
    silent and isn't restarted."""
    phase = served.status.phase
    return JsonResponse({"status": phase}, 503 if phase in HOPELESS else 200)


@router.get("/readyz")
@router.get("/health")
async def get_readiness(request: Request, served: Served) -> JsonResponse:
    """Fails while requests aren't taken, with what is being done about it."""
    if is_draining(request.scope.get("state", {})):
        return JsonResponse({"status": "draining"}, 503, RETRY_AFTER)
    status = served.status
    body = {"status": status.phase, "detail": status.detail, "progress": status.fraction}
    if status.phase == "ready":
        return JsonResponse(body)
    return JsonResponse(body, 503, RETRY_AFTER)


@router.get("/metrics")
async def get_metrics(served: Served) -> Response:
    return Response(served.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/version")
async def get_version() -> JsonResponse:
    return JsonResponse({"version": version("octavo")})
