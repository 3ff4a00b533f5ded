"""No client adds a series to the metrics, whatever it sends."""

from hashlib import sha256

from hypothesis import given, settings, strategies as st

from service.auth import KeyRing, Tenant
from tests.fakes import Client

KEYS = KeyRing({sha256(b"sk-a").digest(): Tenant("a", requests_per_minute=5)})
CLIENT = Client(keys=KEYS, metrics_compat="vllm")
NUM_SERIES = CLIENT.get("/metrics").text.count("\n")
TEXT = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=20)


@settings(deadline=None, max_examples=60)
@given(
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions", "/metrics"]) | TEXT,
    method=st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "BREW"]),
    key=st.sampled_from(["sk-a", "sk-b"]) | TEXT,
    name=TEXT,
)
def test_no_series_comes_from_outside(path: str, method: str, key: str, name: str) -> None:
    headers = {"authorization": f"Bearer {key}", "x-request-id": name, "user-agent": name}
    body = {"prompt": name, "model": name, "user": name, "cache_salt": name, "stop": [name]}
    CLIENT.request(method, "/" + path.replace("?", "").lstrip("/"), json=body, headers=headers)
    text = CLIENT.get("/metrics").text
    assert text.count("\n") == NUM_SERIES
