# Two commands cover everything on a fresh machine: `make demo` shows the main job, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
INSTALLED := $(VENV)/.installed
SERVER := $(VENV)/.server
TESTS_INSTALLED := $(VENV)/.installed-tests
READY := $(VENV)/.ready
TESTS_READY := $(VENV)/.ready-tests
INSTALL := $(BIN)/python .ci/packages.py -c constraints.txt
# Sandboxes can't write compiled files. What they don't import is left out: other processes compile it when they first do.
# Some packages have files of Python 2, which fail.
NOT_COMPILED := '/(tests?|_inductor/(codegen|kernel)|alembic|botocore|fontTools|gevent|gunicorn|hera|hypothesis|kubernetes|$\
	libcst|matplotlib|mypyc?|openai|pip|plotly|posthog|setuptools|sqlalchemy|sympy/physics|textual|transformers/models)/'
COMPILE := $(BIN)/python -m compileall -q -j 0 -x $(NOT_COMPILED) $(VENV)/lib >/dev/null 2>&1 || true
BUILD ?= docker build
CLUSTER_TESTS ?= cluster and not slow
# CI sets SECOND_CHANCE: what failed beside other tests runs once more, by itself; what passes then is printed as flaky.
again = $(if $(SECOND_CHANCE),|| { echo "What failed runs again by itself: a test that passes now is flaky and a bug of its own"; \
	$(BIN)/pytest $(1) --last-failed --last-failed-no-failures none -q -rA --show-capture no; })
