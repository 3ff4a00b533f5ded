"""The native model as a whole: against PyTorch's with the same weights, and against itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from model.batch import Batch, Row, SamplingParams
from model.config import ModelConfig
from model.errors import ModelError
from model.footprint import native_page_bytes
from model.kv_cache import KVCache
from model.native.cache import NativeCache
from model.native.library import INPUT_GROUP, PAGE_SIZE, PHASES, TILED, WEIGHT_GROUP, builds
from model.native.memory import BLOCK_BYTES, Room
from model.native.transformer import NativeTransformer, is_native
from model.packing import pack
from model.runner import load_runner
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from model.weights.names import num_parameters
from tests.tiny_llama import CONFIG, random_transformer, transformers_llama

WIDE = replace(CONFIG, hidden_size=192, intermediate_size=320, head_dim=32, tied_head=False)
NUM_PAGES = 40
GREEDY = SamplingParams(temperature=0, num_logprobs=2)


def native(model: Transformer, build: str, *, threads: int = 1) -> NativeTransformer:
    ours = NativeTransformer(model.config, build=build, threads=threads)
    for name, values in model.named_parameters():
        if not (model.config.tied_head and name == "head.weight"):
            ours.set(name, values.detach())
    return ours


def in_steps(x: Tensor, size: int, *, num_steps: int = 127, coarse: bool = False) -> Tensor:
    """Each group rounded to steps of its largest magnitude; a coarse step is a bfloat16."""
    width = x.shape[-1]
    groups = nn.functional.pad(x, (0, -width % size)).reshape(*x.shape[:-1], -1, size)
    step = groups.abs().amax(-1, keepdim=True) / num_steps
    if coarse:
        step = ((step.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    rounded = (groups / step.clamp(min=1e-30)).round() * step
    return rounded.flatten(-2)[..., :width]


class Emulated(nn.Module):
    """A linear layer that rounds what it multiplies as the native product does."""

    def __init__(self, linear: nn.Linear, build: str) -> None:
        super().__init__()
        self.is_tiled = build in TILED
        size = linear.in_features if self.is_tiled else WEIGHT_GROUP
        self.weight = in_steps(linear.weight.detach(), size, coarse=True)

    def forward(self, x: Tensor) -> Tensor:
        size, num_steps = (x.shape[-1], 127 * 256) if self.is_tiled else (INPUT_GROUP, 127)
        return nn.functional.linear(in_steps(x, size, num_steps=num_steps), self.weight)


def emulated(model: Transformer, build: str) -> Transformer:
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, linear in linears.items():
        model.set_submodule(name, Emulated(linear, build))
    return model


def some_rows(sizes: Sequence[tuple[int, int]]) -> list[Row]:
    """Tokens and start of each; what is before the start is taken from an empty cache."""
    pages = iter(torch.randperm(NUM_PAGES, generator=torch.manual_seed(0)).tolist())
    return [
        Row(
            [(7 * i + 13 * sequence) % CONFIG.vocab_size for i in range(count)],
            start,
            [next(pages) for _ in range(-(-(start + count) // PAGE_SIZE))],
            None,
        )
        for sequence, (count, start) in enumerate(sizes)
    ]


@pytest.mark.parametrize("build", builds())
@pytest.mark.parametrize("config", [CONFIG, WIDE], ids=["tiny", "wide"])
@torch.inference_mode()
def test_logits_are_those_of_pytorch_with_the_same_rounding(
    config: ModelConfig, build: str
) -> None:
    """But for queries, keys, values and attention's weights, which are bfloat16 in the native."""
    theirs = random_transformer(config, dtype=torch.float32)
    for parameter in theirs.parameters():
        parameter.mul_(config.hidden_size**-0.5 / 0.3 if parameter.dim() == 2 else 1)
    theirs.embedding.weight.mul_(config.hidden_size**0.5)
    if config.tied_head:
        theirs.head.weight = theirs.embedding.weight
    ours, theirs = native(theirs, build), emulated(theirs, build)
    batch = pack(some_rows([(9, 0), (1, 0), (40, 0), (3, 0)]), page_size=PAGE_SIZE)
    expected = theirs.logits(
        theirs.hidden(
            batch,
            KVCache.allocate(config, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=torch.float32),
        )
    )
    found = ours.logits(ours.hidden(batch, NativeCache(config, num_pages=NUM_PAGES)))
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.9


