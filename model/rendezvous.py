"""Where the processes that share a model meet: their numbers, and the address of the first.

Several hosts are told by the variables that torchrun sets
(https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables). Imports no torch.
"""

import socket
from collections.abc import Mapping
from typing import NamedTuple

from model.errors import ModelError

LOOPBACK = "127.0.0.1"


class Rendezvous(NamedTuple):
    rank: int
    """This process's number; 0 schedules."""
    size: int
    """How many processes there are."""
    num_local: int
    """Those on this host, which share its cores and memory."""
    address: str
    port: int
    listener: int = -1
    """Rank 0's: the file descriptor of a socket that listens there."""

    @property
    def variables(self) -> dict[str, str]:
        """What `from_variables` reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.num_local),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def from_variables(variables: Mapping[str, str], *, size: int) -> Rendezvous | None:
    """None without RANK: the ranks are then this host's own. Raises ModelError for what doesn't fit
    `size`."""
    if "RANK" not in variables:
        return None
    rank, world_size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if world_size != size:
        raise ModelError(
            f"tensor_parallel_size is {size}, but WORLD_SIZE is {world_size}: take "
            "the same for both"
        )
    if rank >= size:
        raise ModelError(f"RANK is {rank}, but WORLD_SIZE is {size}: take 0 to {size - 1}")
    num_local = _number(variables, "LOCAL_WORLD_SIZE", default="1")
    port = _number(variables, "MASTER_PORT")
    return Rendezvous(rank, size, num_local, _variable(variables, "MASTER_ADDR"), port)


def listening(rendezvous: Rendezvous) -> Rendezvous:
    """Rank 0's, with a socket that takes connections to that one address, and to no other of the
    host; port 0 takes any free one."""
    try:
        family, *_, address = socket.getaddrinfo(
            rendezvous.address, rendezvous.port, type=socket.SOCK_STREAM
        )[0]
        server = socket.create_server(address[:2], family=family, backlog=rendezvous.size)
    except OSError as error:
        raise ModelError(
            f"MASTER_ADDR {rendezvous.address!r}, port {rendezvous.port}, can't be listened on "
            f"({error}): take an address of rank 0's host and a free port"
        ) from error
    return rendezvous._replace(port=server.getsockname()[1], listener=server.detach())


def _number(variables: Mapping[str, str], name: str, default: str = "") -> int:
    value = _variable(variables, name, default)
    if not value.isdecimal():
        raise ModelError(f"{name} is {value!r}: take a number, as torchrun does")
    return int(value)


def _variable(variables: Mapping[str, str], name: str, default: str = "") -> str:
    value = variables.get(name, default)
    if not value:
        raise ModelError(f"RANK is set, but {name} isn't: set it too, as torchrun does")
    return value
