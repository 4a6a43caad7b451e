#!/usr/bin/env bash
# wheel.sh [FOLDER]: builds the wheel of the Python client, installs it as a user does, alone in a fresh virtual environment for each
# version of Python that it is for, looks at what it says of itself, and runs the README's programs against a broker of this tree. Then
# the wheel is in FOLDER, if one is named, and whatever keeps it from being made and tried is a failure.
#
# pip downloads maturin and pytest, 12 MB, which stay in the target directory, as all else does. Without a network it works if they are
# there and cargo has what the client is built of. KERA_PROGRAM is the broker in place of one that is built here.
set -euo pipefail
cd "$(dirname "$0")/.."

to=${1:-}
[ -z "$to" ] || to=$(realpath -m "$to")
say() { printf '!!! %s\n' "$1"; }
note() { printf 'SKIPPED: %s\n' "$1" >>"${KERA_SKIP_FILE:-/dev/null}"; }
skip() {
    say "the wheel of the Python client is NOT made: $1"
    [ -z "$to" ] || exit 1
    note "the wheel of the Python client: $1"
    exit 0
}
# Whether a program is a Python that can have virtual environments. That of a version manager may be there and not start.
can() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
command -v python3 >/dev/null || skip "python3 is not installed"
can python3 || skip "$(python3 --version 2>&1) is older than 3.10, or has no venv (Debian: python3-venv)"
command -v objdump >/dev/null || skip "objdump is not installed (Debian: binutils)"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/wheel"
target=$(realpath "$target")
here=$target/wheel
client=$PWD/connectors/python
tests=$client/tests

# A new one when Python or what is asked for changes.
wanted=$(python3 --version; cat "$tests/wheel/requirements.txt")
if [ "$(cat "$here/tools/made-of" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$here/tools"
    python3 -m venv "$here/tools"
    timeout 120 "$here/tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --requirement "$tests/wheel/requirements.txt" ||
        skip "pip cannot install what $tests/wheel/requirements.txt names"
    printf '%s\n' "$wanted" >"$here/tools/made-of"
fi

program=${KERA_PROGRAM:-}
if [ -z "$program" ]; then
    cargo build --locked --release -p kera
    program=$target/release/kera
fi
program=$(realpath "$program")

# `timeout` leads a process group. Whatever ends the tests or this script, brokers that they started end too.
group=
end_all() { [ -z "$group" ] || kill -KILL -- "-$group" 2>/dev/null || true; }
trap 'end_all; rm -f "$client/third-party.txt"' EXIT
trap 'exit 130' INT TERM

# The notices of the libraries in it, which those who hand the wheel on owe.
scripts/materials.py notices kera-python >"$client/third-party.txt"
rm -rf "$here/dist"
"$here/tools/bin/maturin" build --locked --release --manifest-path "$client/Cargo.toml" --out "$here/dist"
wheels=("$here"/dist/*)
[ "${#wheels[@]}" = 1 ] || { printf 'wheel: maturin made %s\n' "${wheels[*]}" >&2; exit 1; }
wheel=${wheels[0]}

# python_of VERSION: a Python of that version, by its name, as python3, or where pyenv keeps it.
python_of() {
    local one
    for one in "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python3; do
        can "$one" && [ "$("$one" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$1" ] || continue
        printf '%s\n' "$one"
        return
    done
}
versions=$(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' "$client/pyproject.toml")
own=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
failed=0
for version in $(printf '%s\n' $versions "$own" | sort -uV); do
    python=$(python_of "$version")
    if [ -z "$python" ]; then
        say "the wheel is NOT tried with Python $version, which is not installed"
        note "the wheel with Python $version: it is not installed"
        continue
    fi
    printf '\n==> %s with Python %s\n' "$(basename "$wheel")" "$version"
    rm -rf "$here/fresh"
    env -u PYTHONPATH -u PYTHONHOME "$python" -m venv "$here/fresh"
    # Nothing else comes along: it needs nothing.
    env -u PYTHONPATH -u PYTHONHOME "$here/fresh/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
    # A test that hangs fails by a limit of its own. Two at a time would be two brokers at a time, and gain little.
    env -u PYTHONPATH -u PYTHONHOME -C "$here" KERA_PROGRAM="$program" KERA_WHEEL="$wheel" KERA_PYTHON="$here/fresh/bin/python" \
        PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 \
        timeout --kill-after=30 600 "$here/tools/bin/python" -m pytest -p no:cacheprovider --rootdir "$tests" \
        --import-mode=prepend -v -ra "$tests/wheel" "$tests/test_readme.py" &
    group=$!
    wait "$group" || failed=1
    end_all
    group=
done
[ "$failed" = 0 ] || { printf 'wheel: %s is not what it should be, see above\n' "$(basename "$wheel")" >&2; exit 1; }
if [ -n "$to" ]; then
    mkdir -p "$to"
    rm -f "$to"/kera_client-*.whl
    cp "$wheel" "$to/"
fi
printf '\nwheel: %s, %s\n' "$(basename "$wheel")" "$(du -h --apparent-size "$wheel" | cut -f 1)"
