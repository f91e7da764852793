#!/usr/bin/env bash
# summary.sh ENGINE FOLDER SECONDS: writes FOLDER/results.tsv from ginkgo's report and prints one line. Fails when a test failed,
# or when none ran.
set -euo pipefail

engine=$1
report=$2/report.json
results=$2/results.tsv
[[ -s $report ]] || { echo "conformance-$engine: no report; see $2/e2e.log"; exit 1; }

# Tests that focus and skip left out have no message; those that a capability skipped say which.
jq -r '.[].SpecReports[]?
  | select(.LeafNodeType == "It")
  | select(.State != "skipped" or ((.Failure.Message // "") != ""))
  | [.State, (.RunTime / 1e9 | floor), ((.ContainerHierarchyTexts // []) + [.LeafNodeText] | join(" ")),
     ((.Failure.Message // "") | gsub("[\n\t]"; " ") | .[0:400])] | @tsv' "$report" | sort >"$results"

count() { grep -cE "^($1)"$'\t' "$results" || true; }
passed=$(count passed)
skipped=$(count 'skipped|pending')
failed=$(($(wc -l <"$results") - passed - skipped))
echo "conformance-$engine: $passed passed, $failed failed, $skipped skipped ($3 s; details: $results)"
[[ $failed == 0 && $passed -gt 0 ]]
