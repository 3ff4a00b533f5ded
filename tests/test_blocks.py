"""The block manager: sharing, naming and eviction of pages, and its own integrity check."""

import pytest

from service.engine.blocks import BlockManager, page_hash, root_hash


def chain(*pages: list[int], salt: str = "") -> list[bytes]:
    names = [root_hash(salt)]
    for page in pages:
        names.append(page_hash(names[-1], page))
    return names[1:]


def test_grow_takes_only_missing_pages_and_refuses_whole() -> None:
    blocks = BlockManager(3, page_size=4)
    table: list[int] = []
    assert blocks.grow(table, num_tokens=5)
    assert len(table) == 2
    assert blocks.grow(table, num_tokens=8)
    assert len(table) == 2
    assert not blocks.grow(table, num_tokens=13)
    assert (len(table), blocks.num_free) == (2, 1)
    blocks.release(table)
    assert (table, blocks.num_free) == ([], 3)
    blocks.check_integrity([])


def test_pages_that_were_used_are_taken_before_those_that_never_were() -> None:
    blocks = BlockManager(8, page_size=4)
    first: list[int] = []
    assert blocks.grow(first, num_tokens=12)
    used = set(first)
    blocks.release(first)
    assert blocks.grow(first, num_tokens=16)
    assert set(first[:3]) == used
    assert first[3] not in used


def test_hash_covers_tokens_order_prefix_and_salt() -> None:
    names = {
        *chain([1, 2], [3, 4]),
        *chain([2, 1], [3, 4]),
        *chain([1, 2], [3, 4], salt="tenant"),
        *chain([3, 4]),
    }
    assert len(names) == 7
    assert all(len(name) == 16 for name in names)


def test_named_pages_are_shared_while_owned_and_after_release() -> None:
    blocks = BlockManager(4, page_size=2)
    names = chain([1, 2], [3, 4])
    first: list[int] = []
    assert blocks.grow(first, num_tokens=4)
    for page, name in zip(first, names, strict=True):
        blocks.name(page, name)
    second: list[int] = []
    blocks.share(second, names)
    assert second == first
    blocks.check_integrity([first, second])
    blocks.release(first)
    blocks.release(second)
    assert blocks.num_free == 4
    third: list[int] = []
    blocks.share(third, [*names, *chain([9, 9])])
    assert len(third) == 2
    blocks.check_integrity([third])


def test_eviction_takes_the_least_recently_used_and_ends_before_prefixes() -> None:
    blocks = BlockManager(3, page_size=2)
    names = chain([1, 2], [3, 4])
    table: list[int] = []
    assert blocks.grow(table, num_tokens=4)
    for page, name in zip(table, names, strict=True):
        blocks.name(page, name)
    blocks.release(table)
    other: list[int] = []
    assert blocks.grow(other, num_tokens=4)  # takes the free page, then evicts one cached page
    found: list[int] = []
    blocks.share(found, names)
    assert len(found) == 1, "the prefix outlives its continuation"
    blocks.check_integrity([other, found])


def test_equal_contents_keep_the_first_name() -> None:
    blocks = BlockManager(2, page_size=2)
    (name,) = chain([1, 2])
    first: list[int] = []
    second: list[int] = []
    assert blocks.grow(first, num_tokens=2)
    assert blocks.grow(second, num_tokens=2)
    blocks.name(first[0], name)
    blocks.name(second[0], name)
    found: list[int] = []
    blocks.share(found, [name])
    assert found == first
    blocks.release(second)
    blocks.check_integrity([first, found])


def test_integrity_check_notices_a_leak_and_a_double_owner() -> None:
    blocks = BlockManager(2, page_size=2)
    table: list[int] = []
    assert blocks.grow(table, num_tokens=2)
    with pytest.raises(AssertionError):
        blocks.check_integrity([])
    with pytest.raises(AssertionError):
        blocks.check_integrity([table, table])
