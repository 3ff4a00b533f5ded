"""Every attack and every fault that is listed has its tests, and each of those still exists."""

import ast

import pytest

from tests.cases import Case
from tests.faults import FAULTS
from tests.processes import ROOT
from tests.security import CASES


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("case", [*CASES, *FAULTS], ids=lambda case: case.name)
def test_its_tests_are_there(case: Case) -> None:
    assert case.tests
    for test in case.tests:
        file, _, name = test.partition("::")
        assert name in names_in(file), test


@pytest.mark.parametrize("folder", ["security", "faults"])
def test_every_file_here_belongs_to_a_case(folder: str) -> None:
    listed = {test.partition("::")[0] for case in (*CASES, *FAULTS) for test in case.tests}
    files = {f"{folder}/{path.name}" for path in (ROOT / "tests" / folder).glob("test_*.py")}
    assert files <= listed
