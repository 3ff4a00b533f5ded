"""The way that scripts/gpu_check.py takes on a GPU, on a CPU with tiny sizes."""

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if not find_spec("triton"):
    pytest.skip("there is no Triton", allow_module_level=True)

from model.attention.backend import Place
from model.device import CpuDevice
from model.graphs import graph_sizes
from model.kv_cache import CPU
from model.vocabulary import num_tokens
from model.weights.load import read_parameters
from scripts import gpu_check
from scripts.gpu import offline, server
from scripts.gpu.client import HttpError, Stream
from scripts.gpu.folder import write_folder
from scripts.gpu.loads import DRY, FULL, WAYS, Load, Scale, Way, protocol
from scripts.gpu.report import Measured, Row, quantile, targets
from service.engine.messages import Request
from service.text.tokenizer import Tokenizer

SCRIPT = Path(__file__).parent.parent / "scripts/gpu_check.py"
SHAPE, PLACE = DRY.shapes[0], Place(CPU, torch.float32, torch.float32)
ON, OFF = WAYS[0], WAYS[-1]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """folder: where it makes its temporary ones."""
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def cells(output: str, start: str) -> list[list[str]]:
    """Of the lines that start so."""
    lines = (line for line in output.splitlines() if line.startswith(f"| {start}"))
    return [line.strip("| ").split(" | ") for line in lines]


def servers_of(folder: Path) -> list[int]:
    """Processes that were told of something in there."""
    told = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "cmdline").read_bytes():
                told.append(int(process.name))
        except OSError:
            pass  # it has ended
    return told


def test_a_dry_run_goes_every_way_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("--dry-run", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(": as the reference") == 5
    rows = [row for row in cells(done.stdout, SHAPE.name) if len(row) == 7]
    assert [row[1:4] for row in rows] == [
        [load, *("on" if is_on else "off" for is_on in way)]
        for load, ways in (
            ("protocol, 2", WAYS),
            ("protocol, 2 over HTTP", (ON, OFF)),
            ("decode, 1", (ON, OFF)),
            ("prefill, 3", (ON, OFF)),
        )
        for way in ways
    ]
    assert all(float(row[4].replace(",", "")) > 0 for row in rows)
    over_http = cells(done.stdout, "protocol, 2 over HTTP")
    assert [row[1:3] for row in over_http] == [["on", "on"], ["off", "off"]]
    assert {row[-1] for row in over_http} == {"cpu, reference"}
    assert [row[-1] for row in cells(done.stdout, SHAPE.name) if len(row) == 4] == [
        *["a dry run doesn't tell"] * 3,
        "not measured",
    ]
    assert list(tmp_path.iterdir()) == []
    assert servers_of(tmp_path) == []


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run(folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU that it can use; --dry-run needs none" in done.stderr


def test_the_protocol_is_nano_vllms() -> None:
    load = protocol(FULL)
    assert len(load.requests) == 256
    assert sum(len(request.prompt_ids) for request in load.requests) == 142_827
    assert load.num_tokens == 133_966, "as its README says"
    assert {1, 256} <= set(FULL.num_decodes)


def test_warming_captures_every_graph_and_fills_no_cache() -> None:
    load = protocol(FULL)
    beginnings = {tuple(request.prompt_ids[: offline.PAGE_SIZE]) for request in load.requests}
    warmed = {tuple(request.prompt_ids[: offline.PAGE_SIZE]) for request in load.warming}
    assert beginnings & warmed == set()
    num_decodes = min(request.max_tokens for request in load.warming) - 1
    assert num_decodes >= len(graph_sizes(len(load.requests)))
    assert sum(len(request.prompt_ids) for request in load.warming) >= FULL.max_batch_tokens


def test_a_folder_has_the_models_weights_and_as_many_tokens(tmp_path: Path) -> None:
    model = offline.random_model(SHAPE, PLACE)
    write_folder(tmp_path, SHAPE, model)
    stored: dict[str, torch.Tensor] = {}
    read_parameters(tmp_path, SHAPE.config, stored.__setitem__, report=lambda *news: None)
    ours = model.state_dict()
    assert ours.keys() - stored.keys() == {"head.weight"}, "the embedding's"
    assert all(torch.equal(ours[name], values) for name, values in stored.items())
    assert num_tokens(tmp_path) == SHAPE.config.vocab_size
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == SHAPE.config.vocab_size
    assert len({tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}) == 320
    assert tokenizer.decode([300, 301]) == " sbaa tbaa"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    texts = ["a", "", "b"]  # half a character has no text
    events: list[Any] = [{"choices": [{"text": text}], "usage": None} for text in texts]
    events.append({"choices": [], "usage": {"completion_tokens": 3}})
    sent = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    stream = asyncio.run(read(sent + b"data: [DONE]\n\n", size))
    assert (stream.num_tokens, len(stream.times)) == (3, 2)
    assert stream.done.result() is None


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"data: {}\n\n", "can't be read"),
        (b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', "'no'"),
        (b'data: {"choices": []}\n\n', "status 200"),
    ],
    ids=["another shape", "an error", "cut off"],
)
def test_a_stream_that_is_no_answer_fails(sent: bytes, problem: str) -> None:
    stream = asyncio.run(read(sent, 10_000))
    with pytest.raises(HttpError, match=problem):
        stream.done.result()


