#!/usr/bin/env bash
# Runs the tests: test.sh [go test flags]            smaller numbers, no race detector: some minutes
#                 test.sh --full [go test flags]     all of them, most with the race detector: about half an hour
#
# It installs what they need where it may (setup-tests.sh), then says which backends
# run and how, and in its last line which were not run. FENCELOCK_REQUIRE=redis,… makes a
# missing one a failure; FENCELOCK_SERVERS=local|container chooses the kind. FENCELOCK_BESIDE is a command that only
# computes, for --full: it runs where the tests wait, and its failure is theirs.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=
if [[ ${1:-} == --full ]]; then
	full=1
	shift
fi

# roomy reports whether 8 GiB fit into a folder in memory, and a program can be run in it.
roomy() {
	local need=$((8 << 20)) probe status=1
	[[ -w $1 && $(df -k --output=avail "$1" | tail -n 1) -ge $need ]] || return 1
	[[ $(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo) -ge $((need + need / 2)) ]] || return 1
	probe=$(mktemp "$1/fl.XXXXXX") || return 1
	printf '#!/bin/sh\n' >"$probe"
	chmod 700 "$probe"
	"$probe" 2>/dev/null && status=0
	rm -f "$probe"
	return "$status"
}

# What a killed test leaves behind goes with this folder. It is in memory where it can be: leases of a second are nothing for a disk
# that stalls for five. Postgres is run by another account, which must get in; and the name is short, for a socket's path has 108 bytes.
[[ -n ${TMPDIR:-} ]] || ! roomy /dev/shm || TMPDIR=/dev/shm
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/fl.XXXXXX")
export TMPDIR
chmod 755 "$TMPDIR"
trap 'rm -rf "$TMPDIR"' EXIT

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
public() { sed -n "s/^\t\"$1\": *\"\(.*\)\",$/\1/p" internal/servers/container.go; }

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
slow=$(go run ./internal/machine/slow)
[[ $slow == false ]] ||
	echo "test: memory is slow here: fewer packages run at once, and the rules have small numbers"
status=0
# Nothing is taken from the cache, which does not see what a test reads outside of its module.
# Several packages at a time, the longest first: most of their time is waiting.
if [[ -z $full ]]; then
	packages=$(scripts/packages.sh | grep -v /tests/models/) # those only compute
	# All is compiled first: two cores that compile are no machine for leases of a second.
	go list -export -test -deps -f '' ./tests/backends $packages >/dev/null
	run() { go test -count=1 -short -vet=off -ldflags=-w -shuffle=on -timeout 15m "$@" || status=$?; }
	if [[ $slow == false ]]; then
		run -p 3 "$@" ./tests/backends $packages
	else # those that use all there is have the machine to themselves
		run "$@" ./postgres
		run "$@" ./tests/backends
		run -p 2 "$@" $(grep -vE '/(postgres|tests/backends)$' <<<"$packages")
	fi
else
	# The backends' rules wait for half of their time. Beside them, at the least priority, the models search all states,
	# which is too slow with the race detector, and the compiler makes what comes after.
	others=$(scripts/packages.sh | grep -vE '/(bench|conformance|tests/(backends|guarantees|models/.*))$')
	others="./postgres . ./backend/file ./zookeeper $others" # the longest begin early
	models='^TestEveryStateOf' # in a driver's own package
	{
		searched() { nice -n 19 go test -count=1 -v -p 1 -timeout 30m "$@" >>"$TMPDIR/models" 2>&1; }
		searched "$@" ./tests/models/...
		searched "$@" -run "$models" ./zookeeper
		compiled() { nice -n 19 go list -export -test -deps -f '' "$@" >/dev/null; }
		compiled -race $others
		(cd examples/nats-driver && compiled -race ./...)
		(cd examples/sqlite-driver && compiled ./...)
		(cd bench/peers && compiled .)
		compiled ./integrations/controller-runtime ./integrations/goose
	} &
	beside=$!
	computes=
	if [[ -n ${FENCELOCK_BESIDE:-} ]]; then
		nice -n 19 $FENCELOCK_BESIDE >"$TMPDIR/computes" 2>&1 &
		computes=$!
	fi
	# With the race detector the backends' rules take twelve minutes: go test -race ./tests/backends
	go test -count=1 -vet=off -shuffle=on -timeout 30m "$@" ./tests/backends || status=$?
	wait "$beside" || status=$?
	grep -v '^=== ' "$TMPDIR/models"
	if [[ -n $computes ]]; then
		wait "$computes" || status=$?
		cat "$TMPDIR/computes"
	fi
	# Faults are made beside nothing else, and the processes that meet them are not slowed by the race detector.
	go test -count=1 -vet=off -shuffle=on -timeout 20m "$@" ./tests/guarantees || status=$?
	# What an operation costs is counted without the race detector, which allocates; and the rules' own tests are slow
	# enough without it.
	go test -count=1 -vet=off -shuffle=on -timeout 20m "$@" ./bench ./conformance >"$TMPDIR/plain" 2>&1 &
	beside=$!
	if [[ $slow == true ]]; then
		wait "$beside" || status=$?
		beside=
	fi
	go test -count=1 -vet=off -race -shuffle=on -p 2 -timeout 20m "$@" -skip "$models" $others || status=$?
	[[ -z $beside ]] || wait "$beside" || status=$?
	cat "$TMPDIR/plain"
	# Drivers from outside, held to the same suite.
	(cd examples/nats-driver && go test -race -short -shuffle=on -timeout 10m ./...) &
	nats=$!
	(cd examples/sqlite-driver && go test -short -shuffle=on -timeout 10m ./...) || status=$?
	# The libraries of Kubernetes and SQLite take minutes to compile.
	go test -count=1 -shuffle=on ./integrations/controller-runtime ./integrations/goose || status=$?
	# Old programs and new ones on one key.
	(cd bench/peers && go test -count=1 -timeout 10m -run 'TestOldProgramsOnOneKey|TestMixedFleets' .) || status=$?
	# The questions of the rules, put to other libraries: half a minute.
	go test -count=1 -timeout 5m ./tests/peers || status=$?
	wait "$nats" || status=$?
fi
program pgbouncer || echo "test: NOT RUN: Postgres behind a pooler (no pgbouncer; see scripts/setup-tests.sh)"
program prometheus || echo "test: NOT RUN: the alert rules and the dashboard (no prometheus and promtool; see scripts/setup-tests.sh)"
program chromium || echo "test: NOT RUN: the page of fencelock serve in a browser (no chromium; see scripts/setup-tests.sh)"
if [[ ${#missing[@]} -gt 0 ]]; then
	echo "test: NOT RUN: $(list "${missing[@]}") (no server program and no image; see scripts/setup-tests.sh)"
else
	echo "test: every backend was run: $(list "${ran[@]}")"
fi
exit "$status"
