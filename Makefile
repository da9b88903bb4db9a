# Everything happens in .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL_OPTIONS ?=
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(INSTALL_OPTIONS) --editable

.PHONY: audit demo fuzz test test-large test-oldest docs golden lint types contract lines clean

demo: $(VENV)/installed  ## Install and quantize the model that comes with Detent.
	$(BIN)/detent demo

# Bytecode is written even where the environment says not to: the tests start many processes, which read it.
test: $(VENV)/installed-dev  ## Install the test needs and run the whole suite.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

test-large: $(VENV)/installed-dev  ## The tests with models past 2 GB.
	$(BIN)/python -m pytest -m large

test-oldest:  ## The suite on the oldest versions that are allowed, in a venv of its own.
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' -c tests/oldest.txt
	$(VENV)-oldest/bin/python -m pytest -n auto -m 'not slow'

docs: $(VENV)/installed-docs  ## The manual as a website in site/; a link that leads nowhere is an error.
	$(BIN)/mkdocs build --strict
	@echo '$(BIN)/mkdocs serve shows it, with its search; site/ is for a web server.'

SECONDS ?= 60
fuzz: $(VENV)/installed-dev  ## Feed mutated files to everything that reads files, for SECONDS in all.
	$(BIN)/python -m fuzz --seconds $(SECONDS)

audit: $(VENV)/installed  ## Known weaknesses of the installed dependencies, if pip-audit is there.
	@if $(BIN)/python -m pip_audit --version >/dev/null 2>&1; then $(BIN)/python -m pip_audit; \
	else echo 'Skipped: pip-audit is not installed in $(VENV).'; fi

golden: $(VENV)/installed-dev  ## Whether the bytes that Detent writes are those on record.
	$(BIN)/python -m tools.golden compare

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

contract: $(VENV)/installed-dev
	$(BIN)/lint-imports

lines: $(VENV)/installed-dev  ## Lines per room against lines.toml, and the other habits of the source.
	$(BIN)/python -m tools.house

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[cpu]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) '.[dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest detent-demo site
