"""POST /v1/embeddings: texts in, a vector for each out.

    create_embeddings() -> a Request per text -> Engine -> vectors of length 1

The model is a decoder that was trained to go on from text: the vector is what its head would get,
of the last token or the mean of all.
"""

import asyncio
import base64
import math
import time
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from model.batch import Pooling
from service.api.body import read_json, request_body
from service.api.caller import Calling
from service.api.clock import TimelyEvents
from service.api.errors import bad_request, deadline_exceeded
from service.api.generation import checked
from service.api.plan import salt_of
from service.api.prompts import encode_prompts, too_long
from service.api.responses import JsonResponse
from service.api.schema import Prompts
from service.api.schema_base import Object
from service.api.served import Ready, Serving, Ticket
from service.api.sse import while_connected
from service.engine.messages import Request
from service.limits import Place
from service.logs import note
from service.metrics import Outcome

router = APIRouter(tags=["generation"])

Vector = Sequence[float]


class EmbeddingRequest(Object):
    input: Annotated[Prompts, Field(description="texts, or token ids", examples=["Hello"])]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[
        int | None, Field(ge=1, description="keep the first so many numbers; all by default")
    ] = None
    pooling: Annotated[
        Pooling, Field(description="the last token's vector, or the mean of all tokens'")
    ] = "last"
    add_special_tokens: bool = True


@router.post("/v1/embeddings", openapi_extra=request_body(EmbeddingRequest))
async def create_embeddings(request: HttpRequest, serving: Ready, caller: Calling) -> Response:
    asked = await read_json(request, EmbeddingRequest, max_bytes=serving.max_body_bytes)
    ticket = serving.ticket("embd", asked.model, caller)
    prompts = await encode_prompts(
        asked.input, serving, add_special_tokens=asked.add_special_tokens
    )
    embedding = Embedding(ticket, asked, prompts, serving)
    vectors = await while_connected(embedding.run(), request.receive)
    num_tokens = sum(map(len, prompts))
    return JsonResponse(
        {
            "object": "list",
            "data": [_spell(index, vector, asked) for index, vector in enumerate(vectors)],
            "model": ticket.model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
    )


class Embedding:
    """One call: admitted, computed or cancelled all together."""

    def __init__(
        self,
        ticket: Ticket,
        asked: EmbeddingRequest,
        prompts: Sequence[list[int]],
        serving: Serving,
    ) -> None:
        self._ticket = ticket
        self._serving = serving
        self._requests = [
            self._request(index, prompt_ids, asked) for index, prompt_ids in enumerate(prompts)
        ]

    def _request(self, index: int, prompt_ids: list[int], asked: EmbeddingRequest) -> Request:
        max_model_len = self._serving.info.max_model_len
        if not prompt_ids:
            raise bad_request(f"input has no tokens at {index}.", param="input")
        if len(prompt_ids) > max_model_len:
            raise too_long(f"the input has {len(prompt_ids)}", max_model_len)
        tenant = self._ticket.caller.tenant
        return Request(
            id=f"{self._ticket.id}-{index}",
            prompt_ids=prompt_ids,
            max_tokens=0,
            pooling=asked.pooling,
            cache_salt=salt_of(tenant, None),
            tenant=tenant.name,
            weight=tenant.weight,
        )

    async def run(self) -> list[Vector]:
        lens = [len(request.prompt_ids) for request in self._requests]
        places = self._serving.admission.admit(lens, n=1, now=time.monotonic())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._embed(request, place))
                    for request, place in zip(self._requests, places, strict=True)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for place in places:
                place.leave(time.monotonic(), computed=False)
            note(prompt_tokens=sum(lens))
        return [task.result() for task in tasks]

    async def _embed(self, request: Request, place: Place) -> Vector:
        outcome: Outcome = "error"
        try:
            async with self._serving.engine.submit(request) as submitted:
                events = TimelyEvents(submitted, request.id, self._ticket.caller.deadline)
                async for event in events:  # there is but one
                    vector = checked(event).embedding
                    break
            place.leave(time.monotonic(), computed=not events.expired)
            if events.expired:  # pragma: no cover - tested, but tracing ends with a timeout
                outcome = "deadline"
                self._serving.metrics.call_rejected("deadline")
                raise deadline_exceeded()
            outcome = "stop"
            self._serving.metrics.prompt_ended(num_tokens=len(request.prompt_ids))
            return vector
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds = time.monotonic() - self._ticket.started
            self._serving.metrics.request_ended(outcome, seconds=seconds, num_tokens=0)


def _spell(index: int, vector: Vector, asked: EmbeddingRequest) -> dict[str, Any]:
    numbers = array("f", unit(vector, asked.dimensions))
    spelled: object = numbers.tolist()
    if asked.encoding_format == "base64":
        spelled = base64.b64encode(numbers.tobytes()).decode()  # little-endian, as all we run on
    return {"object": "embedding", "index": index, "embedding": spelled}


def unit(vector: Vector, dimensions: int | None) -> list[float]:
    """Its first numbers, scaled to length 1."""
    if dimensions is not None and dimensions > len(vector):
        raise bad_request(
            f"dimensions is {dimensions}, but this model's vectors have {len(vector)}: ask for no "
            "more.",
            param="dimensions",
        )
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    return [number / length for number in kept] if length else list(kept)