@pytest.mark.parametrize("build", builds())
@pytest.mark.parametrize("wanted_lens", [(0, 0, 0), (1, 0, 3), (0, 1, 1), (40, 1, 7)])
@torch.inference_mode()
def test_of_some_tokens_the_output_is_the_same_to_the_last_bit(
    build: str, wanted_lens: tuple[int, int, int]
) -> None:
    """And so are all tokens' keys and values."""
    ours = native(random_transformer(WIDE, dtype=torch.float32), build, threads=2)
    rows = some_rows([(40, 0), (1, 20), (7, 30)])
    caches = [NativeCache(WIDE, num_pages=NUM_PAGES) for _ in range(2)]
    all_TW = ours.hidden(pack(rows, page_size=PAGE_SIZE), caches[0])
    batch = pack(rows, page_size=PAGE_SIZE, wanted_lens=wanted_lens)
    some_TW = ours.hidden(batch, caches[1])
    ends = batch.query_lens_S.cumsum(0).tolist()
    for end, wanted_len in zip(ends, wanted_lens, strict=True):
        assert torch.equal(some_TW[end - wanted_len : end], all_TW[end - wanted_len : end])
    assert torch.equal(caches[0].pool, caches[1].pool)


@pytest.mark.parametrize("build", builds())
@torch.inference_mode()
def test_what_pytorch_computes_between_steps_changes_nothing(build: str) -> None:
    """It may use the same tile unit in the same thread, in shapes of its own."""
    ours = native(random_transformer(WIDE, dtype=torch.float32), build)
    batch = pack(some_rows([(16, 0)]), page_size=PAGE_SIZE)

    def logits() -> Tensor:
        return ours.logits(ours.hidden(batch, NativeCache(WIDE, num_pages=NUM_PAGES)))

    before = logits()
    assert torch.ones(512, 512, dtype=torch.bfloat16).mm(torch.ones(512, 512).bfloat16()).sum() > 0
    assert torch.equal(logits(), before)


@pytest.fixture(scope="module", params=builds())
def make_runner(request: pytest.FixtureRequest) -> Callable[[int], TorchRunner]:
    model = random_transformer(WIDE, dtype=torch.float32)

    def make(threads: int) -> TorchRunner:
        cache = NativeCache(WIDE, num_pages=NUM_PAGES)
        return TorchRunner(native(model, request.param, threads=threads), cache, max_model_len=256)

    return make


def generate(
    runner: TorchRunner, prompts: Sequence[Row], *, chunk_len: int, num_tokens: int = 6
) -> list[list[object]]:
    """Tokens and logprobs of each, all in one batch; long prompts in chunks."""
    known = [list(row.token_ids) for row in prompts]
    done, outputs = [0] * len(prompts), [list[object]() for _ in prompts]
    while open_ := [i for i in range(len(prompts)) if len(outputs[i]) < num_tokens]:
        rows = []
        for i in open_:
            chunk = known[i][done[i] :][:chunk_len]
            sampling = GREEDY if done[i] + len(chunk) == len(known[i]) else None
            rows.append(Row(chunk, done[i], range(4 * i, 4 * i + 4), sampling))
            done[i] += len(chunk)
        for i, token in zip(open_, runner.run(Batch(rows)).sampled, strict=True):
            if token:
                known[i].append(token.token_id)
                outputs[i].append(token)
    return outputs


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=9),
    chunk_len=st.integers(1, 60),
    threads=st.integers(1, 3),
)
def test_batched_and_chunked_is_solo_and_whole_to_the_last_bit(
    make_runner: Callable[[int], TorchRunner], lengths: list[int], chunk_len: int, threads: int
) -> None:
    rows = some_rows([(length, 0) for length in lengths])
    together = generate(make_runner(threads), rows, chunk_len=chunk_len)
    solo = make_runner(1)
    for row, outputs in zip(rows, together, strict=True):
        assert generate(solo, [row], chunk_len=1000) == [outputs]


def test_copied_pages_serve_as_well_as_the_first(
    make_runner: Callable[[int], TorchRunner],
) -> None:
    runner, (row,) = make_runner(2), some_rows([(10, 0)])
    whole = Row(row.token_ids, 0, [0], GREEDY)
    (expected,) = runner.run(Batch([whole])).sampled
    last = Row(row.token_ids[-1:], 9, [20], GREEDY)
    (token,) = runner.run(Batch([last], copies=[(0, 20)])).sampled
    assert token == expected


