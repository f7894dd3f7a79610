#!/usr/bin/env bash
# Plants the bugs of conformance/mistakes, one after the other, on real servers, and requires that the rules which each names
# find it (6 to 10 minutes):
#
#   ONLY='redis etcd/no-owner' mistakes.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PLANT=1 ONLY=${ONLY:-}
status=0
go test -count=1 -timeout 3h -parallel 2 -v -run '^TestPlanted$' ./conformance/mistakes |
	grep --line-buffered -vE '^ *(=== |--- PASS)' || status=${PIPESTATUS[0]}
exit "$status"
