# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
# Several targets run at a time, all of them whichever fails; each line of a test run begins with the name of its target.
# All suites of `test-all` begin at once: a core that waits for one of them works for another.
MAKEFLAGS += --jobs=$(if $(filter test-all,$(MAKECMDGOALS)),4,3) --keep-going

# Compiled modules are kept: without them, each process compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
# Stamp files: an environment is up to date if its stamp is newer than the files that describe it.
READY := .venv/.ready
READY_COMPILED := .venv/.compiled
READY_RUN := .venv-run/.ready
READY_RUN_SEARCH := .venv-run/.search
READY_RUN_MODEL := .venv-run/.model
READY_RUN_FILES := .venv-run/.files$(if $(FILE_SEARCH),-local)
# One for each choice of packages; wrong separators are refused by `check-environment`.
READY_RUN_CODE := .venv-run/.code-$(subst $() ,,$(subst ;,,$(subst :,,$(CODE_PACKAGES))))
READY_OGX := .venv-ogx/.ready
READY_GPT_OSS := .venv-gpt-oss/.ready
READY_CLIENTS := .clients/.ready
READY_PROMTOOL := .promtool/.ready
READY_DOCS := .venv-docs/.ready
READY_MODEL_SERVERS := .venv-model-servers/.ready
READY_LITELLM := .venv-litellm/.ready
READY_RELEASE := .venv-release/.ready
# A test waits for servers half of its time, so there are more processes than cores. Tests of one file share servers.
PROCESSES ?= 3
# A run beside the one on llama-stack has one process: each has to import torch or the host, and start servers. It ends
# before the longer run.
BESIDE := 1
# The day of `make test`, from 0 to 4: five consecutive days run all that takes turns (tests/support/selection.py).
ifndef GATE_DAY
GATE_DAY := $(shell expr $$(date +%s) / 86400 % 5)
endif
# Seconds after which a test that hangs fails, with the stack of each thread.
TEST_SECONDS ?= 900
OPTIONS = $(DAY) --ends-with-parent --timeout=$(TEST_SECONDS) --durations=30 --durations-min=1
# Both have the name of the output lines and the report, which has the durations, and Python as first arguments.
NAMED = 2>&1 | sed --unbuffered 's/^/$(1): /'
# Run pytest. Last argument: its own.
PYTEST = @set -o pipefail; $(2) -m pytest $(OPTIONS) --junit-xml=.reports/$(1).xml $(3) $(NAMED)
# Run pytest in several processes. Other arguments: how many, the folder, pytest's.
QUEUED = @set -o pipefail; $(2) -m tests.support.parallel --processes=$(3) --report=.reports/$(1).xml $(4) -- $(OPTIONS) $(5) $(NAMED)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: install
install: $(READY) ## Set up .venv: llama-stack, this package, and what tests and demo need

INSTALL_SCRIPTS := $(addprefix scripts/,install install-into make-venv find-python)

$(READY): pyproject.toml constraints/llama-stack.txt constraints/standalone.txt $(INSTALL_SCRIPTS)
	@scripts/install .venv constraints/llama-stack.txt llama-stack,test,test-starter,test-fuzz,dev constraints/standalone.txt
	@touch $@

# Else each process of a test run, all of which begin at the same time, would compile what stacks import.
$(READY_COMPILED): $(READY)
	@.venv/bin/python -m tests.support.forks >/dev/null 2>&1 || true
	@touch $@

RUN_NEEDS := pyproject.toml constraints/llama-stack.txt constraints/standalone.txt scripts/install-run scripts/find-python

# Refuses variables that the demo's server would not accept, before packages are installed.
.PHONY: check-environment
check-environment:
	@python=$$(scripts/find-python) && "$$python" demo/environment.py

$(READY_RUN): $(RUN_NEEDS) | check-environment
	@scripts/install-run .venv-run server
	@touch $@

$(READY_RUN_SEARCH): $(READY_RUN) | check-environment
	@scripts/install-run .venv-run search
	@touch $@

$(READY_RUN_MODEL): $(READY_RUN) | check-environment
	@scripts/install-run .venv-run model
	@touch $@

$(READY_RUN_FILES): $(READY_RUN) | check-environment
	@scripts/install-run .venv-run files
	@touch $@

$(READY_RUN_CODE): $(READY_RUN) | check-environment
	@scripts/install-run .venv-run code
	@touch $@

$(READY_OGX): pyproject.toml constraints/ogx.txt constraints/standalone.txt $(INSTALL_SCRIPTS) | $(READY)
	@scripts/install .venv-ogx constraints/ogx.txt ogx,test,test-starter constraints/standalone.txt
	@touch $@

GPT_OSS_PINS := constraints/gpt-oss.txt constraints/standalone-gpt-oss.txt constraints/triton-3.6.txt

# The earlier Triton lies apart: tests build the kernels with both.
$(READY_GPT_OSS): pyproject.toml providers/gpt_oss/pyproject.toml $(GPT_OSS_PINS) $(INSTALL_SCRIPTS) | $(READY)
	@scripts/install .venv-gpt-oss constraints/gpt-oss.txt llama-stack constraints/standalone-gpt-oss.txt './providers/gpt_oss[test,dev]'
	@.venv-gpt-oss/bin/uv pip install --quiet --no-deps --target .venv-gpt-oss/triton-3.6 --requirement constraints/triton-3.6.txt
	@touch $@

