"""uvicorn's HTTP/1.1 protocol, in which every request learns that its client is gone.

uvicorn tells the newest request of a connection only. Of two that a client had pipelined before it
left, the first would be generated to its end.
"""

from collections import deque

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class HttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._unanswered: deque[RequestResponseCycle] = deque()  # the first is being answered

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
