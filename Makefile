# `make demo` and `make test` install what they need, Debian's packages included. `pytest` alone works, too: it skips what
# this machine lacks, and says why. DISTCACHE_REQUIRE=all, which .ci/run sets, makes what is skipped an error.
export PYTHON ?= python3
VENV ?= .venv
export PATH := $(abspath $(VENV))/bin:$(PATH)
STAMPS := $(VENV)/stamps
GROUPS := test demo peers docs lint
KERNELS := $(wildcard cpp/*/*.[ch]pp) cpp/CMakeLists.txt
PYTEST := pytest -q -n auto --dist worksteal --durations=15 --durations-min=5
JUDGED := judge and not (more or once)
# Three at a time, in this order; a part that fails hides no other, and make names it at the end.
LANES := --no-print-directory -j3 -k --output-sync=target
TEST := cluster jobs python judge-0.19.2 judge-0.16.1 cpp-gcc lint types docs demo
REST := cluster-more jobs-more python-more judge-more-0.19.2 judge-more-0.16.1 judge-0.17.1 judge-0.18.2 \
	streaming bridge-0.3.1 bridge-0.6.2 wild cpp-clang cpp-baseline cpp-aarch64 aarch64 storm
.PHONY: help test test-all test-fast installed clean cpp-sanitized coverage $(TEST) $(REST)
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16
test: ## every promise once, where it can break
	@scripts/packages test && $(MAKE) --no-print-directory installed && $(MAKE) $(LANES) $(TEST)
test-all: ## the rest: other builds and releases, more cases of each promise, chance
	@scripts/packages all && $(MAKE) --no-print-directory installed && $(MAKE) $(LANES) $(REST)
test-fast: $(STAMPS)/test ## while working: without torch, Megatron, launchers and root
	$(PYTEST) -m "local and not (slow or more)"

installed: $(GROUPS:%=$(STAMPS)/%)
$(STAMPS)/%: pyproject.toml $(KERNELS) # a dependency group
	@scripts/packages demo
	@mkdir -p build; exec 9>build/venv.lock; flock 9; set -e; export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	test -e $(STAMPS) || { $(PYTHON) -m venv $(VENV); pip install --upgrade pip; pip install --group build; mkdir $(STAMPS); }; \
	pip install --no-build-isolation --editable . --group $*; touch $@

demo: $(STAMPS)/demo ## real text to training, with Megatron-Core beside it: 2 GB in demo-output
	@scripts/demo
python: $(STAMPS)/peers ## what one process shows
	$(PYTEST) -m "local and not more"
coverage: $(STAMPS)/test # of the fast tests; it makes them half as slow again
	$(PYTEST) --cov --cov-report= -m "local and not (slow or more)" && coverage report --format=total
python-more: $(STAMPS)/peers
	$(PYTEST) -m "local and more"
jobs jobs-more: $(STAMPS)/peers # two at a time: most wait, for ranks that hang or for a store
	$(PYTEST) -n 2 -m "jobs and $(if $(filter jobs,$@),not )more"
jobs: ## launchers: kills, full disks, torchrun, a store
cluster cluster-more: $(STAMPS)/demo
	scripts/grid_engine build/schedulers
	$(PYTEST) -n 0 -m "cluster and $(if $(filter cluster,$@),not )more"
cluster: ## Slurm on this machine
judge-0.19.2: JUDGED := judge and not more
judge-more-0.19.2: JUDGED := judge and more
judge-more-0.16.1: JUDGED := judge and more and not once
$(filter judge-%,$(TEST) $(REST)): judge-%: $(STAMPS)/peers
	path=$$(scripts/judges $(lastword $(subst -, ,$*))) && PYTHONPATH=$$path $(PYTEST) -m "$(JUDGED)"
streaming bridge-0.3.1 bridge-0.6.2: $(STAMPS)/peers # whose imports disturb other tests
	path=$$(scripts/judges $@) && PYTHONPATH=$$path $(PYTEST) tests/judges/test_$(firstword $(subst -, ,$@)).py
cpp-sanitized $(filter cpp-%,$(TEST) $(REST)): cpp-%: $(STAMPS)/test
	cd cpp && cmake --workflow --preset $*
wild: cpp-sanitized $(STAMPS)/peers ## bytes of others, with sanitizers; then the coverage of the C++
	scripts/sanitized -m wild && gcovr
lint: $(STAMPS)/lint ## what pre-commit runs at a commit
	pre-commit run --all-files
types: $(STAMPS)/lint $(STAMPS)/demo
	mypy && python -m mypy.stubtest distcache._kernels --allowlist cpp/bindings/stubtest.allow
docs: $(STAMPS)/docs ## the site, in build/site; a warning is an error
	sphinx-build -q -W --keep-going -b html docs build/site
aarch64: $(STAMPS)/test
	scripts/aarch64 build/aarch64-python 0.19.2
storm: $(STAMPS)/peers # two minutes, seed 1
	python -m tests.jobs.storm 2 1
clean: ## remove what make has made
	rm -rf $(VENV) build demo-output
