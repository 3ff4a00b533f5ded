"""`make bench-peers`, without any peer: its model files, what it refuses, what it measures."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import PreTrainedModel

from benchmarks.peers import environment, measure, models, table
from benchmarks.peers.__main__ import Bench
from benchmarks.peers.errors import PeerError
from benchmarks.peers.measure import Cell, Run, Workload
from benchmarks.peers.peer import Launch, Peer, Setup
from benchmarks.peers.table import COLUMNS, GIB, OURS, Result
from model.config import load_config
from service.text.tokenizer import Tokenizer
from tests.fakes_text import small_metadata
from tests.families import KINDS
from tests.processes import children, wait_until
from tests.test_gguf_families import FILES, PLAIN, numbers, write

SERVER = """
import sys
from tests.fake_openai import FakeOpenAI, obedient
FakeOpenAI(obedient, 200, int(sys.argv[-1])).serve_forever()
"""
FAKE = Launch((sys.executable, "-c", SERVER), "fake")
ENDS = Launch((sys.executable, "-c", "print('one'); print('no memory')"), "fake")
SMALL = (Workload("A", 4, 2, (1, 3), requests=2),)


@pytest.fixture
def theirs(tmp_path: Path) -> PreTrainedModel:
    """A small Llama, which is in model.gguf as well."""
    tokenizer = small_metadata()
    size = len(tokenizer["tokenizer.ggml.tokens"])
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": size}
    model = KINDS["Llama"].make(**sizes, rope_parameters=PLAIN)
    write(tmp_path / "model.gguf", FILES["llama"], model, tokenizer)
    return model


@pytest.fixture
def folder(theirs: PreTrainedModel, tmp_path: Path) -> Path:
    return models.hugging_face(tmp_path / "model.gguf", tmp_path / "plain")


def test_the_folder_is_the_model_that_the_file_came_from(
    theirs: PreTrainedModel, folder: Path, tmp_path: Path
) -> None:
    ours = type(theirs).from_pretrained(folder)
    for name, values in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], values), name
    gguf = tmp_path / "model.gguf"
    assert numbers(load_config(folder)) == numbers(load_config(gguf))
    text = "abc é"
    assert Tokenizer.load(folder).encode(text) == Tokenizer.load(gguf).encode(text)
    assert Tokenizer.load(folder).eos_ids == Tokenizer.load(gguf).eos_ids


def test_an_endless_model_has_no_end_and_the_same_weights(folder: Path, tmp_path: Path) -> None:
    endless = models.endless(folder, tmp_path / "endless")
    assert {file.name for file in endless.iterdir()} == {file.name for file in folder.iterdir()}
    assert (endless / models.WEIGHTS).samefile(folder / models.WEIGHTS)
    for name in ("config.json", "generation_config.json"):
        before, after = (json.loads((path / name).read_text()) for path in (folder, endless))
        assert before.pop("eos_token_id") == 260
        assert after == before


def test_w8a8_rounds_the_layers_weights_by_output(folder: Path, tmp_path: Path) -> None:
    rounded = models.w8a8(folder, tmp_path / "w8a8")
    plain, stored = (load_file(path / models.WEIGHTS) for path in (folder, rounded))
    for name, values in plain.items():
        if "_proj." not in name:
            assert torch.equal(stored.pop(name), values)
            continue
        weight, scale = stored.pop(name), stored.pop(f"{name}_scale")
        assert weight.dtype == torch.int8
        assert (weight.abs().amax(dim=1) == 127).all()
        assert ((weight * scale - values).abs() <= scale / 2 * 1.001).all()
    assert stored == {}
    config = json.loads((rounded / "config.json").read_text())
    assert config.pop("quantization_config") == models.W8A8
    assert config == json.loads((folder / "config.json").read_text())


def test_q4_0_keeps_all_but_the_matrices_values(theirs: PreTrainedModel, tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    before, after = GGUFReader(gguf), GGUFReader(models.q4_0(gguf, tmp_path / "q4_0"))
    contents = [
        {name: field.contents() for name, field in file.fields.items() if "GGUF." not in name}
        for file in (before, after)
    ]
    assert contents[1].pop("general.file_type") == models.FILE_TYPE_Q4_0
    assert contents[1] == contents[0]
    for one, other in zip(before.tensors, after.tensors, strict=True):
        assert one.name == other.name
        assert (other.shape == one.shape).all()
        values = dequantize(other.data, other.tensor_type)
        is_matrix = len(one.shape) == 2
        assert (other.tensor_type == GGMLQuantizationType.Q4_0) == is_matrix
        assert abs(values - one.data).max() <= (abs(one.data).max() / 7 if is_matrix else 0)


def test_a_folder_cut_short_is_written_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise PeerError("no space")

    def succeed(folder: Path) -> None:
        (folder / "whole").touch()

    with pytest.raises(PeerError):
        models.whole(tmp_path / "model", fail)
    done = models.whole(tmp_path / "model", succeed)
    assert [file.name for file in done.iterdir()] == ["whole"]
    assert models.whole(done, fail) == done


class Pip:
    """Takes the place of processes: remembers their arguments, and says what would be installed."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], **variables: str) -> None:
        self.commands.append(command)
        if "--report" in command:
            items = [{"metadata": {"name": name}} for name in self.packages]
            report = Path(command[command.index("--report") + 1])
            report.parent.mkdir(exist_ok=True)
            report.write_text(json.dumps({"install": items}))


