#!/bin/sh
# timed-test.sh PROGRAM ARGUMENT...: runs PROGRAM for cargo; a test binary tells how long each test took.
#
# The harness of stable Rust tells that only where RUSTC_BOOTSTRAP is set. Cargo must not see it, since build scripts
# that do would build other crates than everybody's: so it is set here, for what has been built. Other programs, as those
# of examples in documents, are left alone. So are what tests start: a binary that a test runs is run as it is.
for name in $(env | sed -n 's/^\(CARGO_TARGET_[A-Z0-9_]*_RUNNER\)=.*/\1/p'); do
    unset "$name"
done
case $1 in
    */deps/*) RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time ;;
esac
exec "$@"
