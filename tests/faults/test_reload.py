"""SIGHUP: keys and certificates that change under a running server, for the better or the worse."""

import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.launched import Launched, launched
from tests.processes import wait_until
from tests.served import SECONDS

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def write_key(file: Path, key: str) -> None:
    file.write_text(f'[[key]]\nname = "a"\nkey = "{key}"\n')


def status_with(server: Launched, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{server.url}/v1/models", headers=headers, timeout=SECONDS).status_code


@pytest.mark.usefixtures("measured")
def test_keys_are_read_again_and_bad_files_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    write_key(file, "sk-old")
    with launched(tmp_path, "--api-key-file", str(file)) as server:
        assert (status_with(server, "sk-old"), status_with(server, "sk-new")) == (200, 401)
        file.write_text("[[key]\nsk-secret")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("not reloaded: --api-key-file")
        assert (status_with(server, "sk-old"), status_with(server, "sk-new")) == (200, 401)
        write_key(file, "sk-new")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status_with(server, "sk-new") == 200)
        assert status_with(server, "sk-old") == 401
        file.unlink()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("No such file")
        assert status_with(server, "sk-new") == 200
        assert "sk-" not in server.log.read_text()


def make_certificate(folder: Path, name: str) -> None:
    """For 127.0.0.1, signed by itself."""
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run([*command, "-nodes", *subject, *files], check=True, capture_output=True)


def trusted(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


@pytest.mark.usefixtures("measured")
@needs_openssl
def test_tls_and_a_renewed_certificate(tmp_path: Path) -> None:
    make_certificate(tmp_path, "old")
    files = (
        "--ssl-certfile",
        str(tmp_path / "cert.pem"),
        "--ssl-keyfile",
        str(tmp_path / "key.pem"),
    )
    with launched(tmp_path, *files) as server:
        assert server.url.startswith("https://127.0.0.1:")
        old = trusted(tmp_path)
        asked = {"prompt": [1], "max_tokens": 3, "ignore_eos": True, "stream": True}
        url = f"{server.url}/v1/completions"
        assert "[DONE]" in httpx.post(url, json=asked, verify=old, timeout=SECONDS).text
        make_certificate(tmp_path, "new")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded")
        assert httpx.get(f"{server.url}/livez", verify=trusted(tmp_path)).status_code == 200
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{server.url}/livez", verify=old)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with launched(tmp_path, "--uds", str(path)) as server:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://octavo") as client:
            answer = client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})
            assert answer.status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert not path.exists()


@pytest.fixture
def _heard() -> Iterator[None]:
    """What is started under nohup would ignore hangups, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_heard")
def test_without_keys_or_certificates_a_hangup_ends_the_server(tmp_path: Path) -> None:
    """As when its terminal is closed."""
    with launched(tmp_path) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.exit_code() == -signal.SIGHUP