# A worker per core, four at most. Each collects everything and imports torch, MLflow and the rest for itself: about 20 s
# of CPU time, more than another one gains while tests wait. Worksteal gives each a part of the files in order: what a
# file shares is made once.
SPREAD := -n logical --maxprocesses 4 --dist worksteal
WORKFLOWS_FOR_USERS := $(wildcard templates/github/*.yaml)

.PHONY: setup demo test test-all attack check check-style check-types check-imports check-project check-github unit integration browser soak test-cluster test-cluster-all images image-gpu golden bench bench-release bench-precision \
	bench-search bench-cluster bench-kubernetes bench-own bench-autoscale bench-pipeline bench-planner bench-proof bench-scoring bench-text docs mutants fuzz zoo check-gpu constraints clean

# The bundled server's environment is made while Python's packages are compiled.
setup:
	@$(MAKE) --no-print-directory $(TESTS_INSTALLED)
	@$(MAKE) --no-print-directory -j 2 $(SERVER) $(TESTS_READY)

# What the demo needs, and no more: these are somebody's first five minutes.
$(INSTALLED): pyproject.toml constraints.txt runtime/serving/triton/requirements.txt .ci/packages.py
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[local,torch,sklearn]'
	@touch $@

SERVER_SOURCES := $(shell find runtime/serving/triton/backends -name "*.[ch]") $(wildcard runtime/serving/triton/building/*.py)
$(SERVER): $(INSTALLED) $(SERVER_SOURCES)
	$(BIN)/python -m shiplift.runtime.serving.triton.environment
	@touch $@

$(READY): $(INSTALLED)
	@$(COMPILE)
	@touch $@

$(TESTS_INSTALLED): $(INSTALLED)
	$(INSTALL) -e '.[all,dev,catboost,generation,transformers]'
	$(INSTALL) --no-deps silero-vad  # its ONNX file
	@touch $@

$(TESTS_READY): $(TESTS_INSTALLED)
	@$(COMPILE)
	@touch $(READY) $@

demo:  ## the whole workflow: three versions, one refused, one promoted under load, one rolled back
	@$(MAKE) --no-print-directory -j 2 $(SERVER) $(READY)
	@$(BIN)/shiplift demo

test: check unit integration  ## what needs no cluster, in ten minutes
test-all: export HYPOTHESIS_PROFILE = long
test-all: check integration  ## the same, the tests that take longest, and property tests with many examples
	$(BIN)/pytest tests/unit tests/project $(SPREAD) -q
	$(BIN)/pytest tests/integration -n 2 --dist loadfile -q -m 'slow and not large and not alone'
	$(BIN)/pytest tests/integration -q -m 'slow and alone'
	$(BIN)/pytest tests/browser -q -rs

# What takes seconds runs beside what takes a minute; the output of each is printed as a whole. mypy's own workers
# (--num-workers) are not used: they must start within seconds, which on a busy machine they don't.
check: setup  ## style, types, import order, layout, documentation, tools, workflows
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check-types check-style check-imports check-project check-github

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

check-types:
	$(BIN)/mypy

check-imports:
	$(BIN)/lint-imports --no-logo

check-project:  ## layout, what processes import, documentation, and the tools in benchmarks/
	$(BIN)/pytest tests/project -q -m 'not slow'

check-github:  ## workflows, including those that users copy, and issue forms; offline
	$(BIN)/zizmor --offline --quiet --no-progress .github $(WORKFLOWS_FOR_USERS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml $(WORKFLOWS_FOR_USERS)
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms \
		$(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

unit: setup
	$(BIN)/pytest tests/unit $(SPREAD) -q --durations=15 -m 'not slow' $(call again,tests/unit)

integration: setup  ## against the real MLflow, Triton and perf_analyzer on loopback
	$(BIN)/pytest tests/integration -n 3 --dist loadgroup -q --durations=20 -m 'not large and not slow' \
		$(call again,tests/integration)

# The system's Chromium (`apt-get install chromium`, or SHIPLIFT_CHROMIUM); without one the tests are skipped. The
# screenshots in docs/images are written by `make browser SCREENSHOTS=1`.
BROWSER := $(VENV)/.installed-browser
$(BROWSER): $(TESTS_INSTALLED)
	$(INSTALL) -e '.[browser]'
	@touch $@

browser: setup $(BROWSER)  ## the live page in a real Chromium: accessible, by keyboard, on a phone, a release watched live
	SHIPLIFT_SCREENSHOTS=$(SCREENSHOTS) $(BIN)/pytest tests/browser -q -rs

# What SECURITY.md promises, attacked. Nothing of it writes outside of the tests' own folders, whatever does not hold.
ATTACKS := tests/attack tests/unit/runtime/confinement tests/unit/runtime/host/test_listeners.py \
	tests/unit/runtime/model/python/test_hostile_wheels.py tests/unit/runtime/guest/python/test_worker.py \
	tests/unit/runtime/guest/pipelines/test_pipeline_pool.py tests/unit/runtime/guest/fronts

attack: setup  ## hundreds of attacks on what holds hostile code, each layer switched off once, and parsers fed with anything
	$(BIN)/pytest $(ATTACKS) -n 2 -q

# Every other round runs beside a process that keeps a core busy. The first failure ends it.
soak: setup  ## the unit and integration tests ten times in a row: what fails now and then is found (two hours)
	@for round in 1 2 3 4 5 6 7 8 9 10; do \
		echo "round $$round"; busy=; \
		if [ $$((round % 2)) = 0 ]; then $(BIN)/python -c 'while True: pass' & busy=$$!; fi; \
		$(MAKE) --no-print-directory SECOND_CHANCE= unit integration; status=$$?; \
		[ -z "$$busy" ] || kill $$busy; [ $$status = 0 ] || exit $$status; \
	done

test-cluster: setup  ## on a real Kubernetes cluster: KUBECONFIG's, or one that SHIPLIFT_CLUSTER_SCRIPT starts
	@[ -n "$$KUBECONFIG$$SHIPLIFT_CLUSTER_SCRIPT" ] || { echo "no cluster: set KUBECONFIG, or SHIPLIFT_CLUSTER_SCRIPT to a" \
		"script that starts one, such as tests/cluster/kind.sh (see CONTRIBUTING.md)" >&2; exit 2; }
	$(BIN)/pytest tests/cluster -n 2 --dist loadfile -q --durations=20 --timeout=2400 -m '$(CLUSTER_TESTS)' \
		$(call again,tests/cluster --timeout=2400)

test-cluster-all: CLUSTER_TESTS = cluster and not alone
test-cluster-all: test-cluster  ## the same, and the tests that take minutes each
	$(BIN)/pytest tests/cluster -q --timeout=2400 -m alone

images:  ## the images that every cluster needs; BUILD is the command: docker build, podman build, buildah build
	$(BUILD) --target server -t localhost/shiplift-server:dev .
	$(BUILD) --target pipeline -t localhost/shiplift-pipeline:dev .

image-gpu:  ## the image in which models are quantized and tuned for NVIDIA targets; gigabytes of CUDA
	$(BUILD) --target gpu -t localhost/shiplift-gpu:dev .

golden: setup  ## regenerate the golden files; read the diff before you commit it
	$(BIN)/pytest tests/unit tests/project -q --update-golden

# Its own small environment: pages and the reference need none of the libraries that models do.
$(DOCS)/.installed: pyproject.toml constraints.txt .ci/packages.py
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python .ci/packages.py -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS)/.installed  ## the documentation, into docs/_build; a warning ends the build
	$(DOCS)/bin/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build

bench-cluster: setup  ## a release, webhooks and thirty models at once, on the Shiplift installed in KUBECONFIG's cluster
	$(BIN)/python -m benchmarks.cluster

check-gpu:  ## what only a machine with an NVIDIA GPU can show; needs only torch and numpy
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m benchmarks.check_gpu; else $(PYTHON) -m benchmarks.check_gpu; fi

bench-precision: setup  ## the precisions on this processor, through the bundled server and against other tools
	$(BIN)/python -m benchmarks.precision

bench: setup  ## Shiplift's champions against what a team would serve by hand (long; `--quick`: minutes)
	$(BIN)/python -m benchmarks.server_comparison

bench-release: setup  ## what a release costs
	$(BIN)/python -m benchmarks.release

bench-search: setup  ## the search against brute force and Model Analyzer (an hour; `--quick`: minutes)
	$(BIN)/python -m benchmarks.search

bench-kubernetes: setup  ## 300 promotions under load, 200 services, the control plane when idle: the installed Shiplift's
	$(BIN)/python -m benchmarks.kubernetes

bench-own: setup  ## what Shiplift itself costs, and how that grows up to 1,000 models x 20 versions (`--quick`: 100)
	$(BIN)/python -m benchmarks.own_cost

bench-autoscale: setup  ## the scaling rule against others, simulated, one core (10 minutes; `--quick`: 2)
	$(BIN)/python -m benchmarks.autoscale

zoo: setup  ## models as people log them: released, and equal to pyfunc, or refused with the right reason (an hour)
	$(BIN)/python -m benchmarks.zoo

bench-pipeline: setup  ## a pipeline's Python in one process with the model, in Triton's processes, and in workers
	$(BIN)/python -m benchmarks.pipeline

bench-planner: setup  ## plans of whole pipelines against every combination, simulated, one core; `--live`: against Triton
	$(BIN)/python -m benchmarks.planner

bench-text: setup  ## what it costs a sentence encoder to take text, against the tokens of it
	$(BIN)/python -m benchmarks.text_in

bench-scoring: setup  ## MLflow's clients against production, and against `mlflow models serve` (`--quick`: minutes)
	$(BIN)/python -m benchmarks.scoring

bench-proof: setup  ## wrong models refused, sabotage noticed, right models kept (hours; `--export-only`: minutes)
	$(BIN)/python -m benchmarks.proof

mutants: setup  ## how many small changes of the pure cores the unit tests notice (one core, half an hour)
	$(BIN)/python -m benchmarks.mutation $(MUTANTS)

# Atheris is no dependency of anything else: it lies apart, and only this command sees it.
FUZZER := $(VENV)/.fuzzer
$(FUZZER): $(TESTS_INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --target $@ atheris==3.0.0
	@touch $@

fuzz: setup $(FUZZER)  ## each parser of foreign bytes, a million executions of Atheris' mutations (one core, hours)
	PYTHONPATH=$(FUZZER) $(BIN)/python -m benchmarks.fuzz $(FUZZ)

constraints: setup $(DOCS)/.installed  ## pin the packages that are installed now
	(head -1 constraints.txt; for bin in $(BIN) $(DOCS)/bin; do $$bin/pip freeze --exclude-editable; done \
		| sed 's/+cpu//' | sort -fu) > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) $(DOCS) docs/_build .shiplift .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
