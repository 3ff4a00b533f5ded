"""Objects to JSON bytes. What isn't finite has no place in JSON, and would be null."""

from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
