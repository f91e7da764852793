#!/usr/bin/env bash
# Lints the chart and compares what it renders with golden files.
#
#   tests/chart/run.sh            checks
#   tests/chart/run.sh --bless    writes the golden files anew; read the difference before you commit it
#
# cases/NAME.yaml are values, golden/NAME.yaml is what they render to. refused/NAME.yaml are values that the schema must
# refuse; their first line is "# " and words of the expected error. HELM names the helm program; else the one that
# tests/tools builds is taken.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
chart=$here/../../helm/dunnage
kube_version=1.30.0
bless=false
[[ ${1:-} == --bless ]] && bless=true

helm=${HELM:-$("$here/../tools/build" helm)/helm}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

pass() { passed=$((passed + 1)); }
fail() {
  failed=$((failed + 1))
  echo "FAILED: $1"
  sed 's/^/    /' "$scratch/output"
}

# render VALUES [OPTION...]: the manifests and the hooks, as `helm install` would send them.
render() {
  local values=$1
  shift
  "$helm" template dunnage "$chart" --namespace dunnage-system --kube-version "$kube_version" --values "$values" "$@"
}

check_lint() {
  local values=$1 name
  name=$(basename "$values" .yaml)
  if "$helm" lint --strict "$chart" --namespace dunnage-system --values "$values" >"$scratch/output" 2>&1; then
    pass
  else
    fail "lint with $name"
  fi
}

# The CRD is left out: it is generated, and tested where it is made.
check_golden() {
  local values=$1 name
  name=$(basename "$values" .yaml)
  if ! render "$values" --set crd.install=false >"$scratch/rendered.yaml" 2>"$scratch/output"; then
    fail "$name does not render"
  elif $bless; then
    cp "$scratch/rendered.yaml" "$here/golden/$name.yaml"
    pass
  elif diff -u "$here/golden/$name.yaml" "$scratch/rendered.yaml" >"$scratch/output" 2>&1; then
    pass
  else
    fail "$name renders differently (expected is -, rendered is +)"
  fi
}

check_refused() {
  local values=$1 name words
  name=$(basename "$values" .yaml)
  words=$(head -n 1 "$values")
  words=${words#\# }
  if render "$values" >"$scratch/output" 2>&1; then
    echo "the values were taken" >"$scratch/output"
    fail "$name must be refused"
  elif grep -qF -- "$words" "$scratch/output"; then
    pass
  else
    fail "$name is refused, but not with: $words"
  fi
}

# contains NAME PATTERN...: the whole chart with default values has every pattern as a line.
contains() {
  local name=$1 pattern
  shift
  for pattern in "$@"; do
    if ! grep -qE -- "$pattern" "$scratch/all.yaml"; then
      echo "no line matches: $pattern" >"$scratch/output"
      fail "$name"
      return
    fi
  done
  pass
}

lacks() {
  if grep -nE -- "$2" "$scratch/all.yaml" >"$scratch/output"; then fail "$1"; else pass; fi
}

for values in "$here"/cases/*.yaml; do
  check_lint "$values"
  check_golden "$values"
done
for values in "$here"/refused/*.yaml; do
  check_refused "$values"
done

render "$here/cases/default.yaml" >"$scratch/all.yaml" 2>"$scratch/output" || fail "the default values do not render"
contains "the CRD is in the chart and kept at uninstall" \
  '^  name: storagebackends\.dunnage\.dev$' '^    helm\.sh/resource-policy: keep$'
lacks "no rule grants everything" "['\"]\*['\"]|- \*\$"
lacks "no rule allows to escalate or impersonate" '\b(escalate|impersonate)\b'

echo "chart: $passed passed, $failed failed, 0 skipped"
[[ $failed == 0 ]]
