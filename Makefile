# `make help` lists the targets. A bare clone needs only make and Python 3.11 or newer: the rest goes into .venv,
# in exactly the versions of constraints.txt. pip's own settings (PIP_...) hold as ever.
PYTHON ?= python3
VENV ?= .venv
LAB_ARGS ?=
NOTEBOOKS ?= notebooks
NOTEBOOK ?=
FRESH ?=

# The versions to install; with none, the newest that pyproject.toml allows.
PINS ?= constraints.txt
# So many test files run side by side: while some wait for a time-out, others compute.
WORKERS ?= 4
# Which part `make test` runs besides what always runs and what belongs to changes (.ci/parts.py): its turn, or 0 to 3.
TURN ?= next
# What counts as changed: what differs from this commit, or from the last landing where none is given.
SINCE ?=
RUNS ?= 20
# The chaos soak draws a seed where none is given; ONLY is the number of one fault to suffer alone.
SEED ?=
FAULTS ?= 200
ONLY ?=
# Whose packages `make test-hosted` takes: those of .ci/hosted/$(HOST).txt.
HOST ?= colab
# Which lessons' exercises are solved there.
SOLVED = lesson00- or lesson01- or lesson02- or lesson03- or lesson04- or lesson05- or lesson09-
# The package index to take torch from where .venv is made, such as that of its CPU builds; with none, pip's own.
TORCH_INDEX ?=
# What `make test-gpu` checks: a GPU, or with "cpu" itself, on CPU ranks; and a file for its table, besides the screen.
DEVICE ?= gpu
TABLE ?=

BIN = $(VENV)/bin
# Without bytecode, each of the hundred programs that the tests start would compile labkit for itself.
unexport PYTHONDONTWRITEBYTECODE
FROM_INDEX = $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)")
INSTALL = $(BIN)/python -m pip --disable-pip-version-check install $(if $(PINS),-c $(PINS),-U --upgrade-strategy eager)
PYTEST = $(BIN)/python -m pytest
BESIDE = --dist loadfile --no-loadscope-reorder
BROWSE = CHROMIUM="$$(.ci/chromium)" && export CHROMIUM &&
# Strict, never --nbval-lax: that one passes every wrong output (tests/test_nbval_strict.py).
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=.ci/nbval-sanitize.cfg
SUITE = $(PYTEST) -n $(WORKERS) $(BESIDE) $(NBVAL) tests $(NOTEBOOKS) $(OTHER)
# .jupyter/ holds defaults, below a learner's own settings: widgets survive a reload, no question about news.
# Its settings of the server let kernels listen at Unix sockets.
# Jupyter refuses root, which containers and CI often are, unless told.
AS_ROOT = $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help lab back test test-all landed quick lint format test-notebooks test-browser test-gpu test-oldest test-newest \
  test-hosted other hosted soak again notebooks book bench bundle clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

lab: $(VENV)/.lab ## renew your copies in my-notebooks/ and open them in JupyterLab (LAB_ARGS=--no-browser, TORCH_INDEX=)
	$(BIN)/python -m labkit my-notebooks
	@$(BIN)/python -m labkit doctor --quick || true # it warns, and never keeps anybody from starting
	JUPYTER_CONFIG_PATH="$(CURDIR)/.jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	  $(BIN)/python -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir=my-notebooks \
	  --LabApp.default_url=/lab/tree/index.ipynb $(AS_ROOT) $(LAB_ARGS)

back: $(VENV)/.lab ## put one notebook back to the workbook's version and keep yours beside it (NOTEBOOK=02)
	$(BIN)/python -m labkit my-notebooks --back "$(NOTEBOOK)"

test: $(VENV)/.test ## run what is cheap, what belongs to changes, and of the rest a part in turn (TURN=0 to 3, SINCE=HEAD)
	$(BROWSE) $(SUITE) --turn=$(TURN) $(if $(SINCE),--since=$(SINCE))

test-all: $(VENV)/.test ## run every test
	$(BROWSE) $(SUITE) --turn=all

landed: $(VENV)/.test ## note that HEAD has landed, before new work begins: the next turn, and changes count from here
	$(BIN)/python .ci/parts.py

quick: lint ## what can be known in a minute: lint, the quick tests, a few of them on live ranks
	$(PYTEST) -n 2 $(BESIDE) --hypothesis-profile=quick tests --ignore=tests/browser -m "smoke or not (live or slow or hosts)"

lint: $(VENV)/.test ## ruff, also inside %%px cells, the notebooks' rules, and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python .ci/lint_notebooks.py
	$(BIN)/python .ci/notebooks.py --check
	$(BIN)/mypy

format: $(VENV)/.test ## format the code, also inside %%px cells
	$(BIN)/ruff format
	$(BIN)/python .ci/lint_notebooks.py --fix

test-notebooks: $(VENV)/.test ## run the notebooks and compare every output with the committed one
	$(PYTEST) $(NBVAL) $(NOTEBOOKS) $(OTHER)

test-browser: $(VENV)/.test ## use the workbook in JupyterLab, in a real Chromium
	$(BROWSE) $(PYTEST) tests/browser

test-gpu: $(VENV)/.test ## check on an NVIDIA GPU, in ten minutes, what CPUs cannot tell; ends with a table (TABLE=file)
	DEVICE="$(DEVICE)" TABLE="$(TABLE)" $(PYTEST) tests/gpu/checks.py

