#!/usr/bin/env bash
# second-try-python.sh REPORT: which tests in Python failed, by pytest's report in JUnit's form, as FILE::TEST, if they get a
# second try; else says why there is none, and fails. The rules are those of second-try.sh.
set -uo pipefail

most=3
# They depend on nothing but their input.
input=' test_stubs test_bench '
# They judge whether each record counts once: what they find stands.
found=' test_transactions '
none() {
    printf 'no second try: %s\n' "$*" >&2
    exit 1
}

# Of `<testcase classname="FILE" name="TEST[a]" ...>` those with a failure or an error in them.
failed=$(awk -v RS='<' '
    function word(name) { return match($0, " " name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : "" }
    /^testcase / { file = word("classname"); test = word("name") }
    /^(failure|error) / { print file "::" test }' "$1" 2>/dev/null | sort -u)
[ -n "$failed" ] || none 'not a test failed, but what builds or starts them'
[ "$(wc -l <<<"$failed")" -le "$most" ] || none "more than $most tests failed"
while read -r name; do
    file=${name%%::*}
    [ -n "$file" ] || none "${name#::} failed as a whole"
    [[ $input != *" $file "* ]] || none "$file: its tests depend on nothing but their input"
    [[ $found != *" $file "* ]] || none "$file: what was found stands, whatever another try says"
done <<<"$failed"
sed 's/::/.py::/' <<<"$failed"
