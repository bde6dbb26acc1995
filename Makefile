# make demo    a first look               make lint   ruff and mypy
# make test    all tests but extensive    make setup  only the environment (.venv), from constraints.txt
# make bench   speed of the losses        make lock   new versions into constraints.txt
# make docs    the site in docs/_build/html, warnings are errors; docs/recipes.md, from gpaco/recipes
# make release-check   build the package, install it in an empty environment, use it
# make test-fast       only tests that take less than two seconds and start no process and no browser
# make test-extensive  what `make test` leaves out: examples and the like
# make test-all        every test
# make torture         faults for TORTURE_MINUTES=30, resumable; writes the table of docs/reliability.md
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
BIN := .venv/bin
# Two processes with one thread each: threads that wait for each other cost more than they give.
TEST_ENV := OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo

.PHONY: demo test test-fast test-extensive test-all torture lint setup browser bench docs release-check lock clean

demo: .venv/ready
	$(BIN)/gpaco demo --out demo

PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal --durations=20

test: .venv/ready browser
	$(PYTEST)

test-fast: .venv/ready
	$(PYTEST) -m "not process and not browser and not slow and not extensive"

test-extensive: .venv/ready browser
	$(PYTEST) -m extensive

test-all: .venv/ready browser
	$(PYTEST) -m ""

torture: .venv/ready
	$(TEST_ENV) PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m faults.torture

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/loss.py

docs: .venv/ready
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The site: docs/_build/html/index.html"

release-check: .venv/ready
	$(BIN)/python .ci/release_check.py

setup: .venv/ready browser

# The page is tested in a real browser. Install it if that needs no password.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name > /dev/null; then exit 0; fi; done; \
	sudo=; if [ "$$(id -u)" != 0 ]; then sudo="sudo -n"; fi; \
	if command -v apt-get > /dev/null && $$sudo true 2> /dev/null; then \
		echo "Installing chromium, which the page is tested in."; \
		$$sudo apt-get -qq update && $$sudo apt-get -qq install -y --no-install-recommends chromium > /dev/null || true; \
	fi; \
	command -v chromium > /dev/null || echo "No Chromium or Chrome found, tests of the page will fail: install chromium."

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gpaco needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Making .venv and installing the versions of constraints.txt: two to four minutes, 6 GB, once."
	@rm -f $@
	@$(PYTHON) -m venv .venv
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --disable-pip-version-check --progress-bar off \
		-e '.[all]' | awk -v terminal=$$(test -t 2 && echo 1) \
		'/^Collecting/ && terminal { printf "\r%-70.70s", $$0; fflush() } \
		/^(Installing|Successfully)/ { printf "%s%.70s ...\n", terminal ? "\r" : "", $$0; fflush() }'
	@# imagecorruptions-imaug brings opencv-python, whose files need a display's libraries: put the headless ones on top.
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --disable-pip-version-check --quiet --no-deps \
		--force-reinstall opencv-python-headless
	@touch $@

lock:
	@echo "Resolving the newest versions in a new environment: some minutes."
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/pip install --quiet -e '.[all]' hatchling editables
	.lock/bin/pip freeze --exclude-editable > constraints.txt
	rm -rf .lock

clean:
	rm -rf .venv .lock .mypy_cache .pytest_cache .ruff_cache .hypothesis
