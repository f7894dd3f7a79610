#!/usr/bin/env bash
# Prints how big the project is, as a table.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# code lists the files of Go that are not tests, below the folders given.
code() { git ls-files -- "$@" | grep '\.go$' | grep -v '_test\.go$' || true; }
lines() { xargs -r cat | wc -l; }

# way counts the functions that Lock calls until it returns, on a server of its own.
way() {
	local dir port=${FENCELOCK_WAY_PORT:-16399}
	dir=$(mktemp -d)
	redis-server --port "$port" --save '' --daemonize yes --dir "$dir" --pidfile "$dir/pid" >/dev/null
	go build -cover -covermode=atomic -coverpkg=github.com/fencelock/fencelock/... -o "$dir/way" ./tests/way
	mkdir "$dir/out"
	for _ in 1 2 3 4 5 6 7 8 9 10; do redis-cli -p "$port" ping >/dev/null 2>&1 && break || sleep 0.2; done
	GOCOVERDIR=$dir "$dir/way" "redis://127.0.0.1:$port/0" "$dir/out" >&2
	redis-cli -p "$port" shutdown nosave >/dev/null 2>&1 || true
	go tool covdata func -i "$dir/out" | awk '$NF != "0.0%" && $1 !~ /tests\/way|^total/ {n++} END {print n}'
	rm -rf "$dir"
}

row() { printf '| %s | %s |\n' "$1" "$2"; }

row "what" "now"
row "---" "---"
row "Go without tests, whole repository" "$(code . | lines)"
row "engine + contract" "$( (code '*.go' | grep -v / || true; code backend | grep -E '^backend/[a-z_]+\.go$'; code internal/core) | lines)"
for driver in redis redlock etcd zookeeper postgres backend/file backend/memory backend/migrate; do
	row "$driver" "$(code "$driver" | lines)"
done
for driver in redis redlock postgres; do
	row "$driver: Lua and SQL" "$(git ls-files -- "$driver" | grep -E '\.(lua|sql)$' | grep -v testdata | lines)"
done
row "the NATS example" "$(code examples/nats-driver | lines)"
row "the command and its doctor" "$(code cmd | lines)"
row "bench, both" "$(code bench | lines)"
row "servers and scripts" "$( (code internal/servers; git ls-files -- scripts) | lines)"
row "the suite" "$(code conformance backend/gatetest internal/faultproxy | lines)"
row "methods that a driver must have" "$(awk '/^type Driver interface/ {in_it=1; next} in_it && /^}/ {exit} in_it && /^\t[A-Z][A-Za-z]*\(/ {n++} END {print n+0}' backend/driver.go)"
row "methods with migration" "$(awk '/^type (Driver|Mover) interface/ {in_it=1; next} in_it && /^}/ {in_it=0} in_it && /^\t[A-Z][A-Za-z]*\(/ {n++} END {print n+0}' backend/driver.go)"
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null; then
	row "functions of ours that a Lock of a free name calls, Redis" "$(way)"
fi
row "entries in the root folder" "$(git ls-files | sed 's|/.*||' | sort -u | wc -l)"
row "words in docs, README, CHANGELOG" "$(cat docs/*.md README.md CHANGELOG.md | wc -w)"
row "lines over 120 columns in Go, Lua, SQL" "$(scripts/columns.sh --count)"
