#!/usr/bin/env bash
# second-try-java.sh REPORTS: which tests in Java failed, by Maven's reports below a directory, as CLASS#METHOD, if they get
# a second try; else says why there is none, and fails. The rules are those of second-try.sh.
set -uo pipefail

most=3
# They depend on nothing but their input.
input=' BatchesTest BuildersTest LanePlanTest LaneQueueTest PublishedTest RangePlanTest ReadmeTest ScramTest StateTest '
# They judge whether each record counts once: what they find stands.
found=' ExactlyOnceTest KeraSinkSuiteTest TransactionsTest '
none() {
    printf 'no second try: %s\n' "$*" >&2
    exit 1
}

# Of `<testcase name="METHOD(int)[1]" classname="a.b.CLASS" ...>` those with a failure or an error in them.
failed=$(find "$1" -path '*/surefire-reports/TEST-*.xml' -exec awk '
    function word(name) { return match($0, " " name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : "" }
    /<testcase / { method = word("name"); sub(/[^A-Za-z0-9_].*/, "", method)
        class = word("classname"); sub(/.*\./, "", class) }
    /<(failure|error)[ >]/ { print class "#" method }' {} + | sort -u)
[ -n "$failed" ] || none 'not a test failed, but what builds or starts them'
[ "$(wc -l <<<"$failed")" -le "$most" ] || none "more than $most tests failed"
while IFS='#' read -r class method; do
    [ -n "$method" ] || none "$class failed as a whole"
    [[ $input != *" $class "* ]] || none "$class: its tests depend on nothing but their input"
    [[ $found != *" $class "* ]] || none "$class: what was found stands, whatever another try says"
done <<<"$failed"
printf '%s\n' "$failed"
