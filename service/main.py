"""The `octavo` command's first file: decides what is imported when, and imports the rest.

What `octavo serve` needs to listen comes first, with the garbage collector off. Nothing that an
import makes is garbage, and looking for it takes a quarter of the time until the server can
answer. Frozen, it won't be looked at later either. The LAZY modules come when an attribute of
theirs is first asked for (docs/decisions/005-listen-before-importing.md).
"""

import gc
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec

LAZY = (
    "importlib.metadata",
    "service.app",
    "service.bench",
    "service.doctor",
    "service.engine.client",
    "service.engine.ranks",
    "service.hub",
    "service.inspection",
    "service.otel",
    "service.simulation.run",
    "service.terminal",
    "service.text.model",
)


def make_lazy(name: str) -> None:
    """`from package import module` will give a module that is empty until it is used."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = LazyLoader(spec.loader)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    package, _, child = name.rpartition(".")
    setattr(sys.modules[package], child, module)


gc.disable()
for name in LAZY:
    if name not in sys.modules:
        make_lazy(name)

from service.cli import main  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["main"]
