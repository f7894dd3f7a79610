#!/usr/bin/env bash
# Makes faults on every backend at once, for HOURS (default 1), several at a time and on many names, and adds what came of it to
# the figures of this version in docs/soak.json:
#
#   HOURS=2 ONLY='etcd zookeeper' soak.sh
#
# The figures are written after each round, so it may be ended at any time (Ctrl-C lets the rounds under way end) and
# started again. It runs with the least priority. A history that breaks a promise is kept in SAVE.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^## \[\{0,1\}\([^] ]*\).*/\1/p' CHANGELOG.md | head -n 1)
export HOURS=${HOURS:-1} ONLY=${ONLY:-} VERSION=${VERSION:-${version,,}}
export FIGURES=${FIGURES:-$PWD/docs/soak.json}
export SAVE=${SAVE:-${TMPDIR:-/tmp}/fencelock-soak}

program=$(mktemp -d)
trap 'rm -rf "$program"' EXIT
go test -c -o "$program/soak.test" ./tests/guarantees
cd tests/guarantees # as go test does
status=0
nice -n 19 "$program/soak.test" -test.run '^TestSoak$' -test.timeout 0 || status=$?
cat "$FIGURES"
[[ $status -eq 0 ]] || echo "soak: histories that break a promise are in $SAVE"
exit "$status"
