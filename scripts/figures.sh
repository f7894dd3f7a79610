#!/usr/bin/env bash
# Prints how big the project is, as a table.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# code lists the files of Go that are not tests, below the folders given.
code() { git ls-files -- "$@" | grep '\.go$' | grep -v '_test\.go$' || true; }
lines() { xargs -r cat | wc -l; }
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
row "entries in the root folder" "$(git ls-files | sed 's|/.*||' | sort -u | wc -l)"
row "words in docs, README, CHANGELOG" "$(cat docs/*.md README.md CHANGELOG.md | wc -w)"
row "lines over 120 columns in Go, Lua, SQL" "$(scripts/columns.sh --count)"
