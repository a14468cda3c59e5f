# Everything a bare machine with Python 3.11 (or 3.12) and make needs. Each target builds .venv first, once.
#
#   make run          the nano pipeline in notebooks: corpus to index, agent, SFT, GRPO, evaluation -> results/nano/index.html
#   make nano-eval    the same with the whole test split
#   make foreign      the agent on slides that another engine drew
#   make test         all tests, notebooks and browser included     make lint     ruff and mypy
#   make lab          JupyterLab on notebooks/index.ipynb           make serve    the search engine over HTTP
#   make report       tables, figures and failures of results/nano as one page (RESULTS="dir dir": other or more folders)
#   make realdocs DIR=path   recall on a folder of MMLongBench-Doc  make bench    what survives kill -9
#   make nano-cpu     an agent and a retriever from nothing, on two cores in two hours -> data/runs/nano-cpu (SCALE=4: overnight)
#   make nano-cpu-sheets     what they can do, skill by skill -> results/skills/nano-cpu
#   make lock         requirements.lock anew from pyproject.toml

# Some machines forbid Python to keep what it compiled: every process would compile torch and the rest anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PROFILE ?= nano
PORT ?= 8001
RESULTS ?= results/nano
SCALE ?= 1
TEST_PROCESSES ?= 2
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# Libraries that count the machine's cores instead of those they may use would start too many threads.
export OMP_NUM_THREADS ?= $(CORES)
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help env run nano-eval foreign test lab serve bench lint realdocs report nano-cpu nano-cpu-sheets lock

help:
	@sed -n 's/^#   //p' Makefile

env: $(READY)

# A candidate must run: a version manager's shim answers to the name and fails.
$(READY): requirements.lock pyproject.toml
	@found=; for candidate in python3.11 python3.12 python3 python /usr/bin/python3.11 /usr/bin/python3.12; do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; \
	  then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: no Python 3.11 or 3.12 with venv found on PATH."; \
	  echo "      Install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv) and run make again."; \
	  exit 1; \
	fi; \
	$(PY) -m pip --version >/dev/null 2>&1 || { echo "creating $(VENV) with $$($$found --version)"; $$found -m venv $(VENV); }
	@$(PY) -m pip install --quiet --disable-pip-version-check uv
	@$(PY) -m uv pip install --python $(PY) -r requirements.lock
	@$(PY) -m uv pip install --python $(PY) --no-deps -e .
	@touch $(READY)

run: $(READY)
	@$(PY) -m vrag_nb run nano

nano-eval: $(READY)
	@$(PY) -m vrag_nb run nano-eval

foreign: $(READY)
	@$(PY) -m vrag_nb evaluate --profile $(PROFILE) --documents data/foreign/documents \
	  --questions data/foreign/questions.test.json --out results/foreign --systems agent $(ARGS)

# Two processes with a thread each: half of the time goes to loading libraries, which one core does.
test: $(READY)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

lab: $(READY)
	@$(PY) -m jupyter lab --notebook-dir=. $(ARGS) notebooks/index.ipynb

serve: $(READY)
	@$(PY) -m vrag_nb serve --profile $(PROFILE) --port $(PORT) $(ARGS)

bench: $(READY)
	@$(PY) -m vrag_nb prep --profile nano
	@$(PY) -m vrag_nb index --profile nano
	@$(PY) benchmarks/interruption.py --documents data/corpora/decks/documents $(ARGS)
	@$(PY) benchmarks/server.py --clients 64 --seconds 60

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

realdocs: $(READY)
	@test -n "$(DIR)" || { echo "make realdocs needs a folder: make realdocs DIR=path/to/mmlongbench"; exit 2; }
	@$(PY) -m vrag_nb realdocs "$(DIR)" --profile $(PROFILE)

report: $(READY)
	@$(PY) -m vrag_nb report $(RESULTS) --out results/report $(ARGS)

# Stages that a kill cut short go on where they were. Two processes of a thread each: two threads of one mostly wait.
# Each stage has processes of its own, which leave no memory behind.
nano-cpu: $(READY)
	@$(PY) -m vrag_nb prep --profile nano
	@for stage in letters spell align match retrieve act settle weigh; do \
	  $(PY) -m torch.distributed.run --nproc-per-node 2 -m vrag_nb.nano.recipe --threads 1 \
	    --out data/runs/nano-cpu --scale $(SCALE) $$stage || exit 1; \
	done

nano-cpu-sheets: $(READY)
	@$(PY) -m vrag_nb prep --profile nano-cpu
	@$(PY) -m vrag_nb index --profile nano-cpu
	@$(PY) -m vrag_nb.nano.skills --profile nano-cpu --count 40 \
	  --model data/runs/nano-cpu/models/nano-base --out results/skills/nano-cpu/base
	@$(PY) -m vrag_nb.nano.skills --profile nano-cpu --count 40 --acting \
	  --model data/runs/nano-cpu/models/nano-agent-next --out results/skills/nano-cpu/agent
	@$(PY) -m vrag_nb.nano.retriever_skills --profile nano-cpu --out results/skills/nano-cpu/retriever

# One lock for both Pythons and for Linux and macOS: markers say what is installed where.
lock: $(READY)
	@$(PY) -m uv pip compile pyproject.toml --extra dev --extra tables --extra ocr --python-version 3.11 --universal \
	  --no-header --no-annotate --no-emit-index-url --output-file requirements.lock
