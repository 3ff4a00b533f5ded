"""What operators ask: is it alive, is it ready, how busy is it, which version is it.

None of these waits for the engine: they read what it said last.
"""

from importlib.metadata import version

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service.api.description import described, errors_of
from service.api.errors import RETRY_AFTER
from service.api.responses import JsonResponse
from service.api.schema_answers import Liveness, Readiness, Version
from service.api.served import Served
from service.drain import is_draining
from service.metrics import CONTENT_TYPE

HOPELESS = ("failed", "stopped", "stuck")

READINESS = described(Readiness, unready=Readiness, errors=[500])

router = APIRouter(tags=["operations"])


@router.get("/livez", openapi_extra=described(Liveness, unready=Liveness, errors=[500]))
async def get_liveness(served: Served) -> JsonResponse:
    """Fails when only a new process can help: the engine is gone and won't come back, or is
    silent and isn't restarted."""
    phase = served.status.phase
    return JsonResponse({"status": phase}, 503 if phase in HOPELESS else 200)


@router.get("/readyz", openapi_extra=READINESS)
@router.get("/health", openapi_extra=READINESS)
async def get_readiness(request: Request, served: Served) -> JsonResponse:
    """Fails while requests aren't taken, with what is being done about it."""
    if is_draining(request.scope.get("state", {})):
        return JsonResponse({"status": "draining"}, 503, RETRY_AFTER)
    status = served.status
    body = {"status": status.phase, "detail": status.detail, "progress": status.fraction}
    if status.phase == "ready":
        return JsonResponse(body)
    return JsonResponse(body, 503, RETRY_AFTER)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    openapi_extra={"responses": errors_of([500])},
)
async def get_metrics(served: Served) -> Response:
    return Response(served.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/version", openapi_extra=described(Version, errors=[500]))
async def get_version(served: Served) -> JsonResponse:
    info = served.info
    device, attention = (info.device, info.attention) if info else (None, None)
    return JsonResponse({"version": version("octavo"), "device": device, "attention": attention})
