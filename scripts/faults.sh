#!/usr/bin/env bash
# Runs the cells of the guarantee matrix on real servers, ROUNDS times each (default 20, some 25 minutes; a backend's cells one
# after the other, all backends at once), records what came of them and renders the documents:
#
#   ROUNDS=20 ONLY='etcd redlock/server-killed latency' faults.sh
#
# ONLY chooses backends, faults, or single cells; without it the bugs of tests/mistakes are planted afterwards (mistakes.sh).
# RECORD names the file of the results; RECORD= records nothing. A history that breaks a promise is kept
# in SAVE (default: a folder in the temporary directory), as lines of JSON and as a page.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ROUNDS=${ROUNDS:-20} ONLY=${ONLY:-}
export RECORD=${RECORD-$PWD/tests/guarantees/results.json}
export SAVE=${SAVE:-${TMPDIR:-/tmp}/fencelock-faults}

status=0
go test -count=1 -timeout 6h -v -run '^TestFaults$' ./tests/guarantees | grep --line-buffered -E '^(---|FAIL|ok|panic)|^ *--- |^ {4,}[a-z_]+_test\.go|^ {8,}' || status=${PIPESTATUS[0]}
if [[ -n $RECORD ]]; then
	UPDATE=1 go test -count=1 -run '^TestDocs$' ./tests/guarantees || status=$?
fi
[[ -n $ONLY ]] || scripts/mistakes.sh || status=$?
[[ $status -eq 0 ]] || echo "faults: histories that break a promise are in $SAVE"
exit "$status"
