# `make` alone says what there is. `make test` is all that CI runs.
#
# Every target works on its own; `make test` runs the stages in order, goes on after a failure so
# that one run shows all there is to mend, and ends with the sums.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Where rustup puts what it installs, ahead of an older system cargo.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
# `make test` works from a fresh clone and must not change the lock file.
LOCKED := --locked

.PHONY: help test check-needs fmt clippy deny unit shuttle doc e2e house regenerate test-long fuzz bench bench-quick bench-kafka bench-kafka-quick bench-document bench-parts profile instructions demo clean

help: ## Says what there is.
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile

test: ## Runs all that CI runs, and sums it up.
	@scripts/test.sh

check-needs: ## Looks for the tools that the tests need; installs them as root on Debian.
	@scripts/needs.sh

fmt: ## Checks the formatting.
	cargo fmt --all --check

clippy: ## Lints everything, warnings denied.
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings

deny: ## Checks licences, banned crates and sources of the dependencies.
	cargo deny --locked check --hide-inclusion-graph licenses bans sources

unit: ## Unit, property, fault, end-to-end and documentation tests of every crate.
	cargo test $(LOCKED) --workspace --no-fail-fast

shuttle: ## The model test of the lock order: explores schedules of threads.
	RUSTFLAGS="$${RUSTFLAGS:-} --cfg kera_shuttle" cargo test $(LOCKED) -p kera-streamlet \
		--target-dir $${CARGO_TARGET_DIR:-target}/shuttle --test model

doc: ## The API documentation, warnings denied.
	RUSTDOCFLAGS="$${RUSTDOCFLAGS:-} -D warnings" cargo doc $(LOCKED) --workspace --no-deps

e2e: ## The end-to-end tests alone: the program as a process, the crash loop, the demo.
	cargo test $(LOCKED) --workspace --no-fail-fast --test 'e2e*' --test 'crash*' --test 'demo*'

house: ## The rules of the house alone: imports, unsafe code, documents.
	cargo test $(LOCKED) -p kera-bench --test house

regenerate: ## Writes anew what is generated from the code: reference documents, seeds of the fuzz targets, counts.
	KERA_REGENERATE=1 cargo test $(LOCKED) --workspace
	cargo run $(LOCKED) --release -p kera-instructions -- accept

instructions: ## Counts the instructions of the data path under callgrind against instructions/counts.toml.
	cargo run $(LOCKED) --release -p kera-instructions -- check

test-long: ## The long runs: crash loop, fuzzing, properties; appends to docs/reliability.md.
	@scripts/test-long.sh

fuzz: ## A minute of each fuzz target (FUZZ_SECONDS=60), with nightly Rust and cargo-fuzz.
	@scripts/fuzz.sh

# Needs Java 17 and Maven for Apache Kafka, Go for NATS JetStream, about 12 GB of disk, and a machine that has nothing else to do.
KERA_BENCH = cargo run $(LOCKED) --release -p kera-bench --
# What `make bench` runs; `make bench SCENARIOS=bench/scenarios/start.toml` runs one.
SCENARIOS ?= $(filter-out %quick.toml,$(sort $(wildcard bench/scenarios/*.toml)))

bench: ## Kera beside its peers, every file in one session, about 30 minutes; writes docs/benchmarks.md and its plots.
	$(KERA_BENCH) run $(SCENARIOS) \
		--out docs/benchmarks --document docs/benchmarks.md

bench-quick: ## The same in about 5 minutes: fewer cases, fewer runs, for the terminal only.
	$(KERA_BENCH) run $(or $(wildcard bench/scenarios/quick.toml),bench/scenarios/kafka-quick.toml)

bench-kafka: ## Kafka clients at Kera and at Apache Kafka alone.
	$(KERA_BENCH) run bench/scenarios/kafka.toml --out docs/benchmarks --document docs/benchmarks.md

bench-kafka-quick: ## The same in 5 minutes, for the terminal only.
	$(KERA_BENCH) run bench/scenarios/kafka-quick.toml

bench-document: ## Tables and plots of docs/benchmarks.md anew, from the JSON beside it.
	cargo run $(LOCKED) -p kera-bench -- report docs/benchmarks --document docs/benchmarks.md

bench-parts: ## The criterion benches of the parts.
	cargo bench $(LOCKED) -p kera-bench

# Needs Linux's perf, and about 5 GB of disk.
profile: ## Where the broker's time goes: flame graphs and a table in docs/benchmarks/profile.
	cargo run $(LOCKED) --release -p kera-bench -- profile --out docs/benchmarks/profile

demo: ## The demo as users see it.
	cargo run $(LOCKED) --release -- demo

clean: ## Removes what builds left behind.
	cargo clean
	rm -rf fuzz/target
