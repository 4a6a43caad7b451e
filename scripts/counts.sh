#!/usr/bin/env bash
# counts.sh LOG: how many tests passed, failed and did not run, by what printed the log.
#
# "test result: ok. 3 passed; 0 failed; 0 ignored; ..." for each test binary and for doc tests; of Maven
# "Tests run: 4, Failures: 0, Errors: 0, Skipped: 1" for each module. Lines for a class also have its time. Of pytest
# "1 failed, 4 passed, 1 skipped in 2.50s".
exec awk '/^test result: / { for (i = 2; i <= NF; i++) {
        if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1)
        if ($i == "ignored;") g += $(i - 1) } }
    /Tests run: [0-9]+, Failures: [0-9]+, Errors: [0-9]+, Skipped: [0-9]+[^0-9,]*$/ {
        sub(/.*Tests run: /, ""); split($0, n, /[^0-9]+/)
        p += n[1] - n[2] - n[3] - n[4]; f += n[2] + n[3]; g += n[4] }
    /^(=+ )?[0-9]+ (passed|failed|skipped|errors?)(, | in ).*[0-9.]+s/ { for (i = 1; i <= NF; i++) {
        if ($i ~ /^passed,?$/) p += $(i - 1); if ($i ~ /^(failed|errors?),?$/) f += $(i - 1)
        if ($i ~ /^skipped,?$/) g += $(i - 1) } }
    END { print p + 0, f + 0, g + 0 }' "$1"
