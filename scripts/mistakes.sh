#!/usr/bin/env bash
# Plants the bugs of tests/mistakes, one after the other, on real servers, and requires that the rules or the test
# which each names find it (8 to 14 minutes):
#
#   ONLY='redis etcd/no-owner' mistakes.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PLANT=1 ONLY=${ONLY:-}
status=0
go test -count=1 -timeout 3h -parallel 2 -v -run '^TestPlanted$' ./tests/mistakes |
	grep --line-buffered -vE '^ *(=== |--- PASS)' || status=${PIPESTATUS[0]}
exit "$status"
