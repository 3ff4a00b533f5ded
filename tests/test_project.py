"""The rules of the project that no linter knows: budgets, banned calls, documents that match."""

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.config import EngineConfig, SamplingConfig, ServerConfig, SimulationConfig

ROOT = Path(__file__).parent.parent
PRODUCT = sorted(path for name in ("model", "service") for path in (ROOT / name).rglob("*.py"))
SOURCES = PRODUCT + sorted((ROOT / "tests").rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

FILE_LINES, TEST_FILE_LINES = 350, 500
FUNCTION_LINES, FUNCTION_LINES_MEDIAN = 50, 10
BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
BANNED_CALLS = {"eval", "exec", "compile", "torch.load", "numpy.load", "np.load"}
BANNED_CALLS |= {"__import__", "runpy.run_path", "runpy.run_module"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(TREES[path]) if isinstance(node, Function))


def num_lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    budget = FILE_LINES if path in PRODUCT else TEST_FILE_LINES
    assert len(path.read_text().splitlines()) <= budget


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    too_long = [f.name for f in functions(path) if num_lines(f) > FUNCTION_LINES]
    assert too_long == []


def test_the_median_function_is_small() -> None:
    lines = [num_lines(function) for path in PRODUCT for function in functions(path)]
    assert statistics.median(lines) <= FUNCTION_LINES_MEDIAN


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_modules_say_what_they_are(path: Path) -> None:
    assert path.read_text() == "" or ast.get_docstring(TREES[path])


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_stand_at_the_top(path: Path) -> None:
    hidden = [found for function in functions(path) for found in imports(function)]
    assert hidden == []
    assert "TYPE_CHECKING" not in {
        node.id for node in ast.walk(TREES[path]) if isinstance(node, ast.Name)
    }


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_nothing_runs_code_that_it_reads(path: Path) -> None:
    """No pickles and no evaluation, which would let a model's file run what it likes."""
    modules = {module.split(".")[0] for _, module in imports(TREES[path])}
    assert modules & BANNED_MODULES == set()
    calls = {ast.unparse(n.func) for n in ast.walk(TREES[path]) if isinstance(n, ast.Call)}
    assert calls & BANNED_CALLS == set()


@pytest.mark.parametrize("name", ["model", "service"])
def test_no_other_package_shadows_ours(name: str) -> None:
    """An editable install lists no modules; the packaging test looks at the wheel."""
    assert packages_distributions().get(name, ["octavo"]) == ["octavo"]
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin == str(ROOT / name / "__init__.py")


def test_changelog_begins_with_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    entries = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entries[0] == version


def cell(default: object) -> str:
    return "" if default in ("", None) else f"`{default}`"


def test_readme_lists_the_knobs() -> None:
    rows = [
        f"| `--{field.name.replace('_', '-')}` | {cell(field.default)} | {field.metadata['help']} |"
        for config in (EngineConfig, ServerConfig, SamplingConfig, SimulationConfig)
        for field in fields(config)
    ]
    listed = re.findall(r"^\| `--.*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert listed == rows


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("*.md")), ids=name_of)
def test_decisions_are_short(path: Path) -> None:
    assert re.match(r"\d{3}-[a-z0-9-]+\.md", path.name)
    assert len(path.read_text().splitlines()) < 60
