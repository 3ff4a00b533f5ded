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

CONNECTING = {"socket.connect", "socket.getaddrinfo", "urllib.Request"}


def test_no_request_makes_the_server_connect_to_anything() -> None:
    """The hook, which can't be taken off again, is no Python function: with one, threads that begin
    while another does fail under a tracer, before CPython 3.12."""
    client = Client(FakeEngine(say("Hello.")))
    audited: dict[str, tuple[object, ...]] = {}
    sys.addaudithook(audited.setdefault)
    for body in BODIES:
        assert client.chat(**body).status_code in (200, 400, 404)
    assert audited.keys().isdisjoint(CONNECTING)
    assert "socket.__new__" in audited
