# Two commands for a fresh machine: `make demo` and `make test`. Everything lands in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A process per core, four at most; tests of one file stay together, for they share what is dear to make.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile
# The suite starts a hundred processes: what one has compiled is kept for the others, whatever the environment says.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: install install-dev demo docs dist test test-slow coverage check check-types check-style audit clean help

help:
	@echo "make demo       install, then attack the embedded models on the embedded images (under 2 minutes on 2 cores)"
	@echo "make test       install, then run the test suite without the tests marked slow"
	@echo "make test-slow  run the tests marked slow"
	@echo "make coverage   run make test under coverage, then print the least covered modules and the total"
	@echo "make check      ruff, mypy --strict, import-linter, bandit, the tests of the built wheel, and the site of the documentation"
	@echo "make docs       show the documentation at http://127.0.0.1:8000, as it is being written"
	@echo "make dist       build wheel and sdist, check them, and write the bill of materials build/sbom.json"
	@echo "make audit      ask PyPI for known vulnerabilities of the installed packages (needs the network)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

# One stamp per set of requirements, so that nothing is installed twice.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

# All at once: a resolution takes a quarter of a minute.
$(VENV)/installed-dev: pyproject.toml requirements/peers.txt | $(BIN)/python
	$(PIP) --editable ".[dev,docs,train]" --requirement requirements/peers.txt
	$(PIP) --no-deps "torchattacks>=3.5"
	@touch $(VENV)/installed $@

install: $(VENV)/installed

install-dev: $(VENV)/installed-dev

demo: install
	$(BIN)/vitattack eval tiny-vit fgsm pgd auto --limit 100
	$(BIN)/vitattack eval tiny-vit-standard fgsm pgd auto --limit 100

test: install-dev
	$(PYTEST) -m "not slow" $(PARALLEL)

test-slow: install-dev
	$(PYTEST) -m slow

# Apart from make test: before Python 3.12, tracing costs 20 to 75 % of the time.
coverage: install-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m "not slow"
	$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --sort=cover | sed -n 1,22p
	@echo "total: $$($(BIN)/coverage report --format=total) % of the lines"

# Types take as long as all the rest: two at a time.
check:
	@$(MAKE) --no-print-directory --jobs=2 check-types check-style

check-types: install-dev
	$(BIN)/mypy

check-style: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive vitattack cli
	$(BIN)/python -P -m pytest tests/test_packaging.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Wheel and sdist, checked as PyPI will check them, and a bill of materials of what they run on (CycloneDX).
dist: install-dev
	rm -rf dist build && mkdir build
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json $(BIN)/python
	$(BIN)/python -c "from importlib.metadata import version; print(version('vitattack'))" > build/version

# Wheels of torch from its own index carry a local version, which no list of vulnerabilities knows.
audit: install-dev
	$(BIN)/python -m pip freeze --exclude-editable | sed "s/+[a-z0-9.]*$$//" > $(VENV)/audit.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement $(VENV)/audit.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*
