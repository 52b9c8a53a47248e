# `make demo` and `make test` work on a fresh machine with Python 3.11 or later; they make their own .venv.
PYTHON ?= python3
BIN    := .venv/bin
PYTEST := $(BIN)/python -m pytest
JOBS   ?= auto

# The CPU build of torch, and no other: where an index does not have it under this name, as for macOS,
# say which one: make test-reference TORCH=torch==2.13.0
TORCH  ?= torch==2.13.0+cpu

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PINNED      := $(BIN)/python $(PIP_INSTALL) --constraint constraints.txt
INSTALL     := $(PINNED) --editable ./runtime --editable

# The tests start many processes, and each would compile all modules again where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

# All targets that `make help` lists, and nothing else, are names of no files.
.PHONY: $(shell awk -F: '/^[a-z-]+:.*\#\# / {print $$1}' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/base: pyproject.toml runtime/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("einc needs Python 3.11 or later, this is " + sys.version) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/dev: .venv/base
	$(INSTALL) '.[dev]'
	touch $@

.venv/triton: .venv/dev
	$(INSTALL) '.[dev,triton]'
	touch $@

.venv/mpi: .venv/dev
	$(INSTALL) '.[dev,mpi]'
	touch $@

.venv/serve: .venv/dev
	$(INSTALL) '.[dev,serve,client]'
	touch $@

.venv/reference: .venv/dev
	$(PINNED) '$(TORCH)'
	$(INSTALL) '.[dev,reference]'
	touch $@

.venv/onnx: .venv/dev
	$(INSTALL) '.[dev,onnx]' onnxruntime
	$(BIN)/python $(PIP_INSTALL) --no-deps --upgrade --target build/onnx magika rapidocr-onnxruntime silero-vad
	touch $@

.venv/browser: .venv/dev
	$(INSTALL) '.[dev,browser]'
	touch $@

.venv/site: .venv/base
	$(INSTALL) '.[site]'
	touch $@

.venv/notebooks: .venv/dev
	$(INSTALL) '.[dev,notebooks]'
	touch $@

.venv/release: .venv/dev
	$(INSTALL) '.[dev,release]'
	touch $@

# What all parts of .ci/run need, in one go: each of the above installs both packages again.
.venv/all: .venv/base
	$(PINNED) '$(TORCH)'
	$(INSTALL) '.[dev,triton,mpi,serve,client,reference,browser,site,notebooks,release]'
	touch .venv/dev $(addprefix .venv/,triton mpi serve reference browser site notebooks release all)

.venv/truth: .venv/dev
	$(INSTALL) '.[dev,truth]'
	touch $@

build/aiconfigurator/installed:
	$(PYTHON) -m venv build/aiconfigurator
	build/aiconfigurator/bin/python $(PIP_INSTALL) aiconfigurator==0.12.0
	touch $@

aiconfigurator: build/aiconfigurator/installed  ## ask aiconfigurator what it predicts of steps of models (for docs/truth/steps.md)
	build/aiconfigurator/bin/python -m tests.truth.aiconfigurator

demo: .venv/base  ## compile a trained network for eight sites, run the plan, check and explain it
	$(BIN)/python models/digits/demo.py

test: .venv/dev  ## the test suite (a few minutes on two cores)
	$(PYTEST) -n $(JOBS)

test-slow: .venv/dev  ## the exhaustive versions of the sampled checks
	$(PYTEST) -n $(JOBS) -m slow
	$(PYTEST) -n $(JOBS) -m hypothesis --hypothesis-profile=all

test-kills: .venv/dev  ## a training run that is killed at 20 random moments, and goes on: the bits of one that was not
	$(PYTEST) -m slow tests/training_runs

test-machines: .venv/dev  ## the slow checks of machines: no random plan is faster where GPUs have no peers, and plans for detected machines
	$(PYTEST) -n $(JOBS) -m slow tests/machines tests/search/test_no_peers.py
	$(BIN)/python -m tests.machines.detected_plans

test-new: .venv/dev  ## run the property tests on new random examples; print those that fail
	$(PYTEST) -n $(JOBS) -m hypothesis --hypothesis-profile=new

mutate: .venv/dev  ## 100,000 changed plans: each is refused, or computes what the model says
	$(BIN)/python -m tests.mutation

interrupts: .venv/dev  ## 500 interrupts at random moments of every command, from its first instruction on
	$(BIN)/python -m tests.interrupts

WHEELS := dist/einc_runtime-*.whl "$$(echo dist/einc-*.whl)[generate,serve]"

build/lowest.txt: pyproject.toml runtime/pyproject.toml tests/versions/lowest.py
	mkdir -p build
	$(PYTHON) -m tests.versions.lowest > $@

test-newest:  ## the suite with the newest versions of everything, in a fresh environment (build/newest)
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/python $(PIP_INSTALL) --editable ./runtime --editable '.[dev]'
	build/newest/bin/python -m pytest -n $(JOBS)

test-lowest: build/lowest.txt  ## the suite with the lowest versions that pyproject.toml allows, in build/lowest
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python $(PIP_INSTALL) --constraint build/lowest.txt --editable ./runtime --editable '.[dev]'
	build/lowest/bin/python -m pytest -n $(JOBS)

dist: .venv/release  ## the wheels and source archives of both packages, checked, in dist
	rm -rf dist
	for project in runtime .; do $(BIN)/python -m build --no-isolation --outdir dist $$project >/dev/null || exit 1; done
	$(BIN)/python -m twine check --strict dist/*

test-newest-short: dist  ## the first commands of a stranger, with the wheels and the newest versions of what they need
	$(PYTHON) -m venv --clear build/newest-short
	build/newest-short/bin/python $(PIP_INSTALL) $(WHEELS)
	build/newest-short/bin/python tests/versions/short.py

test-lowest-short: build/lowest.txt dist  ## the same with the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear build/lowest-short
	build/lowest-short/bin/python $(PIP_INSTALL) --constraint build/lowest.txt $(WHEELS)
	build/lowest-short/bin/python tests/versions/short.py

plans-of-newest: test-newest-short
	PYTHONPATH=runtime build/newest-short/bin/python -m tests.versions.digests > build/newest.json

plans-of-lowest: test-lowest-short
	PYTHONPATH=runtime build/lowest-short/bin/python -m tests.versions.digests > build/lowest.json

test-versions: plans-of-newest plans-of-lowest  ## the bytes of 40 plans, which no version of what einc needs changes
	build/newest-short/bin/python -m tests.versions.digests --compare build/newest.json build/lowest.json

test-pythons: .venv/dev  ## the suite with Python 3.13 and 3.14 from Debian's packages, in build (needs root, unshare and debootstrap)
	command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
	$(BIN)/python -m tests.versions.pythons trixie sid

test-processors: .venv/dev  ## kernels and plans at each level of instructions that this processor has (EINC_PROCESSOR)
	$(BIN)/python -m tests.processors --jobs $(JOBS)

test-arm: .venv/dev  ## kernels and plans as aarch64, emulated by qemu (needs root: Debian's qemu-user-static, debootstrap)
	-command -v qemu-aarch64-static >/dev/null && command -v debootstrap >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user-static debootstrap >/dev/null; }
	$(BIN)/python -m tests.arm --jobs $(JOBS)

INTERPRETED := $(filter-out %/live_compiling.py,$(wildcard tests/triton/live_*.py))

test-triton: .venv/triton  ## GPU kernels without a GPU: run in Triton's interpreter, and compiled
	TRITON_INTERPRET=1 $(PYTEST) -n $(JOBS) $(INTERPRETED)
	$(PYTEST) -n $(JOBS) tests/triton/live_compiling.py

test-triton-slow: .venv/triton  ## the same for all types, models, numbers of sites and architectures
	TRITON_INTERPRET=1 $(PYTEST) -n $(JOBS) -m slow $(INTERPRETED)
	$(PYTEST) -n $(JOBS) -m slow tests/triton/live_compiling.py

REFERENCES := $(wildcard tests/reference/live_*.py) tests/gpu/live_rehearsal.py tests/gpu/live_ranks.py

test-reference: .venv/reference  ## compare with transformers and torch, live, on the CPU; rehearse gpu-check
	$(PYTEST) -n $(JOBS) $(REFERENCES)

test-torch: .venv/reference  ## modules and operators of PyTorch and tiny models of transformers, exported, imported and compared
	$(PINNED) expecttest
	$(PYTEST) -n $(JOBS) tests/importers/live_torch.py tests/importers/live_families.py tests/importers/live_published.py tests/importers/live_architectures.py tests/importers/live_operators.py tests/importers/live_modules.py

test-vision: .venv/reference  ## models of timm and torchvision with random weights, exported, imported and compared
	$(PINNED) --no-deps --upgrade --target build/vision torchvision timm
	$(PYTEST) -n $(JOBS) tests/importers/live_vision.py

test-reference-slow: .venv/reference  ## the same comparison for all models, types and numbers of sites
	$(PYTEST) -n $(JOBS) -m slow $(REFERENCES)

test-onnx: .venv/onnx  ## ONNX's own tests of its operators and models, imported; with ONNX Runtime beside it
	$(PYTEST) -n $(JOBS) tests/importers/onnx/live_onnx.py tests/importers/onnx/live_public_weights.py

MPI_TESTS := $(wildcard tests/mpi/live_*.py)

test-mpi: .venv/mpi  ## plans in several processes, over MPI: the bits of one, and every way to end
	$(PYTEST) $(MPI_TESTS)

test-mpi-slow: .venv/mpi  ## the same for all models and numbers of ranks, and at 50 moments
	$(PYTEST) -m slow $(MPI_TESTS)

test-serve: .venv/serve  ## a served model as its users see it: OpenAI's client, curl, signals, hostile requests
	$(PYTEST) -rP tests/serve/live_server.py

test-tutorials: .venv/reference .venv/serve .venv/notebooks  ## docs/tutorials, as a reader follows them, and as notebooks
	$(PYTEST) -n $(JOBS) tests/docs/live_tutorials.py

test-tutorials-wheels: dist  ## docs/tutorials in a fresh environment that has the wheels and PyTorch, and nothing else
	$(PYTHON) -m venv --clear build/tutorials
	build/tutorials/bin/python $(PIP_INSTALL) $(WHEELS) '$(TORCH)'
	build/tutorials/bin/python -m tests.docs.tutorials

test-hints: .venv/dev  ## every hint at a missing package, pasted into a shell, in fresh environments; installs them
	$(PYTEST) -n $(JOBS) -rP tests/packaging/live_hints.py

test-topologies: .venv/dev  ## the topologies of a checkout of RCCL: MODELS=rccl/tools/topo_expl/models
	MODELS=$(MODELS) $(PYTEST) tests/machines/live_rccl_models.py

references: .venv/reference  ## rewrite the committed results of transformers, tests/reference/data
	$(BIN)/python tests/reference/make_references.py
	$(BIN)/python tests/reference/make_read_fields.py

chromium:  ## Chromium and its driver from Debian's packages, where they are missing (needs root)
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; }

test-browser: .venv/browser  ## the pages of reports in Chromium (make chromium); pictures in build/report
	$(PYTEST) -rP tests/browser/live_pages.py

pictures: .venv/browser  ## the picture in the README, by Chromium
	$(BIN)/python -m tests.browser

lint: .venv/dev  ## check the style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev  ## check the types
	$(BIN)/mypy

imports: .venv/dev  ## check which package imports which
	$(BIN)/lint-imports --no-logo

# A number of seeds, or the first and the last one: SEEDS=7-7 replays one world.
SEEDS      ?= 1000000
WORLD_TIME ?= 7200

worlds: .venv/dev  ## the executor and the writing of files in seeded worlds: make worlds SEEDS=1000000 WORLD_TIME=7200
	$(BIN)/python -m tests.worlds --seeds $(SEEDS) --time $(WORLD_TIME)

# Targets: plan, plan-file, proof, npy, npz, safetensors, machine, exchange, model, configuration, gguf, onnx, pt2.
TARGET ?= plan
TIME   ?= 60

fuzz: .venv/dev  ## hostile files: make fuzz TARGET=plan TIME=60 (seconds); guided by branches where atheris installs
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: --constraint constraints.txt atheris
	$(BIN)/python -m tests.fuzz $(TARGET) --time $(TIME) --record $(FUZZ)

PROOF_TESTS := tests/runtime/plan tests/verification tests/mutation tests/importers/test_models.py tests/api/test_api.py \
	tests/physical/test_records.py tests/physical/test_synthesized_plans.py tests/physical/test_input_placement.py \
	tests/runtime/execution/test_transformer_plans.py tests/runtime/execution/test_arrays_in_other_orders.py \
	tests/runtime/execution/test_bundle_execution.py tests/cli/test_proof_page.py

coverage-proof: .venv/dev  ## the branches of schema, validation and proof that the tests of plans take: all
	mkdir -p build
	$(BIN)/python -m coverage run --data-file build/coverage-proof -m pytest -p no:cacheprovider $(PROOF_TESTS)
	$(BIN)/python -m coverage report --data-file build/coverage-proof

docs: .venv/site  ## build the documents as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	@echo 'build/site is made; to read and search it: python3 -m http.server --bind 127.0.0.1 --directory build/site'

check: lint types imports test  ## run all checks that a change must pass

bench: .venv/dev  ## measure run times in pairs, as ratios
	$(BIN)/python -m tests.bench

bench-reproducible: .venv/dev  ## what reproducible plans cost on this CPU, in pairs that run in turns
	$(BIN)/python -m tests.bench.reproducible --pairs 15 --write

bench-exchanges: .venv/dev  ## synthesized exchanges of all workloads against their bounds, and compile times
	$(BIN)/python -m tests.bench.simulator
	$(BIN)/python -m tests.bench.exchanges
	$(BIN)/python -m tests.bench.collectives --write
	$(BIN)/python -m tests.bench.collectives --blocks --write

experiments: .venv/dev  ## the paper's Experiments 1 to 5, predicted: tables, plots and pages in docs/experiments
	$(BIN)/python -m tests.bench.experiments

experiments-measured: .venv/dev  ## the same on the GPUs of this machine, or smaller on its CPU, into build/experiments
	$(BIN)/python -m tests.bench.experiments.measured

bench-truth-gpus: .venv/dev  ## predicted times against published ones of GPUs: exchanges, steps, the paper (docs/truth)
	$(BIN)/python -m tests.truth.exchanges
	$(BIN)/python -m tests.truth.steps
	$(BIN)/python -m tests.truth.paper
	$(BIN)/python -m tests.truth.overview

fit-exchanges: .venv/truth  ## fit what NCCL's protocols take to the tables of aiconfigurator-core
	$(BIN)/python -m tests.truth.exchanges --fit

bench-truth: bench-truth-gpus  ## predicted times against measured ones: the above, and random plans of all workloads on this computer
	$(BIN)/python -m tests.bench.truth --write

fit-rates: .venv/truth  ## fit the times of kernels to measured GPUs; writes their rates and docs/truth/kernels.md
	$(BIN)/python -m tests.rates --write

bench-training-steps: .venv/dev  ## training steps of Llama 8B for eight H100s beside fsdp, megatron and data, predicted
	$(BIN)/python -m tests.training.large_steps

bench-model-gradients: .venv/reference  ## gradients of modules and imported models beside torch.autograd, in three types
	$(BIN)/python -m tests.reference.live_model_gradients

bench-training-speed: .venv/reference  ## a training step of a Llama of 30M parameters on this CPU, beside PyTorch compiled
	$(BIN)/python -m tests.training.step_speed
	$(BIN)/python -m tests.training.step_speed --precision bf16

bench-serving: .venv/serve  ## steps of a served model, and what a long prompt delays: docs/serve.md
	$(BIN)/python -m tests.serve.measure
	$(BIN)/python -m tests.serve.host_work

bench-optimality: .venv/dev  ## whether random or well-known plans are predicted faster than those that are chosen
	$(BIN)/python -m tests.bench.optimality
	$(BIN)/python -m tests.bench.optimality --growth

bench-peaks: .venv/dev  ## what plans for the peaks of GPUs cost, as GPUs were measured: docs/peaks.md
	$(BIN)/python -m tests.bench.peaks --write

bench-planning: .venv/dev  ## how long planning takes, on up to 72 sites: docs/planning-speed.md
	$(BIN)/python -m tests.bench.planning --write

bench-throughput: .venv/dev  ## what is chosen for throughput, against plans by hand: docs/throughput.md
	$(BIN)/python -m tests.bench.throughput --write

testbed: .venv/mpi  ## run exchange programs and plans in network namespaces with limited links (needs root; removes what it makes)
	$(BIN)/python -m tests.testbed
	$(BIN)/python -m tests.testbed.plans
	$(BIN)/python -m tests.testbed.throughput

# The interpreter that is used as it is: it has PyTorch and cupy, which .venv has not.
GPU_PYTHON_BIN ?= python3

gpu-check:  ## test and measure the GPU of this machine; writes docs/gpu-results.md
	$(GPU_PYTHON_BIN) tests/gpu

# For a machine without a network: what it may lack of what einc needs (rich brings three more, jinja2 one), for its
# Python; and cuDNN's own package, so that its attention can be probed.
GPU_PYTHON ?= 3.12
GPU_WHEELS := click highspy jinja2 lapx lark markdown-it-py markupsafe mdurl ml_dtypes msgpack msgspec \
	nvidia-cudnn-frontend pygments rich threadpoolctl

gpu-wheels: .venv/base  ## download packages that gpu-check may need on another machine into wheels/
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version $(GPU_PYTHON) --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--constraint constraints.txt --dest wheels $(GPU_WHEELS)
	@echo "copy the checkout with wheels/ (git ignores it), and start there: $(GPU_PYTHON_BIN) tests/gpu"

golden: .venv/dev  ## rewrite the golden files; read the difference before you commit it
	$(PYTEST) -n $(JOBS) --update-golden

clean:  ## remove the environment and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
