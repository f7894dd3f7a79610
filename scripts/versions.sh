#!/usr/bin/env bash
# Runs the rules of the drivers on every server version that can be had, records what came of them in
# tests/versions/results.json and renders tests/versions/README.md (two to five minutes a version):
#
#   ONLY='redis-8.0 postgres-17' versions.sh
#   ONLY='redis-6.2=/opt/redis-6.2' versions.sh     programs that are there already, in bin of a folder
#   versions.sh --list
#
# A version is had once, into FENCELOCK_VERSIONS (default: /var/cache/fencelock-versions for root, else
# fencelock-versions in the user's cache): as Debian packages of the suite that has it, unpacked beside each other with
# their own libraries, from where apt has its packages; etcd as its Go module. Nothing is installed.
# RECORD names the file of the results; RECORD= records nothing.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each version: what it is called, where it is from (a given one from ONLY alone), and what runs on it. A version that is
# too old is to be refused.
cells() {
	cat <<'CELLS'
redis-5.0      given    -               too-old
redis-cluster-6.0 bullseye redis-server too-old
redis-6.0      bullseye redis-server    TestRedis TestRedisSentinel TestRedlock
redis-6.2      given    -               TestRedis TestRedisSentinel TestRedlock
redis-7.0      bookworm redis-server    TestRedis TestRedisSentinel TestRedisCluster
redis-8.0      trixie   redis-server    TestRedis TestRedisSentinel TestRedisCluster TestRedlock
valkey-8       trixie   valkey-server   TestRedis TestRedisSentinel TestRedisCluster
valkey-9       sid      valkey-server   TestRedis TestRedisSentinel TestRedisCluster TestRedlock
etcd-3.4       bookworm etcd-server     too-old
etcd-3.5       module   v3.5            TestEtcd
etcd-3.6       module   v3.6            TestEtcd
etcd-3.7       module   v3.7            TestEtcd
zookeeper-3.4  bullseye zookeeper       too-old
zookeeper-3.8  bookworm zookeeper       TestZooKeeper TestZooKeeperEnsemble
zookeeper-3.9  trixie   zookeeper       TestZooKeeper TestZooKeeperEnsemble
postgres-13    bullseye postgresql-13   too-old
postgres-15    bookworm postgresql-15   TestPostgresRow TestPostgresAdvisory TestPostgresLease
postgres-17    trixie   postgresql-17   TestPostgresRow TestPostgresAdvisory TestPostgresLease
postgres-18    sid      postgresql-18   TestPostgresRow TestPostgresAdvisory TestPostgresLease
CELLS
}

# What a server needs of all that its package depends on: Java is this machine's, and nothing is configured.
wanted='^(lib|lua-|redis-|valkey-|etcd-|postgresql-(client-)?[0-9]+$|zookeeper$)' needless='^lib(llvm|perl|z3)'

say() { echo "versions: $*" >&2; }

die() {
	say "$*"
	exit 1
}

have=${FENCELOCK_VERSIONS:-}
if [[ -z $have && $(id -u) -eq 0 ]]; then
	have=/var/cache/fencelock-versions # Postgres is run by another account, which must get in
fi
have=${have:-${XDG_CACHE_HOME:-$HOME/.cache}/fencelock-versions}
export RECORD=${RECORD-$PWD/tests/versions/results.json}

# debian calls a program of apt for a suite, with lists of its own and as if nothing were installed.
debian() {
	local suite=$1 program=$2 apt=$have/apt-$1
	shift 2
	"$program" -q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State="$apt" \
		-o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o APT::Sandbox::User=root \
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Install-Recommends=no \
		"$@"
}

# lists gets the lists of a suite, from the mirror that this machine's own release comes from.
lists() {
	local suite=$1 apt=$have/apt-$1 own mirror
	[[ -z $(find "$apt/ready" -mtime -1 2>/dev/null) ]] || return 0 # those of today
	own=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' |
		awk -v own="$own" '$1 == own { print $2; exit }')
	[[ -n $mirror ]] || die "apt has no lists of Debian's $own here: run apt-get update on a Debian machine"
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	: >"$apt/status"
	echo "deb $mirror $suite main" >"$apt/sources.list"
	debian "$suite" apt-get update >&2
	touch "$apt/ready"
}

# unpack unpacks a package and what it needs into a folder.
unpack() {
	local suite=$1 package=$2 root=$3 names deb
	lists "$suite"
	say "unpacking $package of $suite"
	names=$(debian "$suite" apt-get install --print-uris -y "$package" |
		awk '/^.[a-z]+:/ { sub(/_.*/, "", $2); print $2 }' | grep -E "$wanted" | grep -Ev "$needless")
	[[ $package != zookeeper ]] || names=$(grep -E -- '-java$|^zookeeper$' <<<"$names") # jars
	# shellcheck disable=SC2086 # several names are several words
	(cd "$root" && debian "$suite" apt-get download $names >&2)
	for deb in "$root"/*.deb; do
		dpkg-deb -x "$deb" "$root"
		rm "$deb"
	done
	rm -f "$root"/usr/lib/postgresql/*/lib/llvmjit* # its library is left out, and a server does without
}

