export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# Where the tests find the programs that `cargo test` has built with them.
PROGRAMS := $(abspath $(or $(CARGO_TARGET_DIR),target))/release
# Crash points of `make crash-long`, and its first seed.
POINTS ?= 10000000
SEED ?= 1000000
# The folder of real traces for `make test-traces`, and for `make test` to run that too.
TRACES ?=
# What `make run` does: seconds through the cache, where everything lies, and whether it leaves nothing behind.
DEMO_SECONDS ?= 60
DEMO_DIR ?= /tmp/haversack-demo
DEMO_EXIT ?= 0
# Seconds that `make hostile` gives each random attack.
HOSTILE_SECONDS ?= 300
# Seconds that `make fuzz` gives each target.
FUZZ_SECONDS ?= 60

.PHONY: help setup run run-cluster stop test test-end-to-end test-crates test-simulations test-traces bench bench-kernel fuzz hostile crash-long packages packages-test ansible-test libvirt-test docs

help:
	@echo "make run         the demo: four disks on a slow store, without the cache and through it"
	@echo "                 DEMO_SECONDS=60, DEMO_DIR=/tmp/haversack-demo, DEMO_EXIT=1 to leave nothing behind,"
	@echo "                 DEMO_CHART=FILE for a picture of the run"
	@echo "make run-cluster three hosts with VMs on this machine: one has too much load, and the balancer moves VMs away from it;"
	@echo "                 dashboards until Ctrl-C, or DEMO_EXIT=1 to end when the load is even"
	@echo "make stop        stop and remove what the demo left up"
	@echo "make test        as root: everything that must pass before a change goes in"
	@echo "make test-traces TRACES=DIR: known answers on real traces, which are not part of the repository"
	@echo "make bench       figures beside their goals and beside peers, with a page of pictures: target/bench.html"
	@echo "make bench-kernel  beside dm-cache, bcache and dm-writecache, in a guest under software emulation"
	@echo "make crash-long  POINTS=$(POINTS) crash points from seed SEED=$(SEED) on"
	@echo "make fuzz        every fuzz target, FUZZ_SECONDS=$(FUZZ_SECONDS) each"
	@echo "make hostile     attacks on a daemon, HOSTILE_SECONDS=$(HOSTILE_SECONDS) for each random one"
	@echo "make packages    a Debian package and an RPM, in target/packages; make packages-test installs and removes them"
	@echo "make ansible-test as root: has the Ansible role set up a clean Debian with the package and systemd"
	@echo "make libvirt-test as root: has libvirt start, migrate and end a guest, with the hook in place"
	@echo "make docs        the documentation as a site, in target/site/docs"
	@echo "make setup       install what all these need (run and test do it themselves)"

setup:
	@./scripts/setup

run:
	@./scripts/setup run
	cargo build --release -p haversack-daemon -p haversack-cli -p haversack-demo
	@DEMO_SECONDS="$(DEMO_SECONDS)" DEMO_DIR="$(DEMO_DIR)" DEMO_EXIT="$(DEMO_EXIT)" cargo run --quiet --release -p haversack-demo

# Everything is built first, so that the compiler does not slow the guests down.
run-cluster:
	@./scripts/setup cluster
	cargo build --release -p haversack-daemon -p haversack-cli -p haversack-demo
	@./scripts/guest-image >/dev/null
	@DEMO_EXIT="$(DEMO_EXIT)" HAVERSACK_PROGRAMS="$(PROGRAMS)" cargo run --quiet --release -p haversack-demo -- cluster

stop:
	@DEMO_DIR="$(DEMO_DIR)" cargo run --quiet --release -p haversack-demo -- stop

# What the end-to-end tests use is built before they run. They mostly wait, so the other tests and the simulators are built
# and run at the same time, at lower priorities.
test: setup
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --all-features -- -D warnings
	cargo deny check licenses bans sources
	cargo test --workspace --release --lib --bins --tests --no-run
	+$(MAKE) --jobs 2 test-end-to-end test-simulations
	@if [ -n "$(TRACES)" ]; then $(MAKE) test-traces; \
	else echo "Not run: the known answers on real traces (make test TRACES=DIR)"; fi

# Parts of `make test`, which has installed and built what they need. The names of the end-to-end tests begin with e2e;
# the one that begins with z, the zoo, needs a feature. At least three end-to-end tests run at a time, on any machine.
test-end-to-end:
	threads=$$(nproc); HAVERSACK_PROGRAMS="$(PROGRAMS)" RUST_TEST_THREADS=$$((threads > 3 ? threads : 3)) cargo test --workspace --release --test 'e2e*'

test-crates:
	nice -n 5 cargo test --workspace --release --lib --bins --test '[!ez]*' --test 'e[!2]*'
	nice -n 5 cargo test --workspace --release --doc
	RUSTDOCFLAGS="-D warnings" nice -n 5 cargo doc --release --workspace --no-deps

test-simulations: test-crates
	nice -n 19 cargo test --release -p haversack-crash --features bug-zoo --test zoo
	nice -n 19 cargo run --release -p haversack-crash -- --points 100000
	nice -n 19 cargo run --release -p haversack-crash -- --twin --points 50000
	nice -n 19 cargo run --release -p haversack-crash -- --twin --replicas --points 50000
	nice -n 19 cargo run --release -p haversack-crash -- --cluster --points 5000
	nice -n 19 cargo run --release -p haversack-crash -- --cluster --replicas --brief --points 5000

test-traces: setup
	HAVERSACK_TRACES="$(abspath $(TRACES))" cargo test --release -p haversack-trace -p haversack-analyze -p haversack-sim -- --ignored

bench: setup
	cargo run --release -p haversack-bench
	cargo run --release -p haversack-bench -- engine --page target/bench.html

bench-kernel: setup
	cargo run --release -p haversack-bench -- kernel

crash-long: setup
	cargo run --release -p haversack-crash -- --points $(POINTS) --seed $(SEED)

hostile: setup
	cargo build --release -p haversack-daemon -p haversack-cli
	HAVERSACK_PROGRAMS="$(PROGRAMS)" HAVERSACK_HOSTILE_SECONDS=$(HOSTILE_SECONDS) \
		cargo test --release -p haversack-e2e --test e2e-hostile -- --nocapture --test-threads 1

packages:
	@./scripts/setup run
	cargo build --release -p haversack-daemon -p haversack-cli -p haversack-ublk
	./scripts/packages

# Takes a minute or two, most of it for a clean Debian.
packages-test: packages
	./scripts/packages-test

# Takes some minutes, most of them for a clean Debian and for Ansible.
ansible-test: packages
	./scripts/ansible-test

# A minute or two. It installs Debian's libvirtd, which no service starts.
libvirt-test:
	cargo build --release -p haversack-daemon -p haversack-cli
	./scripts/libvirt-test

# What pages link to outside of docs/ is copied beside the book, so that the links hold.
docs:
	@mdbook --version >/dev/null 2>&1 || cargo install mdbook --locked
	rm -rf target/site
	mdbook build docs
	cp -r --parents $$(grep -oh '](\.\./[^)#]*' docs/*.md | cut -c 6- | sort -u) target/site

# Sanitizers are unstable options; RUSTC_BOOTSTRAP lets a stable toolchain take them.
fuzz: setup
	cargo fuzz --version || cargo install cargo-fuzz --locked
	for target in $$(cargo fuzz list); do \
		mkdir -p fuzz/corpus/$$target fuzz/seeds/$$target; \
		RUSTC_BOOTSTRAP=1 cargo fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done