$(READY_CLIENTS): constraints/clients/*.txt scripts/install-clients $(INSTALL_SCRIPTS) | $(READY)
	@scripts/install-clients
	@touch $@

$(READY_PROMTOOL): scripts/install-promtool
	@scripts/install-promtool .promtool
	@touch $@

.PHONY: promtool
promtool: $(READY_PROMTOOL) ## Install Prometheus' tool, which tests the alerts of the template

$(READY_MODEL_SERVERS): constraints/model-servers.txt $(INSTALL_SCRIPTS) | $(READY)
	@scripts/make-venv .venv-model-servers
	@echo "Installing vLLM and transformers into .venv-model-servers (two minutes and 6 GB the first time)"
	@scripts/install-into .venv-model-servers --quiet --no-deps --requirement constraints/model-servers.txt
	@touch $@

$(READY_LITELLM): constraints/litellm.txt $(INSTALL_SCRIPTS) | $(READY)
	@scripts/make-venv .venv-litellm
	@scripts/install-into .venv-litellm --quiet --no-deps --requirement constraints/litellm.txt
	@touch $@

.rivals/%/.ready: constraints/rivals/%.txt $(INSTALL_SCRIPTS) | $(READY)
	@scripts/make-venv .rivals/$*
	@scripts/install-into .rivals/$* --quiet --no-deps --requirement $<
	@touch $@

.PHONY: model-servers
model-servers: $(READY_MODEL_SERVERS) $(READY_LITELLM) ## Install the model servers that tests start: vLLM, transformers, LiteLLM

# `make test` has no test that needs these environments.
MODEL_SERVERS := $(if $(filter test,$(MAKECMDGOALS)),,$(READY_MODEL_SERVERS) $(READY_LITELLM))

# Without INFERENCE_URL, a small model is installed and served. Some tools need additional packages.
SEARCHES := $(WEB_SEARCH)$(SEARXNG_URL)$(TAVILY_SEARCH_API_KEY)$(BRAVE_SEARCH_API_KEY)
TOOLS_NEED := $(if $(SEARCHES),$(READY_RUN_SEARCH)) $(if $(FILE_SEARCH)$(EMBEDDING_MODELS),$(READY_RUN_FILES)) \
	$(if $(CODE_PACKAGES),$(READY_RUN_CODE))
SERVE_NEEDS := $(if $(INFERENCE_URL),,$(READY_RUN_MODEL)) $(TOOLS_NEED)

.PHONY: demo
demo: $(READY_RUN) $(READY_RUN_MODEL) $(TOOLS_NEED) ## Hold a short conversation with a real small model, then clean up
	@.venv-run/bin/python demo/demo.py

.PHONY: serve
serve: $(READY_RUN) $(SERVE_NEEDS) ## Start a server and leave it running (INFERENCE_URL=... uses your own model server)
	@.venv-run/bin/python demo/serve.py

SUITES := test-llama-stack test-ogx test-gpt-oss test-wheels

.PHONY: test
test: DAY := --day=$(GATE_DAY)
test: $(SUITES) ## Run the tests that each change has to pass, and a fifth of the others, chosen by the day (GATE_DAY=0 to 4)

.PHONY: test-all
test-all: $(SUITES) ## Run all tests

.PHONY: test-llama-stack
test-llama-stack: $(READY_COMPILED) $(READY_CLIENTS) $(READY_PROMTOOL) $(MODEL_SERVERS) ## Run all tests but those of the other environments
	$(call QUEUED,llama-stack,$(PYTHON),$(PROCESSES),tests)

.PHONY: test-ogx
test-ogx: $(READY_OGX) $(READY_CLIENTS) $(MODEL_SERVERS) ## Run the live tests on OGX, except those of what does not depend on the host
	$(call QUEUED,ogx,.venv-ogx/bin/python,$(BESIDE),tests/integration,-m 'not one_host')

# It needs no clients: but without them the longest run could not start, and would wait for the end of this one.
.PHONY: test-wheels
test-wheels: $(READY) $(READY_RELEASE) | $(READY_CLIENTS) ## Install the wheels in empty environments of each Python and host, and use them
	$(call PYTEST,wheels,$(PYTHON),tests/wheels/try_wheels.py)

# Flaky tests are found, and shown to be mended, by repetition: on OGX with PYTHON=.venv-ogx/bin/python.
TIMES ?= 20
.PHONY: repeat
repeat: $(READY) $(READY_CLIENTS) ## Run tests TIMES=20 times or until one fails: make repeat TESTS=tests/integration/test_mcp.py
	@for run in $$(seq $(TIMES)); do \
		echo "run $$run of $(TIMES)"; $(PYTHON) -m pytest -x -q --timeout=$(TEST_SECONDS) $(TESTS) || exit 1; \
	done

.PHONY: simulate
simulate: $(READY) ## Run a thousand simulated schedules of servers that fail (SIMULATION="--seed 7" replays one)
	@$(PYTHON) -m tests.simulation $(SIMULATION)

.PHONY: fuzz
fuzz: $(READY) ## Send a live stack valid and invalid requests generated from its description, for a minute or more
	FUZZ_EXAMPLES=40 $(PYTHON) -m pytest tests/integration/test_fuzz.py

.PHONY: test-gpt-oss
test-gpt-oss: $(READY_GPT_OSS) $(READY_OGX) ## Run the tests of the gpt-oss provider, in a separate environment with torch
	$(call QUEUED,gpt-oss,.venv-gpt-oss/bin/python,$(BESIDE),tests/gpt_oss,-c tests/gpt_oss/pytest.ini)

.PHONY: bench
bench: $(READY) ## Compare the server with the host's own provider (BENCH=--quick: one short round)
	@$(PYTHON) -m benchmarks.overhead $(BENCH)

.PHONY: bench-durability
bench-durability: $(READY) ## Kill servers while they make responses, and count lost responses (BENCH=--ci: a short run)
	@$(PYTHON) -m benchmarks.durability $(BENCH)

.PHONY: bench-batches
bench-batches: $(READY) ## Measure lines of batches, also of other servers (BENCH=--short: a small round; --peers: these only)
	@$(PYTHON) -m benchmarks.batches $(BENCH)

.PHONY: bench-batch-durability
bench-batch-durability: $(READY) ## Kill servers while they run a batch, and count lost lines (BENCH=--ci: a short run)
	@$(PYTHON) -m benchmarks.batch_durability $(BENCH)

.PHONY: bench-rivals
bench-rivals: $(READY) ## Compare the server with others of the same API (BENCH=--short: a small round)
	@$(PYTHON) -m benchmarks.rivals $(BENCH)

.PHONY: bench-stores
bench-stores: $(READY) ## Measure each store: responses a second, latencies, bytes
	@$(PYTHON) -m benchmarks.stores $(BENCH)

.PHONY: bench-notifications
bench-notifications: $(READY) ## Measure the delay of notifications between servers, and the store calls of waiting
	@$(PYTHON) -m benchmarks.notifications $(BENCH)

$(READY_DOCS): constraints/docs.txt $(INSTALL_SCRIPTS) | $(READY)
	@rm -rf .venv-docs
	@scripts/make-venv .venv-docs
	@scripts/install-into .venv-docs --quiet --no-deps --requirement constraints/docs.txt
	@touch $@

.PHONY: docs
docs: $(READY_DOCS) ## Build the documentation into site/; warnings and broken links fail
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.PHONY: lint
lint: $(READY) ## Check style and formatting
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

.PHONY: modules
modules: ## Say in a line each what is in the modules
	@git ls-files '*.py' '*.js' ':!tests' | xargs awk 'FNR == 1 { gsub(/^("""|\/\/ |\/\*\*? *)|"""$$/, ""); print FILENAME ": " $$0 }'

.PHONY: tables
tables: $(READY) ## Write new settings and metrics into the tables of the documentation, and the template with all settings
	.venv/bin/python -m tests.support.documented_tables

.PHONY: format
format: $(READY) ## Repair style and formatting
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: types
types: types-llama-stack types-gpt-oss ## Check types

.PHONY: types-llama-stack
types-llama-stack: $(READY)
	.venv/bin/mypy

.PHONY: types-gpt-oss
types-gpt-oss: $(READY_GPT_OSS)
	.venv-gpt-oss/bin/mypy --config-file providers/gpt_oss/pyproject.toml

.PHONY: golden
golden: $(READY) ## Write what this version stores into tests/golden/, before its tag; later versions have to read it
	@$(PYTHON) -m tests.support.golden_store

$(READY_RELEASE): constraints/release.txt $(INSTALL_SCRIPTS) | $(READY)
	@scripts/make-venv .venv-release
	@scripts/install-into .venv-release --quiet --no-deps --requirement constraints/release.txt
	@touch $@

# The folder of what is built.
DIST ?= dist
.PHONY: wheels
wheels: ## Build the wheels into dist/, for pip and uv on this machine, without setting up an environment
	@scripts/build-wheels $(DIST)

.PHONY: release
release: $(READY) $(READY_RELEASE) ## Build wheels, sdists, SBOM and checksums into dist/, and check them as an index would
	@scripts/release $(DIST)

.PHONY: release-check
release-check: release ## Do all of a release but the tag and the upload: build, install on each Python and host, start, ask
	$(call PYTEST,release,env RELEASE=$(DIST) $(PYTHON),--numprocesses=2 --dist=load tests/wheels/try_wheels.py)
	@scripts/release-state $(DIST)

.PHONY: constraints
constraints: $(READY) ## Resolve every dependency again and pin the newest versions that go together
	@scripts/renew-constraints .venv/bin/uv

.PHONY: clean
clean: ## Remove what the other targets created, but not the responses that `make serve` keeps in .state
	rm -rf .venv .venv-run .venv-ogx .venv-gpt-oss .venv-docs .venv-model-servers .venv-litellm .venv-release .clients .rivals .promtool site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
