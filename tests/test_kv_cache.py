from pathlib import Path

import pytest
import torch

from model.errors import ModelError
from model.float8 import FLOAT8, encoded
from model.footprint import float32_page_bytes
from model.kv_cache import KVCache, affordable_pages, chunk_ids
from tests.tiny_llama import CONFIG

D, K = CONFIG.head_dim, CONFIG.num_kv_heads


def allocate(num_pages: int, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache.allocate(CONFIG, num_pages=num_pages, page_size=16, dtype=dtype)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_what_is_written_by_slot_is_read_by_page_table() -> None:
    layer = allocate(num_pages=5).layers[0]
    kv_TJD = torch.randn(20, 2 * K, D)  # one sequence of 20 tokens in pages 3 and 1
    pages = torch.tensor([3] * 16 + [1] * 4)
    layer.write(kv_TJD, page_ids_T=pages, offsets_T=torch.arange(20) % 16)
    kv_SJCD = layer.gather(chunk_ids(torch.tensor([[3, 1]]), num_kv_heads=K))
    assert kv_SJCD.shape == (1, 2 * K, 32, D)
    assert torch.equal(kv_SJCD[0, :, :20].transpose(0, 1), kv_TJD)
    assert not kv_SJCD[0, :, 20:].any()


def test_a_write_touches_its_own_slot_only() -> None:
    cache = allocate(num_pages=3)
    slot = {"page_ids_T": torch.tensor([1]), "offsets_T": torch.tensor([7])}
    cache.layers[1].write(torch.ones(1, 2 * K, D), **slot)
    everything = chunk_ids(torch.tensor([[0, 1, 2]]), num_kv_heads=K)
    assert cache.layers[1].gather(everything).sum() == 2 * K * D
    assert cache.layers[1].gather(everything)[0, :, 16 + 7].all()
    assert not cache.layers[0].gather(everything).any()


def test_e4m3_keeps_four_bits_of_any_amplitude_and_each_vector_has_its_own_scale() -> None:
    cache = allocate(num_pages=3, dtype=FLOAT8)
    amplitudes_T = torch.logspace(-8, 8, 16)
    kv_TJD = torch.randn(16, 2 * K, D) * amplitudes_T[:, None, None]
    kv_TJD[3] = 0
    page_ids_T = torch.full((16,), 2)
    cache.layers[0].write(kv_TJD, page_ids_T=page_ids_T, offsets_T=torch.arange(16))
    cache.copy(torch.tensor([(2, 0)]))
    for page in (2, 0):
        kv_SJCD = cache.layers[0].gather(chunk_ids(torch.tensor([[page]]), num_kv_heads=K))
        error_TJD = (kv_SJCD[0].transpose(0, 1) - kv_TJD).abs()
        amplitude_TJ1 = kv_TJD.abs().amax(-1, keepdim=True)
        # Half of a mantissa's last bit, or of the least number.
        assert (error_TJD <= kv_TJD.abs() / 16 + amplitude_TJ1 / 448 / 1024).all()
        assert not kv_SJCD[0, :, 3].any()


def test_a_vector_has_the_same_bits_beside_others() -> None:
    x_TD = torch.randn(5, 64)
    codes_TD, scales_T = encoded(x_TD)
    for token in range(5):
        code_D, scale = encoded(x_TD[token])
        assert torch.equal(code_D.view(torch.uint8), codes_TD[token].view(torch.uint8))
        assert scale == scales_T[token]


def test_copies_are_read_before_any_is_written_in_every_layer() -> None:
    cache = allocate(num_pages=3)
    for layer in cache.layers:
        for page in range(3):
            layer.write(
                torch.full((1, 2 * K, D), float(page + 1)),
                page_ids_T=torch.tensor([page]),
                offsets_T=torch.tensor([5]),
            )
    cache.copy(torch.tensor([(0, 1), (1, 2)]))
    everything = chunk_ids(torch.tensor([[0, 1, 2]]), num_kv_heads=K)
    for layer in cache.layers:
        kv_JCD = layer.gather(everything)[0]
        assert [kv_JCD[0, 16 * page + 5, 0] for page in range(3)] == [1, 1, 2]


def test_page_bytes_are_those_of_the_pools() -> None:
    size = float32_page_bytes(CONFIG, page_size=16)
    assert size == CONFIG.num_layers * 2 * K * 16 * D * 4


def test_memory_is_taken_only_as_pages_are_written() -> None:
    size = float32_page_bytes(CONFIG, page_size=16)
    before = resident_bytes()
    cache = allocate(num_pages=(1 << 30) // size)
    assert resident_bytes() - before < 64 << 20
    quarter = torch.arange(cache.num_pages // 4)
    zero = torch.zeros(1, dtype=torch.int64)
    for layer in cache.layers:
        for offset in range(0, 16, 8):
            kv_TJD = torch.ones(len(quarter), 2 * K, D)
            layer.write(kv_TJD, page_ids_T=quarter, offsets_T=zero + offset)
    # Some of what other tests freed may be written again, which takes nothing new.
    assert resident_bytes() - before > 100 << 20


def test_an_explicit_budget_is_divided_into_whole_pages() -> None:
    assert affordable_pages(1000, memory=10_999, most=3) == 10


def test_an_automatic_budget_takes_a_share_of_free_memory_or_what_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model.kv_cache.available_memory", lambda: 100_000)
    assert affordable_pages(1000, memory=0, most=10_000) == 50
    assert affordable_pages(1000, memory=0, most=3) == 3


@pytest.mark.parametrize(
    ("memory", "message"),
    [(100_001, "100001 bytes, but only 100000 are free"), (999, "takes 1000 bytes")],
)
def test_a_budget_that_cannot_be_met_is_refused(
    memory: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.kv_cache.available_memory", lambda: 100_000)
    with pytest.raises(ModelError, match=message):
        affordable_pages(1000, memory=memory, most=10)