def test_heads_that_the_library_has_no_room_for_run_in_pytorch() -> None:
    assert is_native(replace(CONFIG, head_dim=256))
    assert not is_native(replace(CONFIG, head_dim=258))
    assert not is_native(replace(CONFIG, activation="gelu"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_parts_of_a_room_begin_where_vectors_may_and_share_nothing() -> None:
    room = Room()
    parts = [room.take(size) for size in (1, 64, 65, 0, BLOCK_BYTES, 2 * BLOCK_BYTES + 1, 3)]
    assert [len(part) for part in parts] == [1, 64, 65, 0, BLOCK_BYTES, 2 * BLOCK_BYTES + 1, 3]
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    for number, part in enumerate(parts):
        part[:1], part[-1:] = number, number
    assert all((part[[0, -1]] == number).all() for number, part in enumerate(parts) if len(part))


def test_a_cache_takes_memory_as_it_is_written() -> None:
    before = resident_bytes()
    cache = NativeCache(WIDE, num_pages=1 << 17)
    assert cache.pool.nbytes == native_page_bytes(WIDE) << 17 == 1 << 30
    cache.pool[3, 0] = 1
    assert resident_bytes() - before < 64 << 20
    assert cache.pool[-1, 1].count_nonzero() == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("llama")
    transformers_llama().save_pretrained(folder)
    return folder


def load(folder: Path, quantization: str) -> list[list[object]]:
    """What the model that is loaded so says of a prompt."""
    runner = load_runner(
        folder,
        max_batch_tokens=64,
        max_sequences=3,
        max_model_len=0,
        kv_cache_memory=0,
        threads=1,
        progress=lambda phase, detail, fraction: None,
        quantization=quantization,
    )
    return generate(runner, some_rows([(20, 0)]), chunk_len=64)


def test_auto_is_int8_where_there_is_a_library_and_float32_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exact, native = load(folder, "none"), load(folder, "int8")
    assert exact != native == load(folder, "auto")
    assert caplog.messages == []
    monkeypatch.setattr("model.runner.builds", list)
    assert load(folder, "auto") == exact
    (said,) = caplog.messages
    assert "so the model runs in float32" in said
    with pytest.raises(ModelError, match=r"no native library.*install octavo again"):
        load(folder, "int8")


@torch.inference_mode()
def test_phases_are_timed_when_asked_to() -> None:
    model = native(random_transformer(WIDE, dtype=torch.float32), builds()[0])
    batch, cache = pack(some_rows([(9, 0)]), page_size=PAGE_SIZE), NativeCache(WIDE, num_pages=9)
    batch.page_table_SN.zero_()
    batch.page_ids_T.zero_()
    model.logits(model.hidden(batch, cache))
    assert model.take_seconds(timed=True) == dict.fromkeys(PHASES, 0)
    model.logits(model.hidden(batch, cache))
    assert min(model.take_seconds(timed=False).values()) > 0


def test_a_step_reads_each_matrix_once() -> None:
    """Of 8 bits, with a scale of two bytes for each 64, and padded to whole groups and blocks."""
    config = replace(CONFIG, hidden_size=64, intermediate_size=128, num_heads=8)
    model = native(random_transformer(config, dtype=torch.float32), "plain")
    num_weights = num_parameters(config) - (2 * config.num_layers + 1) * config.hidden_size
    assert model.bytes_read == num_weights * (1 + 2 / 64)


def test_a_processor_gets_the_fastest_build_that_it_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for build in ("amx", "avx2", "dotprod", "plain"):
        (tmp_path / f"octavo_{build}.so").touch()
    v3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
    v4 = f"{v3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16"
    for flags, expected in [(v4, ["avx2", "plain"]), (v3, ["avx2", "plain"]), ("sse2", ["plain"])]:
        cpuinfo.write_text(f"processor : 0\nflags : fpu {flags}\n")
        assert builds(tmp_path, cpuinfo) == expected
    cpuinfo.write_text(f"flags : {v4} amx_tile amx_int8 amx_bf16\n")
    for granted, expected in [(True, ["amx", "avx2", "plain"]), (False, ["avx2", "plain"])]:
        monkeypatch.setattr("model.native.library._grants_tiles", lambda granted=granted: granted)
        assert builds(tmp_path, cpuinfo) == expected
    cpuinfo.write_text("processor : 0\nFeatures : fp asimd asimdhp asimddp\n")
    assert builds(tmp_path, cpuinfo) == ["dotprod", "plain"]
    cpuinfo.write_text("processor : 0\n")
    assert builds(tmp_path, cpuinfo) == ["plain"]
    assert builds(tmp_path / "nowhere", cpuinfo) == []


def test_threads_that_are_not_granted_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def state_create(self, threads: int) -> None:
            return None

    monkeypatch.setattr("model.native.transformer.load", lambda build: Library())
    with pytest.raises(ValueError, match=r"grants no 7 threads: take fewer by --threads"):
        NativeTransformer(CONFIG, build="plain", threads=7)
