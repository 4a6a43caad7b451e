#!/usr/bin/env bash
# The tests of the Spark connector, against brokers of this tree's program. Maven downloads what it lacks, about 310 MB.
exec "$(dirname "$0")/engine.sh" Spark spark
