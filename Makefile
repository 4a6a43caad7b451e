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

.PHONY: help test sim seeds check-needs fmt clippy deny unit shuttle sanitize doc test-rdma e2e deploy-check house connectors python regenerate package test-dist test-long fuzz bench bench-quick bench-kafka bench-kafka-quick bench-cluster bench-cluster-quick bench-cluster-synced bench-cluster-synced-quick bench-exactly-once bench-exactly-once-quick bench-document bench-parts bench-owners profile instructions dist demo clean

help: ## Says what there is.
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-26s %s\n", $$1, $$2 }' Makefile

test: ## Runs all that CI runs, and sums it up.
	@scripts/test.sh

check-needs: ## Looks for the tools that the tests need; installs them as root on Debian.
	@scripts/needs.sh

fmt: ## Checks the formatting.
	cargo fmt --all --check

clippy: ## Lints everything, warnings denied.
	cargo clippy $(LOCKED) --workspace --all-targets --test seeds -- -D warnings

deny: ## Checks licences, banned crates and sources of the dependencies.
	cargo deny --locked check --hide-inclusion-graph licenses bans sources

unit: ## Unit, property, fault, end-to-end and documentation tests of every crate.
	cargo test $(LOCKED) --workspace --no-fail-fast

shuttle: ## The model test of the lock order: explores schedules of threads.
	RUSTFLAGS="$${RUSTFLAGS:-} --cfg kera_shuttle" cargo test $(LOCKED) -p kera-streamlet \
		--target-dir $${CARGO_TARGET_DIR:-target}/shuttle --test model

# The sanitizer's run time comes with stable Rust, its flag does not. It is told of no leaks: tests leave statics behind.
sanitize: ## The tests of the crates with unsafe code, under the address sanitizer.
	ASAN_OPTIONS=detect_leaks=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only RUSTC_BOOTSTRAP=1 RUSTFLAGS="$${RUSTFLAGS:-} -Zsanitizer=address" \
		cargo test $(LOCKED) --target $$(rustc -vV | sed -n 's/^host: //p') \
		--target-dir $${CARGO_TARGET_DIR:-target}/sanitized -p kera-log-segments -p kera-replication --lib --test backup --test tcp

sim: ## 200 whole clusters played from seeds, with faults, those that failed once, and rules broken on purpose.
	cargo test $(LOCKED) --release -p kera-sim --test seeds

# `make seeds SEEDS=10000 FIRST=100000` plays others.
SEEDS ?= 1000
FIRST ?= 1
seeds: ## Whole clusters from other seeds; a failure prints the command that repeats it.
	cargo run $(LOCKED) --release -p kera-sim -- --first $(FIRST) --seeds $(SEEDS)

# With examples all crates have the features that `make clippy` has looked at them with.
doc: ## The API documentation, warnings denied.
	RUSTDOCFLAGS="$${RUSTDOCFLAGS:-} -D warnings" cargo doc $(LOCKED) --workspace --no-deps --lib --bins --examples

# Needs QEMU, and cmake and libclang to build; where they cannot be had it says so and passes.
test-rdma: ## The rdma transport in virtual machines with a software network card, about 5 minutes.
	@scripts/rdma/test.sh

# Takes some 10 minutes to build.
test-dist: dist ## The program as it is shipped: brokers of it in a virtual machine with a software network card.
	@KERA_PROGRAM=$${CARGO_TARGET_DIR:-target}/dist/kera scripts/rdma/test.sh brokers

e2e: ## The end-to-end tests alone: the program as a process, the crash loop, the demo.
	cargo test $(LOCKED) --workspace --no-fail-fast --test 'e2e*' --test 'crash*' --test 'demo*'

deploy-check: ## The files of deploy/ alone, against the tools that read them and the program they start.
	cargo test $(LOCKED) -p kera --test deploy

house: ## The rules of the house alone: imports, unsafe code, documents.
	cargo test $(LOCKED) -p kera-xtask -p kera-bench --test house

# Needs Java 17 and Maven; where they cannot be had it says so and passes.
connectors: ## The tests of the Java client and of the Flink connector, against the program.
	@scripts/connectors.sh

