#!/usr/bin/env bash
# Makes what all virtual machines begin with; see machine.sh. Exits with 3 if this machine cannot
# have it, and then says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/rdma/machine.sh
make_base
