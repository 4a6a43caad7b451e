#!/usr/bin/env bash
# Makes what is given to users, from a clone in which nothing is changed: builds the program as it is shipped, packs it,
# installs the package in an empty system and runs a broker there; and the wheel of the Python client, which is installed
# and tried against that program. The files are in target/package. They run wherever
# glibc is as new as the package asks for; build on the oldest system that they are for.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}
# The long runs add lines to this document while they go on.
changed=$(git status --porcelain -- . ':!docs/reliability.md')
[ -z "$changed" ] || fail "the clone has changes that no commit holds:
$changed"

target=${CARGO_TARGET_DIR:-$PWD/target}
commit=$(git rev-parse --short=10 HEAD)
scripts/dist.sh
told=$("$target/dist/kera" --version)
[[ $told == *"commit $commit, features: rdma"* ]] || fail "the program says that it is $told"
package=$(scripts/package.sh "$target/dist/kera" "$target/package")
if command -v lintian >/dev/null; then
    # What stays is in deploy/debian/lintian-overrides, with the reason.
    lintian --allow-root --fail-on error,warning "$package"
else
    echo "release: the package is not looked at by lintian; on Debian: apt-get install lintian" >&2
fi
KERA_PACKAGE=$package cargo test --locked --workspace --test deploy -- package::
KERA_PROGRAM=$target/dist/kera scripts/wheel.sh "$target/package"
(cd "$target/package" && sha256sum kera_client-*.whl >>SHA256SUMS)
printf '\nrelease: %s\n' "$told"
ls -l "$target/package"