async def read(body: bytes, size: int) -> Stream:
    """What comes of this body, which is sent in chunks of a size."""
    stream = Stream()
    stream.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), size):
        part = body[start : start + size]
        stream.data_received(b"%x\r\n%s\r\n" % (len(part), part))
    stream.data_received(b"0\r\n\r\n")
    return stream


def test_the_server_is_told_which_way() -> None:
    told = [server.options(protocol(DRY), way, DRY)[4:] for way in WAYS]
    assert told == [[], ["--no-overlap"], ["--no-graphs"], ["--no-graphs", "--no-overlap"]]


def test_a_server_that_refuses_is_stopped(tmp_path: Path) -> None:
    write_folder(tmp_path, SHAPE, offline.random_model(SHAPE, PLACE))
    too_long = Load("too long", [Request(id="0", prompt_ids=[1] * 5000, max_tokens=1)])
    with pytest.raises(HttpError, match="status 400"):
        server.measure(tmp_path, too_long, ON, DRY)
    assert servers_of(tmp_path) == []


def test_a_server_that_does_not_start_tells_why(tmp_path: Path) -> None:
    with pytest.raises(HttpError, match=r"didn't become ready.*config\.json"):
        server.measure(tmp_path, protocol(DRY), ON, DRY)
    assert servers_of(tmp_path) == []


def test_what_fails_is_a_row_of_its_own_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def fail(folder: Path, load: Load, way: Way, scale: Scale) -> Measured:
        asked.append(way)
        raise HttpError("no")

    monkeypatch.setattr(server, "measure", fail)
    bench = gpu_check.Bench(DRY, CpuDevice(), PLACE, 1e9)
    model = offline.random_model(SHAPE, PLACE)
    rows = list(gpu_check.measure_over_http(SHAPE, model, protocol(DRY), bench))
    assert asked == [ON, OFF]
    assert [row.measured for row in rows] == [None, None]
    assert "**failed**" in str(rows[0])
    assert "Way(graphs=False, overlap=False): HttpError('no')" in capsys.readouterr().err


def test_targets_are_held_against_the_default_way() -> None:
    fast = Measured(100_000, 1.0, 100, host_seconds=0.1)  # 1,000 µs a step
    slow = fast._replace(num_tokens=29_999)
    rows = [
        Row("A", "protocol", OFF, fast),
        Row("A", "protocol", ON, slow),
        Row("A", "protocol over HTTP", ON, slow),
        Row("A", "decode, 1", ON, fast),
        Row("A", "decode, 256", ON, fast),
        Row("B", "decode, 1", ON, None),
    ]
    lines = [target.line(rows, is_dry=False) for target in targets(["A", "B"], "protocol")]
    assert [line.strip("| ").split(" | ")[1:] for line in lines] == [
        ["≥ 30,000 tokens/s", "29,999", "**no**"],
        ["≥ 25,000 tokens/s", "29,999", "yes"],
        ["≤ 300 host µs a step", "1,000", "**no**"],
        ["≤ 1,000 host µs a step", "1,000", "yes"],
        ["≤ 300 host µs a step", "nothing", "not measured"],
        ["≤ 1,000 host µs a step", "nothing", "not measured"],
    ]


def test_what_steps_must_read_is_weights_each_time_and_every_context() -> None:
    load = Load(
        "",
        [
            Request(id="a", prompt_ids=[0] * 3, max_tokens=2),
            Request(id="b", prompt_ids=[0] * 5, max_tokens=1),
        ],
    )
    assert load.num_read == 3 + 4 + 5
    config = SHAPE.config
    a_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    weights = load.num_bytes(config, torch.float32, num_steps=1) - 12 * a_token
    assert load.num_bytes(config, torch.float32, num_steps=3) == 3 * weights + 12 * a_token
    model = offline.random_model(SHAPE, PLACE)
    tied = model.head.weight.numel()
    assert weights == 4 * (sum(p.numel() for p in model.parameters()) - tied)


def test_quantiles_are_interpolated() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2
    assert quantile([1.0, 2.0], 0.75) == 1.75
    assert quantile([7.0], 0.99) == 7
