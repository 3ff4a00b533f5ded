# The part of the Makefile that builds and tests what is deployed.

DOCKER ?= docker
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: deploy-tools test-proxy image test-image

deploy-tools: $(VENV)/installed-dev  # for the tests of deploy/, which are skipped without
	$(PIP_INSTALL) $(PINNED) --group deploy
	$(BIN)/python deploy/test/fetch_helm.py $(BIN)

test-proxy: deploy-tools  # and Debian's nginx-light and haproxy
	$(BIN)/python -m pytest deploy/test

image:
	$(DOCKER) build --tag octavo:$(VERSION) .

test-image: deploy-tools  # builds it without Docker, and serves from it: as root, with podman
	deploy/test/image.sh
