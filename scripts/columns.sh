#!/usr/bin/env bash
# Prints the lines of Go, Lua and SQL that are wider than 120 columns, a tab being four, and fails
# if there are any. --count prints how many there are in the whole repository.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# wide prints the wide lines of the files that it is given. In the C locale awk counts bytes: what
# continues a character of UTF-8 is taken out.
wide() {
	LC_ALL=C xargs awk '
		{ line = $0; gsub(/\t/, "    ", line); gsub(/[\200-\277]/, "", line) }
		length(line) > 120 { print FILENAME ":" FNR ": " length(line) " columns" }'
}

if [ "${1:-}" = --count ]; then
	git grep -l --untracked '' -- '*.go' '*.lua' '*.sql' | wide | wc -l
	exit
fi
found="$(git grep -l --untracked '' -- '*.go' '*.lua' '*.sql' | wide)"
if [ -n "$found" ]; then
	echo "wider than 120 columns:"
	echo "$found"
	exit 1
fi
