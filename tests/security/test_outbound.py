"""No request has the server connect to anything, whatever it names."""

import sys
from typing import Any

from tests.fakes import Client, FakeEngine, say

URL = "http://127.0.0.1:9/model.json"
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": URL}}]}]}
    for kind in ("image_url", "audio_url", "video_url", "input_audio", "file")
]
SCHEMA = {"$ref": URL, "$schema": URL, "$id": URL}
BODIES: list[dict[str, Any]] = [
    *CHATS,
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"structured_outputs": {"json": SCHEMA}},
    {"model": URL},
    {"user": URL, "cache_salt": URL, "metadata": {"webhook": URL}},
    {"chat_template": f"{{% include '{URL}' %}}"},
    {"tools": [{"type": "function", "function": {"name": "a", "parameters": SCHEMA}}]},
]

connections: list[object] = []


def listen(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        connections.append(arguments)


def test_no_request_makes_the_server_connect_to_anything() -> None:
    client = Client(FakeEngine(say("Hello.")))
    sys.addaudithook(listen)
    for body in BODIES:
        assert client.chat(**body).status_code in (200, 400, 404)
    assert connections == []