# Needs Python 3.10 or later; where it cannot be had it says so and passes.
python: ## The tests of the Python client, against the program.
	@scripts/python.sh

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
# What `make bench` runs; `make bench SCENARIOS=bench/scenarios/start.toml` runs one. The cases of Kafka clients alone take
# 25 minutes and have a target of their own, and so have clusters, which need etcd, and transactions and compaction.
SCENARIOS ?= $(filter-out %quick.toml %/kafka.toml %/cluster.toml %/cluster-synced.toml %/exactly-once.toml %/compaction.toml,$(sort $(wildcard bench/scenarios/*.toml)))

bench: ## Kera beside its peers in one session, about 36 minutes; writes docs/benchmarks.md and its plots.
	$(KERA_BENCH) run $(SCENARIOS) \
		--out docs/benchmarks --document docs/benchmarks.md

bench-quick: ## The same in about 5 minutes: fewer cases, fewer runs, for the terminal only.
	$(KERA_BENCH) run $(or $(wildcard bench/scenarios/quick.toml),bench/scenarios/kafka-quick.toml)

bench-kafka: ## Kafka clients at Kera and at Apache Kafka alone, about 25 minutes.
	$(KERA_BENCH) run bench/scenarios/kafka.toml --out docs/benchmarks --document docs/benchmarks.md

bench-kafka-quick: ## The same in 5 minutes, for the terminal only.
	$(KERA_BENCH) run bench/scenarios/kafka-quick.toml

# Needs etcd (Debian: etcd-server) besides what Apache Kafka needs, and about 5 GB of memory.
bench-cluster: ## Clusters of Kera and of Apache Kafka, KerA's figures 5 and 6, about 12 minutes.
	$(KERA_BENCH) run bench/scenarios/cluster.toml --out docs/benchmarks --document docs/benchmarks.md

bench-cluster-quick: ## The same without the figure's smaller clusters and with 2 runs, 4 minutes, for the terminal only.
	$(KERA_BENCH) run bench/scenarios/cluster.toml --only brokers=3 --repetitions 2

bench-cluster-synced: ## Acknowledgements that mean three flushed disks, at Kera and at Apache Kafka, about 20 minutes.
	$(KERA_BENCH) run bench/scenarios/cluster-synced.toml --out docs/benchmarks --document docs/benchmarks.md

bench-cluster-synced-quick: ## The same with 1 run and a fifth of the time, 4 minutes, for the terminal only.
	$(KERA_BENCH) run bench/scenarios/cluster-synced.toml --repetitions 1 --divide 5

bench-exactly-once: ## Transactions, compaction and share groups beside Apache Kafka's, about 20 minutes.
	$(KERA_BENCH) run bench/scenarios/exactly-once.toml bench/scenarios/compaction.toml --out docs/benchmarks --document docs/benchmarks.md

bench-exactly-once-quick: ## The same with 2 runs and half of the time, about 5 minutes, for the terminal only.
	$(KERA_BENCH) run bench/scenarios/exactly-once.toml bench/scenarios/compaction.toml --repetitions 2 --divide 2

bench-document: ## Tables and plots of docs/benchmarks.md anew, from the JSON beside it.
	cargo run $(LOCKED) -p kera-bench -- report docs/benchmarks --document docs/benchmarks.md
	python3 connectors/python/bench/compare.py report docs/benchmarks/python.json docs/benchmarks.md
	python3 connectors/flink-bench/compare.py report docs/benchmarks/flink.json docs/benchmarks.md

bench-parts: ## The criterion benches of the parts.
	cargo bench $(LOCKED) -p kera-bench

# Needs etcd, 4 GB of disk, and a machine that has nothing else to do.
bench-owners: ## What failover, hand-overs and a new broker cost those who send, about 30 minutes; writes a section of docs/benchmarks.md.
	$(KERA_BENCH) cluster --out docs/benchmarks --document docs/benchmarks.md

# Needs Linux's perf, and about 5 GB of disk.
profile: ## Where the broker's time goes: flame graphs and a table in docs/benchmarks/profile.
	cargo run $(LOCKED) --release -p kera-bench -- profile --out docs/benchmarks/profile

dist: ## Builds the program as it is shipped, with RDMA: target/dist/kera. Needs cmake and libclang.
	@scripts/dist.sh

package: ## What is given to users, in target/package: a Debian package, an archive, sums, a bill of materials.
	@scripts/release.sh

demo: ## The demo as users see it.
	cargo run $(LOCKED) --release -- demo

clean: ## Removes what builds left behind.
	cargo clean
	rm -rf fuzz/target
