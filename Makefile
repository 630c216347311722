# The two commands are `make up` and `make test`. Each installs what it needs, and each can be
# run again at any time: what is already there is left alone.

DATA_DIR ?= /var/lib/landfall
CARGO ?= cargo
SEEDS ?= 0..10000
STORIES ?= 20
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# Steps of one target come one after another, whatever -j says.
.NOTPARALLEL:
.PHONY: help up build check sim sim-endings test test-containerd test-endings-long test-identity lint schema coverage bench install clean

help:
	@echo 'make up       build landfall and run it, with its data in DATA_DIR ($(DATA_DIR))'
	@echo 'make check    in minutes, while you work: formatting, lints, tests without containers, 200 simulated clusters'
	@echo 'make test     everything that must pass: formatting, lints, tests, some also on containerd, simulated endings'
	@echo 'make test-containerd   all tests of pods once more, on containerd'
	@echo 'make test-endings-long   tests of endings that take their true time'
	@echo 'make test-identity   never two pods of one name: STORIES=20 of cut networks and killed nodes, from SEED=1'
	@echo 'make sim-endings   ten thousand simulated clusters, every ending checked; SEEDS=0..100 for fewer'
	@echo 'make sim      these, and ten thousand in which names must stay single, and a hundred that must fall silent'
	@echo 'make lint     formatting and lints only'
	@echo 'make schema   write again what api knows of the types of k8s-openapi (crates/api/src/schema)'
	@echo 'make coverage  which rules are named by tests; RULES="T-NODE W" also by which (docs/rules.txt)'
	@echo 'make bench    measure; BENCH="--quick", "--grow", "--json" (docs/BENCHMARKS.md)'
	@echo 'make install  install what building, testing and measuring need'
	@echo 'make clean    remove what was built; installed tools and DATA_DIR stay'

up: build
	exec $(TARGET_DIR)/release/landfall up --data-dir '$(DATA_DIR)'

build:
	scripts/install build
	$(CARGO) build --release --locked --package landfall

check:
	CARGO='$(CARGO)' scripts/test check

test:
	CARGO='$(CARGO)' scripts/test all

# On a rule that is broken: prints the seed, its story, and the command that tells it again.
sim-endings:
	scripts/install build
	$(CARGO) build --release --locked --package sim
	$(TARGET_DIR)/release/landfall-sim mix --seeds 0..100 --twice
	$(TARGET_DIR)/release/landfall-sim mix --seeds $(SEEDS)

sim: sim-endings
	$(TARGET_DIR)/release/landfall-sim identity --seeds $(SEEDS)
	$(TARGET_DIR)/release/landfall-sim settle --seeds 0..100

test-containerd: install
	scripts/test-containerd

test-endings-long: install
	$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^endings::(hangs::|.*a_hook_of_45_seconds)/)' --test-threads 4

test-identity: install
	LANDFALL_TEST_STORIES=$(STORIES) LANDFALL_TEST_SEED=$(or $(SEED),1) \
		$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^identity::.*in_many_stories/)' --no-capture

lint:
	scripts/install build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# The tests that say that a file is out of date write it, if they are told to.
schema:
	scripts/install build
	LANDFALL_WRITE_SCHEMA=1 $(CARGO) test --locked --package api --test it schema::

coverage:
	scripts/coverage $(RULES)

bench:
	scripts/install build
	CARGO='$(CARGO)' scripts/bench $(BENCH)
	[ "$$(id -u)" != 0 ] || scripts/bench-pods --landfall $(TARGET_DIR)/release/landfall

install:
	scripts/install all

# `cargo clean` would take the tools along, and they take minutes to install.
clean:
	rm -rf $(TARGET_DIR)/debug $(TARGET_DIR)/release
