#!/usr/bin/env bash
# Builds the program of the version that this one has to work with, which EARLIER names by its commit, as
# target/earlier/kera. Tests of upgrades use it. Says where it is; does nothing if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(<scripts/EARLIER)
target=${CARGO_TARGET_DIR:-$PWD/target}
folder=$target/earlier
mkdir -p "$folder"
# Tests run side by side, and each may ask for it.
exec 9>"$folder/lock"
flock 9
if [ ! -x "$folder/kera" ] || [ "$(cat "$folder/commit" 2>/dev/null)" != "$commit" ]; then
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "commit $commit is not in this clone; fetch the whole history (git fetch --unshallow)" >&2
        exit 3
    fi
    rm -rf "$folder/source"
    mkdir "$folder/source"
    git archive "$commit" | tar x -C "$folder/source"
    # By another version of its own crates they get other names among what is built, and people see which program is which. All
    # other crates are shared with this build: with an example they have the features of `cargo test --workspace`.
    sed -i 's/^version = "[^"]*"$/version = "0.0.1"/' "$folder/source/Cargo.toml"
    cd "$folder/source"
    env -u RUSTFLAGS CARGO_BUILD_BUILD_DIR="$target" \
        cargo build --quiet --workspace --bin kera --example check --target-dir "$folder/out" >&2
    cp "$folder/out/debug/kera" "$folder/kera.new"
    mv "$folder/kera.new" "$folder/kera"
    echo "$commit" >"$folder/commit"
fi
echo "$folder/kera"
