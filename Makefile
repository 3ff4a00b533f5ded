# octavo's commands. Stamp files in .venv make repeated calls instant; `make clean` starts over.
#
#   make serve                 install, fetch the default model, serve on 127.0.0.1:8000
#   make serve MODEL=folder    ... or another model; OCTAVO_PORT=8001 and its like work too
#   make test                  install what tests need, run them
#   make bench                 measure the default model under load: octavo-bench/report.html
#   make check                 everything that must hold before a change lands

PYTHON ?= python3
MODEL ?=
BENCH ?=
TESTS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
PINNED := --constraint constraints.txt --build-constraint constraints.txt

.PHONY: audit lock sbom serve test bench bench-peers soak check lint type clean

serve: $(VENV)/installed
	$(BIN)/octavo serve $(MODEL)

test: $(VENV)/installed-dev node-clients
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder \
	    --cov --cov-report= $(TESTS)
	rm -f .coverage.*  # cut short in processes that tests killed
	$(BIN)/coverage report --skip-covered --fail-under=95
	$(BIN)/coverage report --skip-covered --fail-under=100 \
	    --include='service/api/*,service/engine/*,service/text/*'

bench: $(VENV)/installed-dev
	$(BIN)/octavo bench $(MODEL) $(BENCH)

bench-peers: $(VENV)/installed-dev  # PEERS='--only vllm-w8a8 --runs 1', for one
	$(BIN)/python -m benchmarks.peers $(PEERS)

soak: $(VENV)/installed-dev  # SOAK='--minutes 60', for one
	$(BIN)/python -m benchmarks.soak $(MODEL) $(SOAK)

check: lint
	$(MAKE) --jobs 2 type test  # mypy has one core for itself, and is done before the tests are

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_project.py

type: $(VENV)/installed-dev
	$(BIN)/mypy

audit: $(VENV)/audit  # asks PyPI for known vulnerabilities
	$(VENV)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

sbom: $(VENV)/audit $(VENV)/installed
	$(VENV)/audit/bin/cyclonedx-py environment $(VENV) --of JSON -o sbom.json

lock: $(VENV)/audit $(VENV)/installed-dev  # after a change of constraints.txt
	$(BIN)/python -m deploy.lock >$(VENV)/runtime.txt
	$(VENV)/audit/bin/uv pip compile $(VENV)/runtime.txt --no-deps --generate-hashes --universal \
	    --python-version 3.11 --quiet --no-annotate --no-header --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*

$(VENV)/pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --constraint constraints.txt pip
	touch $@

$(VENV)/installed: $(VENV)/pip pyproject.toml hatch_build.py $(wildcard model/native/*.[ch])
	$(PIP_INSTALL) $(PINNED) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP_INSTALL) $(PINNED) --editable '.[hub,otel]' --group dev --group clients --group loadtests
	touch $@

$(VENV)/audit: pyproject.toml constraints.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt pip
	$@/bin/python -m pip install --disable-pip-version-check $(PINNED) --group audit
	touch $@

include deploy/deploy.mk
include tests/clients/clients.mk
