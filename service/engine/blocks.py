"""The KV cache's pages as integers: who holds which, and which full pages can be shared again.

Every page is in exactly one of three states (checked by `check_integrity`):

    free  --- take ---------------------------->  owned (by one or more page tables)
      ^                                             |
      |                                  last owner gives it back
      |                                             |
      `-- evicted: least recently used first -- cached (full, named by its hash)

Knows no tensors and no tokens: a full page is named by a 128-bit hash of all tokens up to its end,
chained page by page, so that equal names mean equal contents at equal positions.
"""

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b


def page_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full page that follows the page named `parent`: 128 bits of BLAKE2b."""
    return blake2b(array("I", token_ids).tobytes(), digest_size=16, key=parent).digest()


def root_hash(salt: str) -> bytes:
    """The parent of first pages. Sequences with different salts never share a page."""
    return blake2b(salt.encode(), digest_size=16, person=b"octavo-pages").digest()


class BlockManager:
    """Hands out pages and takes them back. A page table is a list of page ids, changed in place."""

    def __init__(self, num_pages: int, *, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = deque(range(num_pages))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_owners = [0] * num_pages
        self._page_by_hash: dict[bytes, int] = {}
        self._hash_by_page: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be handed out: free ones, and cached ones after eviction."""
        return len(self._free) + len(self._cached)

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def grow(self, page_ids: list[int], *, num_tokens: int) -> bool:
        """Extend a page table to hold num_tokens. False, changing nothing, if pages lack."""
        num_missing = self.num_pages_for(num_tokens) - len(page_ids)
        if num_missing <= 0:
            return True
        if num_missing > self.num_free:
            return False
        page_ids.extend(self._take() for _ in range(num_missing))
        return True

    def share(self, page_ids: list[int], hashes: Iterable[bytes]) -> None:
        """Extend a page table by the longest run of the named pages that is still at hand."""
        for name in hashes:
            page = self._page_by_hash.get(name)
            if page is None:
                return
            self._cached.pop(page, None)
            self._num_owners[page] += 1
            page_ids.append(page)

    def name(self, page: int, name: bytes) -> None:
        """Make a full page findable. Of two pages with equal contents the first keeps the name."""
        if name not in self._page_by_hash:
            self._page_by_hash[name] = page
            self._hash_by_page[page] = name

    def release(self, page_ids: list[int]) -> None:
        """Give a page table's pages back, its end first, so that prefixes are evicted last."""
        while page_ids:
            page = page_ids.pop()
            self._num_owners[page] -= 1
            if self._num_owners[page] == 0:
                self._retire(page)

    def _take(self) -> int:
        page = self._free.popleft() if self._free else self._evict()
        self._num_owners[page] = 1
        return page

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._page_by_hash[self._hash_by_page.pop(page)]
        return page

    def _retire(self, page: int) -> None:
        """A free page is taken again before those that were never used, whose memory is yet to be
        asked for."""
        if page in self._hash_by_page:
            self._cached[page] = None
        else:
            self._free.appendleft(page)

    def check_integrity(self, page_tables: Iterable[Sequence[int]]) -> None:
        """Assert that free + cached + owned = all, each page once, owners counted right."""
        owners = Counter(page for table in page_tables for page in table)
        assert owners == Counter({p: n for p, n in enumerate(self._num_owners) if n}), "owners"
        states = [*self._free, *self._cached, *owners]
        assert sorted(states) == list(range(self.num_pages)), "a page is lost or in two states"
        names = {page: name for name, page in self._page_by_hash.items()}
        assert names == self._hash_by_page, "names and pages disagree"
        assert self._cached.keys() <= names.keys(), "a cached page without a name"
        assert names.keys().isdisjoint(self._free), "a free page with a name"