test-oldest: ## run the tests on the oldest versions, in .venv-oldest (PYTHON=python3.11)
	$(MAKE) VENV=.venv-oldest PINS=.venv-oldest/pins.txt other

test-newest: ## run the tests on the newest versions, in .venv-newest (PYTHON=python3.13)
	rm -f .venv-newest/.lab .venv-newest/.test
	$(MAKE) VENV=.venv-newest PINS= other

test-hosted: ## run lessons 00 to 05 and 09 on a hosted notebook's packages (HOST=colab, kaggle, sagemaker; PYTHON=python3.12)
	$(MAKE) VENV=.venv-$(HOST) PINS=.ci/hosted/$(HOST).txt hosted

# Of the tests' packages only those that suit an old Jupyter; and of the tests the lessons, their solutions, and whose names labkit uses.
hosted: $(VENV)/.hosted $(VENV)/nbval.cfg
	$(PYTEST) $(NBVAL) --nbval-sanitize-with=$(VENV)/nbval.cfg -m "not pinned" \
	  $(or $(NOTEBOOK),notebooks/0[0-5]-*.ipynb notebooks/09-*.ipynb tests/rank/test_torch_internals.py tests/live/test_kernel_internals.py)
	$(if $(NOTEBOOK),,$(PYTEST) tests/live/test_exercises.py -k "test_the_solution_is_right and ($(SOLVED))")

# Versions that are not the pinned ones: no test of the pins, and pictures are compared by their words.
other: OTHER = -m "not pinned" --nbval-sanitize-with=$(VENV)/nbval.cfg
other: $(VENV)/nbval.cfg test-all

soak: $(VENV)/.test ## random faults in a row, a right answer after each, nothing leaked (SEED=, FAULTS=200, ONLY=57)
	$(BIN)/python .ci/chaos.py --faults=$(FAULTS) $(if $(SEED),--seed=$(SEED)) $(if $(ONLY),--only=$(ONLY))

again: $(VENV)/.test ## run the live tests RUNS times, every second time on busy cores; name each test of two verdicts
	$(BIN)/python .ci/again.py --runs=$(RUNS) -n $(WORKERS) $(BESIDE) tests/live

notebooks: $(VENV)/.test ## run the notebooks and write their outputs in normal form (NOTEBOOKS=path, FRESH=1)
	$(BIN)/python .ci/notebooks.py $(if $(FRESH),--fresh) $(NOTEBOOKS)

book: $(VENV)/.book ## make the executed notebooks a site in build/book, to open in a browser
	$(BIN)/python book build/book --quiet
	@echo "The book is in build/book: open build/book/index.html, or serve it, so that search shows what it found:"
	@echo "  $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/book"

bench: $(VENV)/.test ## measure against torchrun, plain ipyparallel and MPI (BENCH_ARGS=--write for RESULTS.md)
	@for file in benchmarks/*.py; do echo "$$file"; $(BIN)/python "$$file" $(BENCH_ARGS) || exit 1; done

bundle: $(VENV)/.made ## make build/bundle, a folder that installs the workbook without a network (TORCH_INDEX=)
	rm -rf build/bundle
	mkdir -p build/bundle/wheels
	$(BIN)/python -m pip wheel --no-deps -w build/bundle/wheels "$$(grep ^torch== constraints.txt)" $(FROM_INDEX)
	$(BIN)/python -m pip wheel -c constraints.txt -f build/bundle/wheels -w build/bundle/wheels setuptools '.[lab]'
	rm build/bundle/wheels/collectives_workbook-*
	git archive --format=tar.gz -o build/bundle/workbook.tar.gz HEAD
	$(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])' >build/bundle/python
	cp .ci/bundle/* build/bundle

clean: ## remove what make made, but not your notebooks: .venv, builds and caches
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-colab .venv-kaggle .venv-sagemaker build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./my-notebooks -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamps say what .venv holds: a second run installs nothing until one of these files changes.
$(VENV)/.lab: $(VENV)/.made pyproject.toml $(PINS)
	$(INSTALL) -e '.[lab]'
	@touch $@

$(VENV)/.book: $(VENV)/.made pyproject.toml $(PINS)
	$(INSTALL) -e '.[book]'
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml $(PINS)
	$(INSTALL) -e '.[lab,test,mpi,kernels,book]'
	@touch $(VENV)/.lab $(VENV)/.book $@

$(VENV)/.hosted: $(VENV)/.made pyproject.toml $(PINS)
	$(INSTALL) -e . hypothesis nbval packaging pytest pytest-xdist pyyaml
	@touch $@

$(VENV)/pins.txt: .ci/oldest.txt constraints.txt | $(VENV)/.made
	awk -F == '!seen[tolower($$1)]++' $^ > $@

$(VENV)/nbval.cfg: .ci/nbval-sanitize.cfg .ci/nbval-other-versions.cfg | $(VENV)/.made
	cat $^ > $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The workbook needs Python 3.11 or newer, and $(PYTHON) is not. Name another: make PYTHON=python3.12 ..."; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(if $(TORCH_INDEX),$(INSTALL) --no-deps torch $(FROM_INDEX))
	@touch $@
