"""What /openapi.json says of routes that read their bodies and write their answers themselves.

Knows the shapes by their models and the statuses by their numbers, and nothing of how they come
about.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.api.caller import DEADLINE_HEADER, MAX_DEADLINE_MS
from service.api.gate import PUBLIC
from service.api.schema import ChatRequest, CompletionRequest
from service.api.schema_answers import (
    Answer,
    Detokenized,
    EmbeddingList,
    ErrorAnswer,
    Liveness,
    Model,
    ModelList,
    Readiness,
    Rendered,
    Steps,
    Tokenized,
    TokenizerInfo,
    Version,
)
from service.api.schema_embeddings import EmbeddingRequest
from service.api.schema_generated import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from service.api.schema_tokens import DetokenizeRequest, TokenizeRequest

BODIES = (ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest)
ANSWERS = (
    *(ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk, EmbeddingList),
    *(Tokenized, Detokenized, Rendered, TokenizerInfo, Model, ModelList),
    *(Liveness, Readiness, Version, Steps, ErrorAnswer),
)
REFS = "#/components/schemas/{model}"
ERRORS: Mapping[int, str] = {
    400: "The request can't be honoured; param says what of it.",
    401: "No key of this server came with it, where it has keys.",
    403: "The key isn't an operator's.",
    404: "There is no such model.",
    408: "The body didn't come in time.",
    413: "The body is larger than the server takes.",
    415: "The body isn't JSON by its content-type.",
    421: "The host isn't a name of this server, where it has names.",
    429: "The queue is full, or the key's quota used up; retry-after says for how long.",
    500: "The server failed on this request; the message has its id and nothing else.",
    503: "Requests can't be taken now: the model loads, the server stops or the engine is down.",
    504: "The deadline passed before there was a first token.",
}
OF_ALL = (401, 421, 500)
OF_BODIES = (*OF_ALL, 400, 404, 408, 413, 415, 429, 503)
OF_GENERATION = (*OF_BODIES, 504)
RETRY_AFTER = {
    "retry-after": {
        "description": "Seconds to wait before another try.",
        "schema": {"type": "integer", "minimum": 1},
        "example": 5,
    }
}
DEADLINE = {
    "name": DEADLINE_HEADER,
    "in": "header",
    "description": "Milliseconds after which an answer is of no use.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_DEADLINE_MS},
    "example": 30_000,
}
KEY = {"type": "http", "scheme": "bearer", "description": "Where the server has keys."}


def described(
    answer: type[Answer],
    *,
    body: type[BaseModel] | None = None,
    chunk: type[Answer] | None = None,
    errors: Collection[int] = OF_ALL,
    unready: type[Answer] | None = None,
    parameters: Collection[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """For a route's `openapi_extra`. chunk: of a stream of it; unready: what 503 brings, if no
    error."""
    content = _json(answer) | (_events(chunk) if chunk is not None else {})
    found = {"description": "As it was asked for.", "content": content}
    responses = {"200": found} | errors_of(errors)
    if unready is not None:
        responses["503"] = {"description": "Not now.", "content": _json(unready)}
    extra: dict[str, Any] = {"responses": responses, "parameters": list(parameters)}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": _json(body)}
    return extra


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFS.format(model=model.__name__)}}}


def _events(chunk: type[Answer]) -> dict[str, Any]:
    """OpenAPI 3.1 has no words for the events of a stream."""
    ref = REFS.format(model=chunk.__name__)
    said = f"With stream: true, events `data: {{…}}` of {ref}; the last is `data: [DONE]`."
    return {"text/event-stream": {"schema": {"type": "string", "description": said}}}


def errors_of(statuses: Collection[int]) -> dict[str, Any]:
    return {str(status): _error(status) for status in sorted(statuses)}


def _error(status: int) -> dict[str, Any]:
    headers = {"headers": RETRY_AFTER} if status in (429, 503) else {}
    return {"description": ERRORS[status], "content": _json(ErrorAnswer), **headers}


def complete(description: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's, with the models that `described` refers to, without its own 422, which is never
    answered, and with who needs a key."""
    _, schemas = models_json_schema(
        [
            *((body, "validation") for body in BODIES),
            *((answer, "serialization") for answer in ANSWERS),
        ],
        ref_template=REFS,
    )
    for path, route in description["paths"].items():
        for operation in route.values():
            operation["responses"].pop("422", None)
            operation["security"] = [{}] if path in PUBLIC else [{}, {"key": []}]
    description["components"] = {"schemas": schemas["$defs"], "securitySchemes": {"key": KEY}}
    return description