# wrap makes a program of a root callable: a script that runs it with the loader and libraries of the root.
wrap() {
	local root=$1 program=$2 as=$3 loader libc
	loader=$(find "$root" -type f \( -name 'ld-linux*.so*' -o -name 'ld-2*.so' \) | head -n 1)
	libc=$(basename "$(dirname "$(find "$root" -name libc.so.6 | head -n 1)")")
	cat >"$as" <<WRAP
#!/bin/sh
exec "$loader" --library-path "$root/usr/lib/$libc:$root/lib/$libc" "$program" "\$@"
WRAP
	chmod 755 "$as"
}

# fetch puts a version into a folder: its programs in bin, its jars in lib.
fetch() {
	local to=$1 suite=$2 package=$3 root=$1/root program # or a jar
	mkdir -p "$to/bin" "$to/lib" "$root"
	if [[ $suite == module ]]; then
		module "$to" "$package"
		return
	fi
	unpack "$suite" "$package" "$root"
	case $package in
	redis-server | valkey-server) wrap "$root" "$root/usr/bin/$package" "$to/bin/redis-server" ;;
	etcd-server) wrap "$root" "$root/usr/bin/etcd" "$to/bin/etcd" ;;
	zookeeper)
		for program in $(cd "$root/usr/share/java" && ls -- *.jar); do
			# Of the libraries for logs the interface alone: several of the others at once never end. Of ZooKeeper
			# what a server is, under the name that comes last: their manifests name jars of this machine.
			[[ $program =~ slf4j && $program != slf4j-api.jar || $program =~ ^zookeeper- && $program != zookeeper-jute.jar ]] ||
				ln -s "$root/usr/share/java/$program" "$to/lib/"
		done
		;;
	postgresql-*)
		# Each finds the others beside itself, and its files by the way from there.
		for program in "$root"/usr/lib/postgresql/*/bin/{postgres,initdb,pg_basebackup}; do
			mv "$program" "$program.bin"
			wrap "$root" "$program.bin" "$program"
			ln -s "$program" "$to/bin/"
		done
		;;
	esac
}

# module builds the newest etcd of a minor version.
module() {
	local to=$1 minor=$2 version
	version=$(go list -m -versions go.etcd.io/etcd/server/v3 | tr ' ' '\n' | grep -E "^$minor\.[0-9]+\$" | tail -n 1)
	[[ -n $version ]] || die "there is no etcd $minor"
	say "building etcd $version"
	cp internal/servers/etcdserver/main.go "$to/root/"
	(
		cd "$to/root"
		export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
		go mod init etcd
		go get "go.etcd.io/etcd/server/v3@$version"
		go mod tidy
		go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$to/bin/etcd" .
	) >&2
}

# run runs what a cell says on the version in a folder.
run() {
	local cell=$1 at=$2 tests
	shift 2
	tests="^($(IFS='|' && echo "$*"))\$"
	# What these do not name is this machine's: java, and the rest of PATH.
	export PATH="$at/bin:$path" FENCELOCK_SERVERS=local FENCELOCK_REQUIRE=all
	case $cell in
	etcd-*) export FENCELOCK_ETCD="$at/bin/etcd" ;;
	zookeeper-*) export ZOOKEEPER_HOME="$at" ;;
	esac
	if [[ $1 == too-old ]]; then
		tests="^TestTooOld\$" FENCELOCK_OLD=${cell%-*}
		export FENCELOCK_OLD
	fi
	say "$cell: $*"
	# Its own folder, which killed servers leave nothing behind in, and where another account gets in.
	TMPDIR=$(mktemp -d "${base:-/tmp}/fl.XXXXXX")
	export TMPDIR
	trap 'rm -rf "$TMPDIR"' EXIT
	chmod 755 "$TMPDIR"
	go test -json -count=1 -timeout 30m -run "$tests" ./tests/backends >"$TMPDIR/events" || true
	go run ./tests/versions "$cell" <"$TMPDIR/events"
}

known=" $(cells | awk '{ printf "%s ", $1 }')"
for cell in ${ONLY:-}; do
	[[ $known == *" ${cell%%=*} "* ]] || die "ONLY has \"$cell\"; known:$known"
done
only=" ${ONLY:-} " path=$PATH base=${TMPDIR:-} status=0
while read -r cell suite package tests; do
	[[ ${1:-} != --list ]] || { echo "$cell" && continue; }
	at=$have/$cell
	if [[ $only =~ \ $cell=([^ ]+)\  ]]; then
		at=${BASH_REMATCH[1]}
	elif [[ $suite == given || (-n ${ONLY:-} && $only != *" $cell "*) ]]; then
		continue
	fi
	if [[ $at == "$have"/* && ! -e $at/whole ]]; then
		rm -rf "$at"
		fetch "$at" "$suite" "$package" </dev/null
		touch "$at/whole"
	fi
	# shellcheck disable=SC2086 # several tests are several words
	(run "$cell" "$at" $tests </dev/null) || status=1
done < <(cells)
[[ ${1:-} == --list || -z $RECORD ]] || UPDATE=1 go test -count=1 -run '^TestReadme$' ./tests/versions
exit "$status"
