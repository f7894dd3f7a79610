#!/usr/bin/env bash
# Runs all tests: test.sh [go test flags]
#
# It installs what they need where it may (setup-tests.sh), then says which backends
# run and how, and in its last line which were not run. FENCELOCK_REQUIRE=redis,… makes a
# missing one a failure; FENCELOCK_SERVERS=local|container chooses the kind.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The stores of this version's backends. A pooler goes before one of them, Prometheus reads the metrics, and Chromium
# the page of fencelock serve: as local programs always.
stores=(redis etcd zookeeper postgres)

if [[ ${FENCELOCK_SERVERS:-auto} == container ]]; then
	scripts/setup-tests.sh pgbouncer prometheus chromium
else
	scripts/setup-tests.sh "${stores[@]}" pgbouncer prometheus chromium
fi

# image makes sure that containers of a store can be started: an engine answers, and the image is there, can be pulled,
# or can be built from Debian packages. It exports the image's name.
image() {
	local store=$1 var="FENCELOCK_IMAGE_${1^^}" built="fencelock-test-$1:latest"
	command -v docker >/dev/null && docker version >/dev/null 2>&1 || return 1
	if [[ -n ${!var:-} ]]; then
		docker image inspect "${!var}" >/dev/null 2>&1 || docker pull -q "${!var}" 2>/dev/null
		return
	fi
	if docker image inspect "$built" >/dev/null 2>&1; then
		export "$var=$built"
		return
	fi
	[[ ${FENCELOCK_PULL:-} != never ]] && docker pull -q "$(public "$store")" 2>/dev/null && return
	[[ $(id -u) -eq 0 ]] && scripts/build-images.sh "$store" && export "$var=$built"
}

# public is the name that internal/servers has for the image.
public() { sed -n "s/^\t\"$1\": *\"\(.*\)\",$/\1/p" internal/servers/images.go; }

program() { scripts/setup-tests.sh --have "$1"; }

ran=(memory file) missing=()
for store in "${stores[@]}"; do
	if [[ ${FENCELOCK_SERVERS:-auto} != container ]] && program "$store"; then
		ran+=("$store (local program)")
	elif [[ ${FENCELOCK_SERVERS:-auto} != local ]] && image "$store"; then
		ran+=("$store (container)")
	else
		missing+=("$store")
	fi
done

list() {
	local IFS=,
	echo "${*}" | sed 's/,/, /g'
}

echo "test: backends: $(list "${ran[@]}")"
status=0
# One package at a time: they measure times, on machines with few cores.
go test -race -shuffle=on -p 1 -timeout 20m "$@" ./... || status=$?
# What an operation costs is counted without the race detector, which allocates.
go test -count=1 "$@" -run TestCounts ./bench || status=$?
# A driver from outside, held to the same suite.
(cd examples/nats-driver && go test -race -short -shuffle=on -timeout 10m ./...) || status=$?
# The search of the quorum protocol's states needs the speed that the race detector costs.
go test -count=1 -v "$@" ./redlock/internal/model | grep -v '^=== ' || status=$?
program pgbouncer || echo "test: NOT RUN: Postgres behind a pooler (no pgbouncer; see scripts/setup-tests.sh)"
program prometheus || echo "test: NOT RUN: the alert rules and the dashboard (no prometheus and promtool; see scripts/setup-tests.sh)"
program chromium || echo "test: NOT RUN: the page of fencelock serve in a browser (no chromium; see scripts/setup-tests.sh)"
if [[ ${#missing[@]} -gt 0 ]]; then
	echo "test: NOT RUN: $(list "${missing[@]}") (no server program and no image; see scripts/setup-tests.sh)"
else
	echo "test: every backend was run: $(list "${ran[@]}")"
fi
exit "$status"
