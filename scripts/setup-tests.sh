#!/usr/bin/env bash
# Installs the servers that the tests run: setup-tests.sh [redis] [etcd] [zookeeper] [postgres] [pgbouncer]
# [prometheus] [chromium] (default: all of them). setup-tests.sh --have STORE only tells, by its exit code, whether one is there.
#
# It changes nothing when the programs are already there. Where it may not install (not root, or not Debian), or cannot, it says
# what is missing and exits 0, because the tests skip; a store that FENCELOCK_REQUIRE lists ("all" lists every one)
# makes it exit 1 instead.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FENCELOCK_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fencelock-servers}

have() {
	case $1 in
	redis) command -v redis-server >/dev/null && command -v redis-cli >/dev/null ;;
	etcd) [[ -n ${FENCELOCK_ETCD:-} ]] || compgen -G "$cache/etcdserver-????????????" >/dev/null || command -v go >/dev/null ;;
	zookeeper) command -v java >/dev/null && compgen -G '/usr/share/java/zookeeper*.jar' >/dev/null ;;
	pgbouncer) command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] ;;
	prometheus) command -v prometheus >/dev/null && command -v promtool >/dev/null ;;
	chromium) command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ;;
	postgres) command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
	esac
}

packages() {
	case $1 in
	redis) echo redis-server redis-tools ;;
	zookeeper) echo zookeeper ;;
	postgres) echo postgresql ;;
	pgbouncer) echo pgbouncer ;;
	prometheus) echo prometheus ;; # with promtool
	chromium) echo chromium ;;
	etcd) ;; # built from its Go module
	esac
}

advice() {
	case $1 in
	redis) echo "install the packages redis-server and redis-tools (Debian, Ubuntu), redis (Fedora, Arch, Homebrew)" ;;
	zookeeper) echo "install the package zookeeper (Debian, Ubuntu), or run the tests with FENCELOCK_SERVERS=container" ;;
	postgres) echo "install the package postgresql (Debian, Ubuntu), postgresql-server (Fedora)" ;;
	pgbouncer) echo "install the package pgbouncer" ;;
	prometheus) echo "install the package prometheus, which has promtool too (Debian, Ubuntu, Arch, Homebrew)" ;;
	chromium) echo "install the package chromium (Debian, Fedora, Arch), or Google Chrome" ;;
	etcd) echo "install Go: etcd is built from its module by the first test that needs it" ;;
	esac
}

required() {
	local list=",${FENCELOCK_REQUIRE:-},"
	list=${list// /,}
	[[ $list == *,all,* || $list == *,"$1",* ]]
}

# install installs what apt-get can of each store's packages, with service starts forbidden: the tests start their own servers on
# free ports.
install() {
	local policy=/usr/sbin/policy-rc.d made= store package known=yes
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
		made=$policy
	fi
	# shellcheck disable=SC2064 # the name is wanted as it is now
	trap "${made:+rm -f $made}" EXIT
	export DEBIAN_FRONTEND=noninteractive
	for store in "$@"; do
		for package in $(packages "$store"); do
			[[ -n $(apt-cache search --names-only "^$package\$") ]] || known=
		done
	done
	[[ -n $known ]] || apt-get update || echo "setup-tests: apt-get cannot update its lists" >&2
	for store in "$@"; do
		# shellcheck disable=SC2046 # several packages are several words
		apt-get install -y --no-install-recommends $(packages "$store") || echo "setup-tests: apt-get cannot install $store" >&2
	done
	${made:+rm -f "$made"}
	trap - EXIT
}

build_etcd() {
	[[ -n ${FENCELOCK_ETCD:-} ]] || compgen -G "$cache/etcdserver-????????????" >/dev/null && return 0
	echo "setup-tests: building etcd (about a minute and a half, once)"
	(cd "$here/.." && go run ./internal/servers/buildetcd)
}

if [[ ${1:-} == --have ]]; then
	have "$2"
	exit
fi
stores=("$@")
[[ ${#stores[@]} -gt 0 ]] || stores=(redis etcd zookeeper postgres pgbouncer prometheus chromium)
missing=() packaged=()
for store in "${stores[@]}"; do
	case $store in
	redis | etcd | zookeeper | postgres | pgbouncer | prometheus | chromium) ;;
	*)
		echo "setup-tests: unknown store \"$store\"; known: redis etcd zookeeper postgres pgbouncer prometheus chromium" >&2
		exit 64
		;;
	esac
	have "$store" && continue
	missing+=("$store")
	[[ -z $(packages "$store") ]] || packaged+=("$store")
done

if [[ ${#packaged[@]} -gt 0 && $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
	install "${packaged[@]}"
fi

status=0
for store in "${missing[@]}"; do
	have "$store" && continue
	if required "$store"; then
		echo "setup-tests: $store is missing and FENCELOCK_REQUIRE lists it: $(advice "$store")" >&2
		status=1
	else
		echo "setup-tests: $store is missing, its tests will be skipped: $(advice "$store")"
	fi
done
for store in "${stores[@]}"; do
	if [[ $store == etcd ]] && command -v go >/dev/null; then build_etcd || status=1; fi
done
exit $status
