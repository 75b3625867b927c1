# make demo, make test: on a fresh machine with Python >= 3.11, a C++20 compiler and make.
# Everything goes into .venv and build/; what tests and the site need from the system is installed by apt.

PYTHON ?= python3
VENV := .venv
STORM_MINUTES ?= 2
STORM_SEED ?= 1
BIN := $(VENV)/bin
CMAKE_TESTS := -DDISTCACHE_TESTS=ON -G Ninja
# Without code for particular processors: what runs everywhere, and its instructions are counted.
BASELINE := -DDISTCACHE_DISPATCH=OFF -DDISTCACHE_BENCH=ON -DDISTCACHE_WERROR=ON
AARCH64 := -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static -DDISTCACHE_WERROR=ON
HAS_HEADERS := import os, sysconfig; exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))
KERNELS := $(wildcard cpp/*/*.[ch]pp) cpp/CMakeLists.txt
# The parts of `make test` and those that `make test-all` adds.
# Each line is a lane beside the first; its parts wait more, for ranks that hang or for Slurm.
TEST := lint docs cpp-tests sanitized-tests demo-test python-tests
TEST_BESIDE := mpi-tests object-tests peers
TEST_WAITING := cluster-tests
REST := cpp-builds sanitized-rest python-rest judges coverage python-versions
REST_BESIDE := mpi-rest aarch64 wheels-test packaging
REST_WAITING := cluster-rest storm object-rest
# What a run could not test, a line each.
LEFT_OUT := build/left-out
PARTS := scripts/parts --first $(VENV)/test-installed --left-out $(LEFT_OUT)
USUAL := -m "not more"
MORE := -m more
MPI := tests/mpi tests/faults
TORCHRUN := tests/torchrun
SERIAL := $(MPI) $(TORCHRUN)
CLUSTER := tests/cluster
OBJECTS := tests/objects
FRAMEWORKS := tests/frameworks
ELSEWHERE := $(SERIAL) $(CLUSTER) $(OBJECTS) $(FRAMEWORKS) tests/aarch64
# Files that feed bytes of others to the kernels; then whatever reads by them.
SANITIZED := tests/kernels tests/corpus tests/edit/test_index_mds_damage.py tests/train/test_shards.py
SANITIZED_REST := tests/cache tests/edit/test_index_mds.py tests/edit/test_select.py $(addprefix tests/train/test_,rows.py dataset.py)
SANITIZED_PYTEST = DISTCACHE_KERNELS=$$(ls build/sanitized/_kernels.*.so) \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_sigbus=0 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	pytest -q -n auto -p tests.kernels.other_build
# Files that start many processes, train tokenizers, or wait for stores: what `make test-fast` leaves out besides.
SLOW := $(addprefix tests/,cli/test_commands.py cli/test_documents.py cli/test_urls.py edit/test_audit.py edit/test_mirror.py docs \
	ingest/test_errors.py ingest/test_formats.py ingest/test_objects.py ingest/test_ranks.py ingest/test_text.py ingest/tokenizers/test_directory.py \
	ingest/tokenizers/test_engines.py train/test_batches.py train/test_dataset.py train/test_unpacked_ahead.py train/buckets storage/test_bucket.py)
JUDGES := 0.17.1 0.18.2 0.19.2
NEWEST := $(lastword $(JUDGES))
# What may differ from release to release, and what does not: all judge the one, the newest judges the other, too.
BY_RELEASE := $(addprefix tests/peers/test_,documented.py ingest.py matrix.py trace.py training_log.py packed.py samples.py tokenizers.py training.py view.py provider.py)
ONCE := $(filter-out $(BY_RELEASE),$(wildcard tests/peers/test_*.py))
DURATIONS := --durations=20 --durations-min=5
# Apart, since the peers run beside the tests of Python.
OF_PEERS := .coverage-peers
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help install demo test test-all test-fast wheel cluster-packages record-counts bench clean sanitized-build \
	$(TEST) $(TEST_BESIDE) $(TEST_WAITING) $(REST) $(REST_BESIDE) $(REST_WAITING)

help:
	@echo "make demo       real text to training, with Megatron-Core beside it"
	@echo "make test       every promise once: lint, C++, Python, Megatron-Core, MPI, faults, a store, Slurm"
	@echo "make test-all   what make test leaves out: other releases, builds and Pythons, more jobs, chance"
	@echo "make test-fast  the fast tests, while working"
	@echo "make cluster-packages  what the test cluster needs: Slurm, munge, MariaDB, GlusterFS"
	@echo "make judges     later releases of Megatron-Core, Megatron-Bridge, mosaicml-streaming"
	@echo "make aarch64    a wheel for AArch64, and its tests under qemu"
	@echo "make storm      kills, full disks, flips and races at random, for STORM_MINUTES"
	@echo "make python-versions  the fast suite under Python 3.13, part of it under 3.12"
	@echo "make lint       ruff, mypy, stubtest, clang-format, import-linter"
	@echo "make docs       the documentation site, in build/site"
	@echo "make wheel      manylinux wheels, in dist"
	@echo "make bench      Megatron-Core and distcache side by side"

# pip, not uv: it takes the wheel of torch that the machine is configured for.
$(VENV)/installed: pyproject.toml scripts/install
	@$(PYTHON) -c "import ensurepip" 2>/dev/null || scripts/need python3-venv:/missing
	@$(PYTHON) -c "$(HAS_HEADERS)" || scripts/need python3-dev:/missing
	$(PYTHON) -m venv $(VENV)
	@scripts/install "pip and what builds the extension" --upgrade pip \
		"scikit-build-core>=0.10" "pybind11>=3.0" ninja cmake
	touch $@

$(VENV)/docs-installed: $(VENV)/installed $(KERNELS)
	@scripts/install "distcache, which is compiled, and Sphinx" --no-build-isolation --editable . --group docs
	touch $@

$(VENV)/demo-installed: $(VENV)/installed $(KERNELS)
	@scripts/install "MPICH" mpich
	@scripts/install "torch (0.8 GB; more with CUDA)" torch==2.13.0
	@scripts/install "distcache, which is compiled, and its libraries" \
		--no-build-isolation --editable ".[mpi,train,ingest,fast,mds,s3]"
	touch $@

$(VENV)/lint-installed: $(VENV)/demo-installed
	@scripts/install "ruff, mypy, clang-format, import-linter" --group lint
	touch $@

$(VENV)/test-installed: $(VENV)/lint-installed $(VENV)/docs-installed
	@scripts/install "pytest, Megatron-Core and its peers (2 GB)" --group test --group peers
	touch $@

install: $(VENV)/demo-installed

demo:
	@[ -e $(VENV)/demo-installed ] || echo "This installs torch, MPICH, Megatron-Core and what builds distcache into .venv: 1.5 GB, two to four minutes."
	@echo "The demonstration itself takes about a minute and a half, and 2 GB in demo-output."
	@$(MAKE) --no-print-directory install
	@python -c "import megatron.core" 2>/dev/null || scripts/install "Megatron-Core 0.16.1" megatron-core==0.16.1
	@scripts/demo

# What a change is tested by: every promise once, where it can break. Each run ends with the seconds of its parts.
test:
	@$(PARTS) $(TEST) --beside $(TEST_BESIDE) --beside $(TEST_WAITING)

# The rest: other builds, releases and Pythons, whole jobs for what smaller tests show, and chance.
test-all:
	@$(PARTS) $(REST) --beside $(REST_BESIDE) --beside $(REST_WAITING)

test-fast: $(VENV)/test-installed
	pytest -q -n auto -m "not long and not more" --ignore tests/peers $(ELSEWHERE:%=--ignore %) $(SLOW:%=--ignore %)

lint: $(VENV)/lint-installed
	ruff check .
	ruff format --check .
	mypy
	python -m mypy.stubtest distcache._kernels --allowlist cpp/bindings/stubtest.allow
	clang-format --dry-run --Werror $$(git ls-files 'cpp/*.cpp' 'cpp/*.hpp')
	lint-imports
	scripts/prose
	scripts/house --check

# Fails on any warning, and so on a link that leads nowhere.
docs: $(VENV)/docs-installed
	scripts/need graphviz:dot
	sphinx-build -q -W --keep-going -b html docs build/site

# With GCC's sanitizers; the extension that Python's tests use is GCC's, too.
cpp-tests: sanitized-build
	find build/sanitized -name '*.gcda' -delete
	for most in baseline avx512; do \
		DISTCACHE_INSTRUCTIONS=$$most build/sanitized/kernel_tests || exit 1; done

# Optimized by GCC and by Clang, baseline code and its instructions, AArch64 under qemu.
cpp-builds: $(VENV)/test-installed
	scripts/need catch2:/usr/include/catch2 clang:clang++ valgrind:valgrind \
		g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user:qemu-aarch64
	cmake -S cpp -B build/gcc $(CMAKE_TESTS) -DDISTCACHE_WERROR=ON
	cmake --build build/gcc
	for most in baseline avx2 avx512; do \
		DISTCACHE_INSTRUCTIONS=$$most build/gcc/kernel_tests || exit 1; done
	cmake -S cpp -B build/clang $(CMAKE_TESTS) -DDISTCACHE_WERROR=ON -DCMAKE_CXX_COMPILER=clang++
	cmake --build build/clang && build/clang/kernel_tests
	cmake -S cpp -B build/baseline $(CMAKE_TESTS) $(BASELINE)
	cmake --build build/baseline && build/baseline/kernel_tests
	scripts/count_instructions build/baseline/run_case
	cmake -S cpp -B build/aarch64 $(CMAKE_TESTS) $(AARCH64)
	cmake --build build/aarch64 && qemu-aarch64 build/aarch64/kernel_tests

# Wild files, and whatever else tests give to the kernels, reach them through Python here. Then: how much of the core
# these tests and `cpp-tests` before them have executed.
sanitized-tests: sanitized-build
	$(SANITIZED_PYTEST) $(USUAL) $(SANITIZED)
	gcovr --root cpp --filter cpp/distcache/ --object-directory build/sanitized \
		--exclude '.*avx512.*' --exclude-throw-branches --exclude-unreachable-branches --merge-lines \
		--gcov-ignore-parse-errors=negative_hits.warn \
		--json-summary build/cpp-coverage.json --print-summary \
		build/sanitized/CMakeFiles/distcache_core.dir build/sanitized/CMakeFiles/kernel_tests.dir
	scripts/coverage cpp build/cpp-coverage.json

sanitized-rest: sanitized-build
	$(SANITIZED_PYTEST) $(MORE) $(SANITIZED)
	$(SANITIZED_PYTEST) $(SANITIZED_REST)

# The tests of the kernels, and the extension.
sanitized-build: $(VENV)/test-installed
	scripts/need catch2:/usr/include/catch2
	cmake -S cpp -B build/sanitized $(CMAKE_TESTS) -DDISTCACHE_BINDINGS=ON -DDISTCACHE_WERROR=ON \
		-DDISTCACHE_SANITIZE=ON -DDISTCACHE_COVERAGE=ON \
		-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF \
		-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build build/sanitized

# After a change that makes a kernel execute more or fewer instructions on purpose.
record-counts: $(VENV)/installed
	scripts/need valgrind:valgrind catch2:/usr/include/catch2
	cmake -S cpp -B build/baseline $(CMAKE_TESTS) $(BASELINE)
	cmake --build build/baseline
	scripts/count_instructions build/baseline/run_case --record

python-tests: $(VENV)/test-installed
	pytest -q -n auto $(USUAL) --cov --cov-report= $(DURATIONS) --ignore tests/peers $(ELSEWHERE:%=--ignore %)

python-rest: $(VENV)/test-installed
	scripts/need chromium:chromium graphviz:dot
	pytest -q -n auto $(MORE) $(DURATIONS) --ignore tests/peers $(ELSEWHERE:%=--ignore %)

# Megatron-Core judges: the oldest release, which is installed, and the newest; then other frameworks.
peers: $(VENV)/test-installed
	scripts/judges build/judges $(NEWEST)
	pytest -q -n auto $(USUAL) $(DURATIONS) $(ONCE:%=--ignore %) tests/peers
	COVERAGE_FILE=$(OF_PEERS) PYTHONPATH=$(CURDIR)/build/judges/$(NEWEST) pytest -q -n auto $(USUAL) $(DURATIONS) --cov --cov-report= \
		--ignore tests/peers/test_permutation.py tests/peers
	COVERAGE_FILE=$(OF_PEERS) pytest -q -n auto --cov --cov-append --cov-report= $(FRAMEWORKS)

# Of `make python-tests`, of what the newest Megatron judges, and of Megatron-Bridge: after `make test`.
coverage: $(VENV)/test-installed
	@mkdir -p build
	coverage combine -q --append --keep $(OF_PEERS)
	coverage json -q -o build/python-coverage.json
	scripts/coverage python build/python-coverage.json

# Two at a time: most wait for ranks that are killed or hang. Those of torchrun have gloo's time limits.
mpi-tests: $(VENV)/test-installed
	scripts/need openmpi-bin:mpirun.openmpi
	pytest -q -n 2 --dist worksteal $(USUAL) $(DURATIONS) $(MPI) $(TORCHRUN)

mpi-rest: $(VENV)/test-installed
	scripts/need openmpi-bin:mpirun.openmpi
	pytest -q -n 2 --dist worksteal $(MORE) $(DURATIONS) $(MPI) $(TORCHRUN)

# A real S3 server, and whole jobs over it; some mount disks that are full, and so need root.
object-tests: $(VENV)/test-installed
	scripts/need openmpi-bin:mpirun.openmpi
	pytest -q -n 2 --dist worksteal $(USUAL) $(DURATIONS) $(OBJECTS)

object-rest: $(VENV)/test-installed
	pytest -q -n 2 --dist worksteal $(MORE) $(DURATIONS) $(OBJECTS)

# What make demo shows, since nothing else runs its scripts.
demo-test: $(VENV)/test-installed
	@scripts/demo build/demo >build/demo.log 2>&1 || { cat build/demo.log; exit 1; }

# A Slurm cluster of three nodes on this machine; left out, with the reason, where it cannot be.
cluster-tests: $(VENV)/test-installed
	@mkdir -p build
	scripts/cluster_packages && scripts/grid_engine $(CURDIR)/build/schedulers || [ "$$DISTCACHE_CLUSTER" != required ]
	DISTCACHE_LEFT_OUT=$(CURDIR)/$(LEFT_OUT) pytest -q $(USUAL) $(DURATIONS) $(CLUSTER)

cluster-rest: $(VENV)/test-installed
	@mkdir -p build
	scripts/cluster_packages && scripts/grid_engine $(CURDIR)/build/schedulers || [ "$$DISTCACHE_CLUSTER" != required ]
	DISTCACHE_LEFT_OUT=$(CURDIR)/$(LEFT_OUT) pytest -q $(MORE) $(DURATIONS) $(CLUSTER)

# The fast suite under the newest Python, but for what needs torch, and part of it under those between.
python-versions: $(VENV)/installed
	@mkdir -p build
	scripts/python_versions $(LEFT_OUT) 3.12 3.13

# Kills, full disks, flips and races; for others than those of every run: make storm STORM_SEED=
storm: $(VENV)/test-installed
	scripts/storm $(STORM_MINUTES) $(STORM_SEED)

# Of every Python that is here; each is installed and tried where there is no compiler.
wheel:
	scripts/wheels

# A wheel for this Python, tried where there is no compiler.
wheels-test: $(VENV)/installed
	scripts/wheels $$($(BIN)/python -c "import sys; print('%d.%d' % sys.version_info[:2])")

# Metadata, workflows, forms and recipes, by the tools of their makers.
packaging: $(VENV)/installed
	scripts/packaging $(CURDIR)/build/packaging

cluster-packages:
	scripts/cluster_packages

# Releases of Megatron-Core between, what `peers` leaves out, Megatron-Bridge and mosaicml-streaming.
judges: $(VENV)/test-installed
	scripts/judges build/judges $(JUDGES)
	for release in $(filter-out $(NEWEST),$(JUDGES)); do \
		PYTHONPATH=$(CURDIR)/build/judges/$$release pytest -q -n auto $(USUAL) \
			$(ONCE:%=--ignore %) --ignore tests/peers/test_provider.py tests/peers || exit 1; done
	pytest -q -n auto $(MORE) tests/peers
	pytest -q -n auto $(USUAL) $(BY_RELEASE:%=--ignore %) tests/peers
	PYTHONPATH=$(CURDIR)/build/judges/$(NEWEST) pytest -q -n auto $(MORE) \
		--ignore tests/peers/test_permutation.py tests/peers
	PYTHONPATH=$(CURDIR)/build/judges/bridge-0.3.1 pytest -q tests/peers/test_bridge.py
	PYTHONPATH=$(CURDIR)/build/judges/$(NEWEST):$(CURDIR)/build/judges/bridge-0.6.2 pytest -q --cov --cov-append --cov-report= \
		tests/peers/test_bridge.py
	PYTHONPATH=$(CURDIR)/build/judges/streaming pytest -q tests/peers/test_streaming.py

# A wheel for AArch64, tried under qemu; the helper of Megatron-Core's own judges its blends.
aarch64: $(VENV)/test-installed
	@mkdir -p build
	scripts/aarch64 build/aarch64-python $(NEWEST) $(LEFT_OUT)

bench: $(VENV)/test-installed
	python benchmarks/kernels.py
	python benchmarks/against_megatron.py
	python benchmarks/many_corpora.py
	python benchmarks/growing.py
	python benchmarks/ledger.py
	python benchmarks/links.py
	python benchmarks/files.py
	python benchmarks/starting.py
	python benchmarks/estimates.py
	python benchmarks/localizing.py
	python benchmarks/loading.py
	python benchmarks/selecting.py
	python benchmarks/buckets.py
	python benchmarks/reading_ahead.py
	python benchmarks/unpacking.py
	python benchmarks/packing.py
	scripts/judges build/judges $(NEWEST)
	PYTHONPATH=$(CURDIR)/build/judges/streaming python benchmarks/shards.py
	PYTHONPATH=$(CURDIR)/build/judges/$(NEWEST) python benchmarks/first_batch.py
	python benchmarks/ingesting.py

clean:
	rm -rf $(VENV) build demo-output
