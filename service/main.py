"""The `octavo` command's first file: imports all the others with the garbage collector off.

Nothing that an import makes is garbage, and looking for it takes a quarter of the time until the
server can answer. Frozen, it won't be looked at later either.
"""

import gc

gc.disable()

from service.cli import main  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["main"]
