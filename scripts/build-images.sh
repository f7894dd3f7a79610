#!/usr/bin/env bash
# Builds the images that the tests run with FENCELOCK_SERVERS=container, on a machine that cannot pull any:
#
#   build-images.sh [redis] [etcd] [zookeeper] [postgres]   (default: all)
#
# An image is the Debian packages of one store, put together by debootstrap and given to the Docker engine by docker
# import; etcd's is the program alone, built from its Go module. An image that exists is left as it is. At the end it
# prints the variables to set: eval "$(scripts/build-images.sh redis)".
#
# Needs root (debootstrap) and a Docker engine. FENCELOCK_DEBIAN chooses the release (default: this machine's, else
# bookworm).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "build-images: $*" >&2; }

die() {
	say "$*"
	exit 1
}

packages() {
	case $1 in
	redis) echo redis-server,redis-tools ;;
	zookeeper) echo zookeeper ;;
	postgres) echo postgresql ;;
	esac
}

port() {
	case $1 in
	redis) echo 6379 ;;
	etcd) echo 2379 ;;
	zookeeper) echo 2181 ;;
	postgres) echo 5432 ;;
	esac
}

release() {
	if [[ -n ${FENCELOCK_DEBIAN:-} ]]; then
		echo "$FENCELOCK_DEBIAN"
	elif [[ $(. /etc/os-release 2>/dev/null && echo "${ID:-}") == debian ]]; then
		(. /etc/os-release && echo "$VERSION_CODENAME")
	else
		echo bookworm
	fi
}

need_debootstrap() {
	[[ $(id -u) -eq 0 ]] || die "debootstrap needs root; or pull the public images and leave FENCELOCK_IMAGE_* unset"
	command -v debootstrap >/dev/null && return
	command -v apt-get >/dev/null || die "install debootstrap"
	say "installing debootstrap"
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends debootstrap >&2
}

# link_programs puts into PATH what the tests call, as the public images have it.
link_programs() {
	local root=$1 program
	mkdir -p "$root/usr/local/bin"
	for program in "$root"/usr/lib/postgresql/*/bin/*; do
		[[ -e $program ]] || continue
		ln -sf "${program#"$root"}" "$root/usr/local/bin/$(basename "$program")"
	done
	if [[ -e $root/usr/share/java/zookeeper.jar ]]; then
		# Debian's own script takes neither another folder nor flags.
		cat >"$root/usr/local/bin/zkServer.sh" <<'SCRIPT'
#!/bin/sh
exec java $SERVER_JVMFLAGS -cp "$ZOOCFGDIR:/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar" \
	org.apache.zookeeper.server.quorum.QuorumPeerMain "$ZOOCFGDIR/zoo.cfg"
SCRIPT
		chmod 755 "$root/usr/local/bin/zkServer.sh"
	fi
}

build_debian() {
	local store=$1 image=$2 root
	need_debootstrap
	root=$(mktemp -d)
	# shellcheck disable=SC2064 # the name is wanted as it is now
	trap "rm -rf '$root'" EXIT
	say "building $image from Debian $(release): $(packages "$store")"
	debootstrap --variant=minbase --include="$(packages "$store")" "$(release)" "$root" >"$root.log" 2>&1 ||
		die "debootstrap: $(tail -n 5 "$root.log")"
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
	link_programs "$root"
	tar -C "$root" --numeric-owner -c . |
		docker import --change "EXPOSE $(port "$store")" --change 'ENV LC_ALL=C.UTF-8' - "$image" >&2
	rm -rf "$root" "$root.log"
	trap - EXIT
}

build_etcd() {
	local image=$1 program
	program=$(cd "$here/.." && go run ./internal/servers/buildetcd)
	say "building $image from $program"
	tar --transform 's,.*,usr/local/bin/etcd,' -P -c "$program" |
		docker import --change "EXPOSE $(port etcd)" --change 'ENV PATH=/usr/local/bin' - "$image" >&2
}

docker version >/dev/null 2>&1 || die "no Docker engine answers"
stores=("$@")
[[ ${#stores[@]} -gt 0 ]] || stores=(redis etcd zookeeper postgres)
for store in "${stores[@]}"; do
	image=fencelock-test-$store:latest
	if ! docker image inspect "$image" >/dev/null 2>&1; then
		case $store in
		etcd) build_etcd "$image" ;;
		redis | zookeeper | postgres) build_debian "$store" "$image" ;;
		*) die "unknown store \"$store\"; known: redis etcd zookeeper postgres" ;;
		esac
	fi
	echo "export FENCELOCK_IMAGE_${store^^}=$image"
done
