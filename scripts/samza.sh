#!/usr/bin/env bash
# The tests of the Samza connector, against brokers of this tree's program. Maven downloads what it lacks, about 80 MB.
exec "$(dirname "$0")/engine.sh" Samza samza
