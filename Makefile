# The two commands are `make up` and `make test`; `make help` lists the others. Each installs what it
# needs, and each can be run again at any time.

DATA_DIR ?= /var/lib/landfall
CARGO ?= cargo
SEEDS ?= 0..10000
STORIES ?= 20
RUNS ?= 100
RESTARTS ?= 200
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Targets run one after another, even with -j.
.NOTPARALLEL:
.PHONY: help up build check sim sim-endings test test-containerd test-endings-long test-drain-long test-drill-long test-identity test-history lint schema coverage rule bench install clean

help:
	@echo 'Run'
	@echo '  make up                 build landfall and run it as root; DATA_DIR=$(DATA_DIR)'
	@echo '  make build              only build it: $(TARGET_DIR)/release/landfall'
	@echo ''
	@echo 'Check a change'
	@echo '  make check              in minutes: formatting, lints, tests without containers, 210 simulated clusters'
	@echo '  make test               everything that must pass before a change lands'
	@echo '  make lint               formatting and lints only'
	@echo ''
	@echo 'Longer tests'
	@echo '  make test-containerd    all tests of pods on containerd'
	@echo '  make test-endings-long  terminations that take up to a minute'
	@echo '  make test-drain-long    no request is lost with acknowledged drain: RESTARTS=200 under load'
	@echo '  make test-drill-long    drills with slow proxies and servers that stop badly'
	@echo '  make test-identity      never two pods of one name: STORIES=20 of cut networks and killed nodes, from SEED=1'
	@echo '  make test-history       reads and writes are linearizable: RUNS=100 with failing servers, from SEED=1'
	@echo '  make sim                ten thousand simulated clusters each of terminations, identity, traffic and drain, 100 that settle'
	@echo '  make sim-endings        only the terminations; SEEDS=0..100 for fewer'
	@echo ''
	@echo 'Rules and figures'
	@echo '  make coverage           rules that no test names; RULES="T-NODE W" lists the tests too (docs/rules)'
	@echo '  make rule R=T-NODE-12   the text of a rule and the tests that prove it'
	@echo '  make bench              measure; BENCH="--quick", "--grow", "--json" (docs/BENCHMARKS.md)'
	@echo ''
	@echo 'Housekeeping'
	@echo '  make install            install what building, testing and measuring need'
	@echo '  make schema             regenerate crates/api/src/schema from the types of k8s-openapi'
	@echo '  make clean              remove build results; installed tools and DATA_DIR stay'

# Only running needs root: Rust is often installed for one user.
up: build
	exec $(SUDO) $(TARGET_DIR)/release/landfall up --data-dir '$(DATA_DIR)'

build:
	scripts/install build
	$(CARGO) build --release --locked --package landfall

check:
	CARGO='$(CARGO)' scripts/test check

test:
	CARGO='$(CARGO)' scripts/test all

# If a rule is broken, it prints the seed, the trace, and the command that repeats it.
sim-endings:
	scripts/install build
	$(CARGO) build --release --locked --package sim
	$(TARGET_DIR)/release/landfall-sim mix --seeds 0..100 --twice
	$(TARGET_DIR)/release/landfall-sim mix --seeds $(SEEDS)

sim: sim-endings
	$(TARGET_DIR)/release/landfall-sim identity --seeds $(SEEDS)
	$(TARGET_DIR)/release/landfall-sim traffic --seeds 0..100 --twice
	$(TARGET_DIR)/release/landfall-sim traffic --seeds $(SEEDS)
	$(TARGET_DIR)/release/landfall-sim drain --seeds $(SEEDS)
	$(TARGET_DIR)/release/landfall-sim settle --seeds 0..100

test-containerd: install
	scripts/test-containerd

test-endings-long: install
	$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^endings::(hangs::|.*a_hook_of_45_seconds)/)' --test-threads 4

test-drain-long: install
	LANDFALL_TEST_RESTARTS=$(RESTARTS) $(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^drain::.*in_many_restarts/)' --no-capture

test-drill-long: install
	$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^pods::drill::long::/)'

test-identity: install
	LANDFALL_TEST_STORIES=$(STORIES) LANDFALL_TEST_SEED=$(or $(SEED),1) \
		$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^identity::.*in_many_stories/)' --no-capture

test-history: install
	LANDFALL_TEST_RUNS=$(RUNS) LANDFALL_TEST_SEED=$(or $(SEED),1) \
		$(CARGO) nextest run --locked --package landfall --test it \
		--ignore-default-filter -E 'test(/^history::.*in_many_runs/)' --no-capture

lint:
	scripts/install build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# The tests that find a file out of date write it if this variable is set.
schema:
	scripts/install build
	LANDFALL_WRITE_SCHEMA=1 $(CARGO) test --locked --package api --test it schema::

coverage:
	scripts/coverage $(RULES)

rule:
	@scripts/coverage --rule '$(R)'

bench:
	scripts/install build
	CARGO='$(CARGO)' scripts/bench $(BENCH)
	[ "$$(id -u)" != 0 ] || scripts/bench-pods --landfall $(TARGET_DIR)/release/landfall
	[ "$$(id -u)" != 0 ] || CARGO='$(CARGO)' scripts/bench-services

install:
	scripts/install all

# `cargo clean` would remove the tools too, and they take minutes to install.
clean:
	rm -rf $(TARGET_DIR)/debug $(TARGET_DIR)/release
