"""What torchrun's variables say, and where rank 0 listens."""

import socket

import pytest

from model.errors import ModelError
from model.rendezvous import LOOPBACK, Rendezvous, from_variables, listening

TOLD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_without_a_rank_the_ranks_are_this_hosts_own() -> None:
    assert from_variables({"WORLD_SIZE": "2"}, size=2) is None


def test_what_is_told_is_read() -> None:
    told = Rendezvous(1, 2, 1, "10.0.0.1", 29500)
    assert from_variables(TOLD, size=2) == told
    assert from_variables(TOLD | {"LOCAL_WORLD_SIZE": "2"}, size=2) == told._replace(num_local=2)
    assert from_variables(told.variables, size=2) == told


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"WORLD_SIZE": "4"}, "tensor_parallel_size is 2, but WORLD_SIZE is 4"),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2: take 0 to 1"),
        ({"RANK": "-1"}, "RANK is '-1': take a number"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"MASTER_ADDR": ""}, "RANK is set, but MASTER_ADDR isn't"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        from_variables(TOLD | changes, size=2)


def test_rank_0_listens_on_one_address_of_its_host() -> None:
    first = listening(Rendezvous(0, 2, 2, LOOPBACK, 0))
    with socket.socket(fileno=first.listener) as listener:
        assert listener.getsockname() == (LOOPBACK, first.port)
        with socket.create_connection((first.address, first.port)):
            pass


def test_an_address_of_another_host_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"MASTER_ADDR '192\.0\.2\.1', port 29500, can't be"):
        listening(Rendezvous(0, 2, 1, "192.0.2.1", 29500))
