"""What a traced call tells its trace, once its sequences have ended. Nothing in it is a client's
text."""

from collections.abc import Sequence
from typing import Any

from service.api.clock import SequenceClock
from service.api.schema import AnyRequest
from service.api.served import Ticket
from service.engine.messages import Request
from service.tracing import current_trace


def trace_generation(
    ticket: Ticket, asked: AnyRequest, request: Request, clocks: Sequence[SequenceClock]
) -> None:
    """request: any of them, as all are drawn alike; a clock for each."""
    how = request.sampling
    seed = {} if asked.seed is None else {"seed": asked.seed}
    top_k = {"top_k": how.top_k} if how.top_k else {}
    _tell(
        ticket,
        clocks,
        n=asked.n,
        stream=asked.stream,
        max_tokens=request.max_tokens,
        temperature=how.temperature,
        top_p=how.top_p,
        frequency_penalty=how.frequency_penalty,
        presence_penalty=how.presence_penalty,
        **seed,
        **top_k,
    )


def trace_embedding(ticket: Ticket, clocks: Sequence[SequenceClock]) -> None:
    _tell(ticket, clocks)


def _tell(ticket: Ticket, clocks: Sequence[SequenceClock], **asked: Any) -> None:
    trace = current_trace()
    if trace is not None:
        asked |= {"id": ticket.id, "model": ticket.model}
        trace.tell(asked, {index: clock.stages for index, clock in enumerate(clocks)})