def test_an_environment_is_filled_once_and_anew_for_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, finished = Pip("torch", "triton"), list[Path]()
    monkeypatch.setattr(environment, "run", pip)
    for requirements in (["a"], ["a"], ["a", "b"]):
        environment.install(tmp_path, requirements, finish=finished.append)
    last = environment.BUILT_FOR_CUDA[-1]
    once = [str(tmp_path), "a", "a", last]
    assert [command[-1] for command in pip.commands] == [*once, str(tmp_path), "b", "b", last]
    assert ["--dry-run" in command for command in pip.commands] == [False, True, False, False] * 2
    assert finished == [tmp_path] * 2


def test_nothing_is_installed_where_a_package_is_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip("torch", "nvidia-cublas", "cuda-bindings")
    monkeypatch.setattr(environment, "run", pip)
    for _ in range(2):
        with pytest.raises(PeerError, match="install nvidia-cublas, cuda-bindings, which"):
            environment.install(tmp_path, ["a"])
    assert len(pip.commands) == 4
    assert "--dry-run" in pip.commands[-1]


def test_a_command_that_fails_is_named() -> None:
    environment.run(["true"])
    with pytest.raises(PeerError, match="exit code 1 of false --now"):
        environment.run(["false", "--now"])


@pytest.mark.slow
def test_a_server_is_started_asked_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "WORKLOADS", SMALL)
    found = measure.measure(FAKE, seed=1, seconds=60, out=tmp_path)
    assert set(found.cells) == {"A c1", "A c3"}
    for cell in found.cells.values():
        assert cell.tokens_per_second > 0 < cell.first_token_p50
        assert (cell.prompt_tokens, cell.output_tokens) == (5, 2)
    assert found.ready_seconds > 0
    assert found.peak_bytes > 10 << 20  # a Python at the least


def test_memory_is_that_of_all_descendants() -> None:
    command = ("sh", "-c", "sleep 600 & echo; wait")
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        (child,) = children(shell.pid)
        assert measure.resident_bytes(shell.pid) > measure.resident_bytes(child) > 0
        os.killpg(shell.pid, signal.SIGKILL)
    wait_until(lambda: measure.resident_bytes(child) == 0)


def run(tokens_per_second: float, *, first_token: float = 0.1) -> Run:
    cell = Cell(
        tokens_per_second=tokens_per_second,
        first_token_p50=first_token,
        prompt_tokens=64,
        output_tokens=64,
    )
    cells = {load.cell(users): cell for load in measure.WORKLOADS for users in load.users}
    return Run(ready_seconds=2.0, peak_bytes=GIB, cells=cells)


RESULTS = {
    OURS: Result(title="octavo", runs=[run(300), run(200), run(900)]),
    "slow": Result(title="slow", runs=[run(50, first_token=0.05)]),
    "quick": Result(title="quick", runs=[run(150)], problem="it | fell\nover"),
    "none": Result(title="none", problem="can't be had"),
}


def test_the_table_has_medians_and_ratios_to_the_best_peer() -> None:
    lines = table.to_markdown(RESULTS).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in rows} == {1 + len(COLUMNS)}
    assert rows[0][:3] == ["server", "A c1", "A c4"]
    assert rows[0][-3:] == ["B c1 first token, ms", "ready, s", "peak RSS, GiB"]
    ours, slow, quick, none, ratio = rows[2:]
    assert ours[:2] + ours[-3:] == ["octavo", "300", "100", "2.0", "1.00"]
    assert slow[:2] + slow[-3:] == ["slow", "50", "50", "2.0", "1.00"]
    assert quick[:2] == ["quick: it / fell over", "150"]
    assert none == ["none: can't be had", *["-"] * len(COLUMNS)]
    assert ratio[:2] + ratio[-3:] == ["octavo / best peer", "2.00", "2.00", "1.00", "1.00"]


def test_without_peers_there_are_no_ratios() -> None:
    alone = {name: RESULTS[name] for name in (OURS, "none")}
    assert table.ratios(alone) == []
    assert table.ratios({name: RESULTS[name] for name in ("slow", "none")}) == []


def test_the_json_has_all_that_was_measured() -> None:
    found = json.loads(table.to_json(RESULTS, {"cores": "2"}))
    assert found["machine"] == {"cores": "2"}
    assert found["medians"]["slow"]["A c1"] == 50
    assert found["ratios"]["A c1"] == 2
    assert [
        each["cells"]["A c1"]["tokens_per_second"] for each in found["results"][OURS]["runs"]
    ] == [
        300,
        200,
        900,
    ]


def test_one_that_fails_has_a_row_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(setup: Setup) -> Launch:
        raise PeerError("no such package")

    monkeypatch.setattr(measure, "WORKLOADS", ())
    chosen = {
        "fake": Peer("fake", lambda setup: FAKE),
        "none": Peer("none", refuse),
        "ends": Peer("ends", lambda setup: ENDS),
    }
    bench = Bench(tmp_path, {name: Result(title=name) for name in chosen})
    bench.prepare(chosen, Setup(tmp_path, tmp_path / "model.gguf", 2))
    monkeypatch.setattr(table, "COLUMNS", COLUMNS[-2:])
    for number in (1, 2):
        bench.run(number, seconds=1)
    assert len(bench.results["fake"].runs) == 2
    assert [bench.results[name].runs for name in ("none", "ends")] == [[], []]
    assert bench.results["none"].problem == "no such package"
    assert bench.results["ends"].problem.endswith("server.log: no memory")
    saved = json.loads((tmp_path / "peers.json").read_text())
    assert len(saved["results"]["fake"]["runs"]) == 2
