# The part of the Makefile that builds and tests what is deployed.

DOCKER ?= docker
RAY := $(VENV)/ray
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: deploy-tools test-proxy test-ray image test-image

deploy-tools: $(VENV)/installed-dev  # for the tests of deploy/, which are skipped without
	$(PIP_INSTALL) $(PINNED) --group deploy
	$(BIN)/python deploy/test/fetch_helm.py $(BIN)

test-proxy: deploy-tools  # and Debian's nginx-light and haproxy
	$(BIN)/python -m pytest deploy/test

image:
	$(DOCKER) build --tag octavo:$(VERSION) .

test-image: deploy-tools  # builds it without Docker, and serves from it: as root, with podman
	deploy/test/image.sh

test-ray: $(RAY)/installed  # two replicas on a Ray of its own, whose warnings are no errors
	OMP_NUM_THREADS=1 $(RAY)/bin/python -m pytest -W ignore deploy/ray

$(RAY)/installed: pyproject.toml constraints.txt deploy/ray/constraints.txt | $(VENV)/pip
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt pip
	$(@D)/bin/python -m pip install --disable-pip-version-check $(PINNED) \
	    --constraint deploy/ray/constraints.txt --editable . --group ray
	touch $@
