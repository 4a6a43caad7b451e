#!/usr/bin/env bash
# The tests of the Python client, against brokers of this tree's program. pip downloads pytest into a virtual environment in
# the target directory. Arguments are pytest's: scripts/python.sh -k fork
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    printf '!!! the Python client is NOT tested: %s\n' "$1"
    printf 'SKIPPED: the Python client: %s\n' "$1" >>"${KERA_SKIP_FILE:-/dev/null}"
    exit 0
}
command -v python3 >/dev/null || skip "python3 is not installed"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$(python3 --version) is older than 3.10"
python3 -c 'import ensurepip, venv' 2>/dev/null || skip "python3 has no venv (Debian: python3-venv)"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/python"
target=$(realpath "$target")
here=$target/python
tests=$PWD/connectors/python/tests

# A new one when Python or what is asked for changes.
wanted=$(python3 --version; cat "$tests/requirements.txt")
if [ "$(cat "$here/venv/made-of" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$here/venv"
    python3 -m venv "$here/venv"
    timeout 120 "$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
        --requirement "$tests/requirements.txt" || skip "pip cannot install what $tests/requirements.txt names"
    printf '%s\n' "$wanted" >"$here/venv/made-of"
fi

scripts/build.sh --lib
# As a wheel lays it out.
rm -rf "$here/package"
mkdir -p "$here/package"
cp -r connectors/python/python/kera "$here/package/kera"
cp "$target/debug/lib_kera.so" "$here/package/kera/_kera.abi3.so"

# `timeout` leads a process group. Whatever ends the tests or this script, brokers that they started end too.
group=
end_all() { [ -z "$group" ] || kill -KILL -- "-$group" 2>/dev/null || true; }
trap end_all EXIT
trap 'exit 130' INT TERM
# A test that hangs fails by a limit of its own. -v has the name of one that takes the whole run along stand last.
run() {
    local status=0
    rm -f "$here/report.xml"
    env -C "$here" KERA_PROGRAM="$target/debug/kera" PYTHONPATH="$here/package" PYTHONDONTWRITEBYTECODE=1 \
        timeout --kill-after=30 900 "$here/venv/bin/python" -m pytest -p no:cacheprovider --junitxml="$here/report.xml" \
        --rootdir "$tests" --import-mode=prepend -v -ra "$@" &
    group=$!
    wait "$group" || status=$?
    end_all
    group=
    return "$status"
}
# The wheel has a script of its own.
run "$tests" --ignore "$tests/wheel" "$@" && exit 0

# Each of a few tests once more, alone.
failed=$(scripts/second-try-python.sh "$here/report.xml")
for test in $failed; do
    printf '\n==> once more: %s\n' "$test"
    run "$tests/$test"
    printf 'TRIED TWICE: %s: the first try failed, see the log\n' "$test" >>"${KERA_RETRY_FILE:-/dev/null}"
done
