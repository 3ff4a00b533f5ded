"""POST /v1/embeddings: texts in, a vector for each out.

    create_embeddings() -> a Request per text -> Engine -> vectors of length 1

The model is a decoder that was trained to go on from text: the vector is what its head would get,
of the last token or the mean of all.
"""

import base64
import math
import time
from array import array
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from service.api.body import read_json
from service.api.caller import Calling
from service.api.clock import SequenceClock, TimelyEvents
from service.api.description import DEADLINE, OF_GENERATION, described
from service.api.errors import bad_request
from service.api.generation import checked
from service.api.plan import salt_of
from service.api.prompts import encode_prompts, too_long
from service.api.responses import JsonResponse
from service.api.schema_answers import EmbeddingList
from service.api.schema_embeddings import EmbeddingRequest
from service.api.sequences import counted, let_in, missed_deadline, run_side_by_side
from service.api.served import Ready, Serving, Ticket
from service.api.sse import while_connected
from service.api.traced import trace_embedding
from service.engine.messages import Event, Request
from service.limits import Place
from service.logs import note

router = APIRouter(tags=["generation"])

Vector = Sequence[float]


DESCRIPTION = described(
    EmbeddingList, body=EmbeddingRequest, errors=OF_GENERATION, parameters=[DEADLINE]
)


@router.post("/v1/embeddings", openapi_extra=DESCRIPTION)
async def create_embeddings(request: HttpRequest, serving: Ready, caller: Calling) -> Response:
    asked = await read_json(request, EmbeddingRequest, max_bytes=serving.max_body_bytes)
    ticket = serving.ticket("embd", asked.model, caller)
    prompts = await encode_prompts(
        asked.input, serving, add_special_tokens=asked.add_special_tokens, param="input"
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
        self._clocks = [SequenceClock(ticket.started, serving.metrics) for _ in self._requests]

    def _request(self, index: int, prompt_ids: list[int], asked: EmbeddingRequest) -> Request:
        max_model_len = self._serving.info.max_model_len
        if not prompt_ids:
            raise bad_request(f"input has no tokens at {index}.", param="input")
        if len(prompt_ids) > max_model_len:
            raise too_long(f"the input has {len(prompt_ids)}", max_model_len, param="input")
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
        with let_in(self._serving, self._ticket, lens, n=1) as places:
            try:
                each = zip(self._requests, places, self._clocks, strict=True)
                return await run_side_by_side([self._embed(*one) for one in each])
            finally:
                note(prompt_tokens=sum(lens))
                trace_embedding(self._ticket, self._clocks)

    async def _embed(self, request: Request, place: Place, clock: SequenceClock) -> Vector:
        metrics = self._serving.metrics
        with counted(self._ticket, metrics, lambda: 0) as end:
            event, expired = await self._only_event(request)
            place.leave(time.monotonic(), computed=not expired)
            clock.tick(event)
            end.outcome = "deadline" if expired else "stop"
            if expired:
                raise missed_deadline(metrics)
            metrics.prompt_ended(num_tokens=len(request.prompt_ids))
            return event.embedding

    async def _only_event(self, request: Request) -> tuple[Event, bool]:
        """What the engine says, or that the deadline came before it did."""
        async with self._serving.engine.submit(request) as submitted:
            events = TimelyEvents(submitted, request.id, self._ticket.caller.deadline)
            return checked(await anext(events)), events.expired


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
