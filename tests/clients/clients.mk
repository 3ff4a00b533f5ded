# The part of the Makefile that installs other people's clients, for tests/clients: what pip doesn't
# install beside octavo. Tests of what isn't there are skipped.

NODE_CLIENTS := $(VENV)/node
HEAVY_CLIENTS := $(VENV)/lm-eval

.PHONY: node-clients heavy-clients test-clients-heavy

node-clients: $(if $(shell command -v npm),$(NODE_CLIENTS)/installed)

heavy-clients: $(HEAVY_CLIENTS)/installed  # `make test` tests with them, too, once they are there

test-clients-heavy: $(VENV)/installed-dev heavy-clients
	OMP_NUM_THREADS=2 $(BIN)/pytest tests/clients/test_lm_eval.py

$(NODE_CLIENTS)/installed: $(wildcard tests/clients/node/package*.json) | $(VENV)/pip
	mkdir -p $(@D)
	cp tests/clients/node/package*.json $(@D)
	npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund && touch $@ || { \
	    rm -rf $(@D)/node_modules; \
	    echo "going on without npm's packages: the tests with Node's clients are skipped" >&2; }

$(HEAVY_CLIENTS)/installed: tests/clients/heavy-constraints.txt | $(VENV)/pip
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt pip
	$(@D)/bin/python -m pip install --disable-pip-version-check \
	    --constraint tests/clients/heavy-constraints.txt --group clients-heavy
	touch $@
