"""GET /v1/models: the names under which the one model is served."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from service.api.description import OF_ALL, described
from service.api.errors import model_not_found
from service.api.responses import JsonResponse
from service.api.schema_answers import Model, ModelList
from service.api.served import Served, ServedModel

router = APIRouter(prefix="/v1/models", tags=["models"])

Name = Annotated[
    str, Path(description="One that the model is served by.", examples=["SmolLM2-135M-Instruct"])
]


@router.get("", openapi_extra=described(ModelList))
async def list_models(served: Served) -> JsonResponse:
    data = [_describe(name, served) for name in served.names]
    return JsonResponse({"object": "list", "data": data})


@router.get("/{name:path}", openapi_extra=described(Model, errors=(*OF_ALL, 404)))
async def get_model(name: Name, served: Served) -> JsonResponse:
    if name not in served.names:
        raise model_not_found(name, served.names)
    return JsonResponse(_describe(name, served))


def _describe(name: str, served: ServedModel) -> dict[str, Any]:
    """The length is null until the engine has found out."""
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "octavo",
        "max_model_len": served.info.max_model_len if served.info else None,
    }
