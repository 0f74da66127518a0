# Everything runs inside .venv, which `make setup` creates and any other target creates when it is missing or out of date.
PY := .venv/bin
STAMP := .venv/.installed
# Where gpu-test writes what it measured; results worth keeping are committed under benchmarks/results.
RESULTS ?= build/measured

.PHONY: help setup rehearse test lint types imports test-end test-long gpu-test format clean

help:
	@echo "make rehearse    plan, train, kill, resume, evaluate and serve a scale model of charlm on this machine"
	@echo "make test        lint, types, import directions and the tests (minutes)"
	@echo "make test-end    whole runs: several processes, kills and resumes, rehearsals (as long again; CI runs both)"
	@echo "make test-long   the slow tests too: SIGKILLs at random moments, crowds of clients, the oldest Triton"
	@echo "make gpu-test    tests and measurements that need an NVIDIA GPU"
	@echo "make format      rewrite the code in the house's format"
	@echo "make setup       create or update .venv, nothing else (PYTHON=... chooses the interpreter)"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh "$(PYTHON)"
	@touch $@

rehearse: $(STAMP)
	$(PY)/windtunnel rehearse charlm

# Tests start processes and servers, and a machine with other work on it can starve one of them. What failed beside others is
# named, and run once more by itself: only what fails again has failed. A test that outlives pytest's own limit of time hangs where
# no exception reaches it: the stacks of its process are printed, the process ends, and another one goes on from that test. Where
# none is left that failed, all are run again: such a test passed when it was tried again, or nothing was run at all.
HANG := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true
run_tests = $(PY)/python -m pytest -m "$(1)" $(HANG) -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder || \
	{ [ $$? -eq 1 ] && echo "These tests are run again, one at a time." && \
	$(PY)/python -m pytest -m "$(1)" $(HANG) --last-failed --last-failed-no-failures all; }

test: lint types imports
	$(call run_tests,not end_to_end and not slow and not gpu)

test-end: $(STAMP)
	$(call run_tests,end_to_end and not slow and not gpu)

lint: $(STAMP)
	$(PY)/ruff check .
	$(PY)/ruff format --check .

types: $(STAMP)
	$(PY)/mypy

imports: $(STAMP)
	$(PY)/lint-imports --no-cache

test-long: $(STAMP)
	$(PY)/python -m pytest -m "slow and not gpu"
	sh tools/test_oldest.sh

# PEER=folder of a karpathy/nanochat checkout: its throughput is measured beside ours, in turns.
gpu-test: $(STAMP)
	$(PY)/python -m pytest -m gpu -s
	$(PY)/python benchmarks/training.py scaling --out $(RESULTS)/scaling.json
	$(PY)/python benchmarks/training.py checkpoints --out $(RESULTS)/checkpoints.json
	$(PY)/python benchmarks/training.py resume --out $(RESULTS)/resume.json
	$(PY)/python benchmarks/training.py precision --out $(RESULTS)/precision.json
	$(PY)/python benchmarks/verify_gpu_first.py --out $(RESULTS)/verify-gpu-first.json
	$(PY)/python benchmarks/verify_replay_gpu.py --minutes 15 --out $(RESULTS)/verify
	@if [ -n "$(PEER)" ]; then PEER="$(PEER)" $(PY)/python benchmarks/compare.py --out $(RESULTS)/throughput.json; \
	else echo "PEER=folder of a karpathy/nanochat checkout: also measures throughput beside it"; fi

format: $(STAMP)
	$(PY)/ruff check --fix .
	$(PY)/ruff format .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
