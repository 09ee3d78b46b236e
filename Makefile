# Every target makes the virtual environment it needs, from nothing.
#
#   make demo    a small training, fed from a chunked store in three ways
#   make test    run the tests
#   make check   all that .ci/run checks

VENV ?= .venv
BIN := $(VENV)/bin
# Twice quiet: an index of the user's own may warn once for every package that it lacks.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
INSTALL := @echo "installing into $(VENV); PyTorch is large, so the first time takes a while" && \
	$(PIP) -c constraints.txt -e ".[torch,netcdf,viz]"
# Compiled when xloader is installed.
COMPILED := hatch_build.py $(wildcard xloader/compiled/*.[ch])
# The first interpreter that both runs and is new enough: a name on PATH may be an empty shim.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
	done)
# Each thread of the numeric libraries would compete with xloader's own in a test worker.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: demo test sanitize lint format types doctest docs browser linkcheck notebooks ends bench check clean

demo: $(VENV)/.demo
	$(BIN)/xloader demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m tests.versions
	$(TEST_ENV) $(BIN)/python -m pytest -n 3 --dist worksteal --ignore=tests/site $(ARGS)

# The native threads without Python, under the sanitizers of the C compiler.
sanitize: $(VENV)/.dev
	$(BIN)/python -m tests.sanitize $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell docs xloader CHANGELOG.md CONTRIBUTING.md README.md

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

doctest: $(VENV)/.dev
	@$(BIN)/python -m tests.versions
	$(TEST_ENV) $(BIN)/python -m pytest --doctest-modules xloader $(ARGS)

docs: $(VENV)/.dev
	rm -rf docs/_build docs/reference/names
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/site

# Chromium, for the tests that look at the built pages; they are skipped without a browser.
browser: $(VENV)/.dev
	$(BIN)/python -m playwright install --with-deps chromium

# Asks every site that the pages link to, so it is no part of `make check`.
linkcheck: $(VENV)/.dev
	DOCS_ONLINE=1 $(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

notebooks: $(VENV)/.dev
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=120 --timeout=180 notebooks $(ARGS)

ends: $(VENV)/.dev
	$(BIN)/nox

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

check:
	.ci/run

clean:
	rm -rf $(VENV) build dist docs/_build docs/reference/names docs/jupyter_execute
	rm -rf xloader/compiled/*.so .nox .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.base:
	@test -n "$(PYTHON)" || { echo "xloader needs Python 3.11 or newer; pass PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(COMPILED) | $(VENV)/.base
	$(INSTALL)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(COMPILED) | $(VENV)/.base
	$(INSTALL) --group dev
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt $(COMPILED) | $(VENV)/.base
	$(INSTALL) --group bench
	@touch $@
