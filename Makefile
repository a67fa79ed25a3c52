# Needs only make and python3 (3.11, 3.12 or 3.13): all else goes into .venv, exactly as constraints.txt says.
#
#   make demo    the demo in the console (ARGS="--explore" and other options of `paceline demo` are passed on)
#   make test    lint, types, import contracts and every test; those of tests/cluster also run on the cluster of PACELINE_KUBECONFIG
#   make test-vllm  the tests with a real vLLM on the CPU, in an environment of their own (3.8 GB in the user's cache folder)
#   make test-kernels  the tests of the MoE kernels that need triton: its interpreter and its compilers, in the same environment
#   make demo-vllm  two replicas of a tiny random model on that vLLM, under LoadGen, in the console
#   make bench   the ratios quoted in README.md, written to build/bench.json
#   make bench-vllm  those that need vLLM
#   make pictures  docs/pictures (every screen at three sizes, from sample data) and docs/keys.md
#   make dashboards  manifests/monitoring: Grafana's dashboard, and the alert rules as Kubernetes objects
#   make lint    ruff, mypy and import-linter alone
#   make clean   .venv, caches and build; runs/ stays

VENV := .venv
BIN := $(VENV)/bin
VLLM_ENVIRONMENT := python3 tests/vllm/environment.py
ARGS ?=

.PHONY: help demo demo-vllm test test-vllm test-kernels bench bench-vllm pictures dashboards lint clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.ready
	@$(BIN)/paceline demo $(ARGS); code=$$?; \
	echo "the command is $(BIN)/paceline (or: source $(BIN)/activate, then paceline)"; exit $$code

# PACELINE_VLLM_PYTHON: an environment of one's own instead of the one of the tests.
demo-vllm: $(VENV)/.ready
	@python="$${PACELINE_VLLM_PYTHON:-$$($(VLLM_ENVIRONMENT) python)}" && test -n "$$python" && \
	PACELINE_VLLM_PYTHON="$$python" $(BIN)/paceline demo --engine vllm-cpu $(ARGS)

# Files share the machine, more of them than it has cores, since most of them wait; only what judges rates and latencies (marked
# alone) has it to itself. With ARGS it is one pytest with these arguments. RERUNS=1 tries a failed test once more and lists it as
# R: what passes then is a race to look into.
PYTEST := $(BIN)/python -m pytest $(if $(RERUNS),--reruns $(RERUNS) -rR)
test: lint
ifeq ($(ARGS),)
	$(PYTEST) -m "not bench" -n 4 --dist loadfile tests/unit tests/console
	$(PYTEST) -m "not bench" -n 3 --dist loadfile tests/cluster tests/metrics
	$(PYTEST) -m "not bench and not alone" -n 3 --dist loadfile --durations=15 tests/system
	$(PYTEST) -m alone --durations=15 tests/system
else
	$(PYTEST) -m "not bench" --ignore=tests/vllm --ignore=tests/kernels $(ARGS)
endif

# Where there can be no vLLM, the reason is printed and .venv reports every test as skipped for it.
test-vllm: $(VENV)/.ready
	@$(VLLM_ENVIRONMENT) test --or $(BIN)/python --durations=15 $(ARGS)

# Two processes: triton decides when it defines a kernel whether it interprets or compiles it.
test-kernels: $(VENV)/.ready
	@TRITON_INTERPRET=1 $(VLLM_ENVIRONMENT) test --or $(BIN)/python -n 2 --durations=8 tests/kernels/interpreter
	@$(VLLM_ENVIRONMENT) test --or $(BIN)/python --durations=8 tests/kernels/compile

bench: $(VENV)/.ready
	$(BIN)/python -m tests.bench $(ARGS)

bench-vllm:
	@python="$$($(VLLM_ENVIRONMENT) python)" && test -n "$$python" && \
	PYTHONPATH=. "$$python" -m tests.bench $(or $(ARGS),vllm_round_trip openai_client)

pictures: $(VENV)/.ready
	$(BIN)/python tests/console/pictures.py

dashboards: $(VENV)/.ready
	$(BIN)/python manifests/monitoring/grafana/make_dashboard.py
	$(BIN)/python manifests/monitoring/make_rules.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamp is written last: an installation that failed is tried again by the next make.
$(VENV)/.ready: pyproject.toml constraints.txt
	@set -e; \
	suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; \
	if ! $(BIN)/python -c "$$suits" 2>/dev/null; then \
	  python=''; \
	  for name in python3 python3.13 python3.12 python3.11; do \
	    if "$$name" -c "$$suits" 2>/dev/null; then python=$$name; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "paceline needs Python 3.11, 3.12 or 3.13 (LoadGen has wheels for these); python3 here is" \
	      "$$(python3 -V 2>/dev/null || echo missing), and python3.13, python3.12 and python3.11 were not found either" >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "$$python cannot make environments with pip (Debian and Ubuntu package that apart):" \
	      "apt-get install python$$version-venv" >&2; exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$python" -V)"; \
	  rm -rf $(VENV); "$$python" -m venv $(VENV); \
	fi; \
	echo "installing into $(VENV) (a minute or two the first time)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	touch $@
