# `make demo` shows it, `make test` is what continuous integration runs.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PROTO := proto/logitsieve/v1
DATA ?= demo

.venv: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade --constraint constraints.txt --editable '.[dev]'
	@touch .venv

demo: .venv           ## capture, build, serve and decode with the bundled language model
	$(BIN)/python -m demo.run

serve: .venv          ## serve the index that `make demo` left
	$(BIN)/logitsieve serve --models models

check: .venv          ## formatting, lint, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: .venv           ## fast tests
	$(BIN)/pytest -m 'not system and not gpu'

test-system: .venv    ## tests that install packages, kill processes or start other servers
	$(BIN)/pytest -m system

test-gpu-kernels: .venv      ## the GPU kernels, under Triton's interpreter: slow, so on two cores
	$(BIN)/pytest -m gpu -n 2

test-gpu:             ## the same tests on a GPU, with the python that PYTHON names
	TRITON_INTERPRET=0 $(PYTHON) -m pytest -m gpu tests/gpu tests/heads/test_contract.py

test: check unit test-gpu-kernels test-system   ## everything

bench: .venv          ## timings against the exact softmax of numpy, torch and faiss
	$(BIN)/python -m benchmarks.screen

race: .venv           ## every method on one dataset: make race DATA=lm-docs (docs/race.md lists them)
	$(BIN)/python -m benchmarks.race $(DATA)

proto: .venv          ## regenerate the stubs from decoder.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTO)/decoder.proto

.PHONY: demo serve check unit test-gpu-kernels test-gpu test-system test bench race proto
