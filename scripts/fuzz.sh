#!/usr/bin/env bash
# Runs every fuzz test of the module for FUZZTIME (default 20s) each.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
grep -rhoE --include='*_test.go' --with-filename '^func Fuzz[A-Za-z0-9_]+' . | while IFS=: read -r file func; do
	echo "fuzz: $(dirname "$file") ${func#func }"
	go test -run '^$' -fuzz "^${func#func }\$" -fuzztime "${FUZZTIME:-20s}" "$(dirname "$file")"
done
