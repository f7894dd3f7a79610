#!/usr/bin/env bash
# Tries the README as a stranger does: in a new Debian container that has Go, git and make, and nothing else. It gets
# the version of the README's own commands from this checkout, as a module proxy would serve it, runs the quick start
# on files and on Redis, installs the command, and runs `make test` in a clean clone (not with --quick). Uncommitted
# changes are not in it.
#
# Needs root (debootstrap) and a Docker engine; about a quarter of an hour. FENCELOCK_DEBIAN chooses the release.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=1
[[ ${1:-} == --quick ]] && tests=

dir=$(mktemp -d)
image=fencelock-stranger:latest
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
version=$(sed -n 's/^go get .*fencelock@\(v[^ ]*\).*/\1/p' README.md | head -n 1)

if ! docker image inspect "$image" >/dev/null 2>&1; then
	command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap >&2
	debootstrap --variant=minbase --include=ca-certificates,git,make \
		"${FENCELOCK_DEBIAN:-$(. /etc/os-release && echo "$VERSION_CODENAME")}" "$dir/root" >"$dir/log" 2>&1 ||
		{ tail -n 5 "$dir/log" >&2 && exit 1; }
	cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$dir/root/etc/apt/"
	tar -C "$dir/root" --numeric-owner -c . | docker import - "$image" >&2
	rm -rf "$dir/root"
fi

git clone -q --no-hardlinks . "$dir/clone"
(cd "$dir/clone" && go run ./tests/release "$version" "$dir/proxy" >&2)

# What the stranger types, from the README.
{
	echo 'set -euxo pipefail'
	echo 'mkdir /program && cd /program && go mod init program'
	sed -n '/^```sh$/,/^```$/p' README.md | grep -E '^go (get|install) '
	echo "cat >main.go <<'GO'"
	awk '/^```go$/ {on = 1; next} /^```$/ {if (on) exit} on' README.md
	echo 'GO'
	echo 'go mod tidy && go run .'
	echo 'apt-get update -q && apt-get install -qy --no-install-recommends redis-server'
	echo 'redis-server --daemonize yes --save ""'
	echo "sed -i 's,file:///tmp/locks?,redis://localhost:6379/0?,; s,backend/file\",redis\",' main.go"
	echo 'go mod tidy && go run .'
	echo '"$(go env GOPATH)/bin/fencelock" --url file:///tmp/locks run job -- true'
	[[ -z $tests ]] || echo 'git clone -q /clone /checkout && cd /checkout && make test'
} >"$dir/script"

mods=$(go env GOMODCACHE)/cache/download
docker run --rm -v "$(go env GOROOT):/usr/local/go:ro" -v "$dir/proxy:/proxy:ro" -v "$mods:/mods:ro" \
	-v "$dir/clone:/clone:ro" -v "$dir/script:/script:ro" -v /etc/ssl/certs:/etc/ssl/certs:ro \
	-e PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	-e GOPROXY="file:///proxy,file:///mods,$(go env GOPROXY)" -e GONOSUMDB=github.com/fencelock -e HOME=/root \
	"$image" bash /script
