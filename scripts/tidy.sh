#!/usr/bin/env bash
# Tidies every module of the workspace. A module requires its siblings by versions that are no
# releases yet: it is tidied with the siblings of the tree in their place.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
mapfile -t folders < <(go work edit -json | sed -n 's/.*"DiskPath": "\(.*\)".*/\1/p')

path() { sed -n 's/^module //p' "$1/go.mod"; }

for folder in "${folders[@]}"; do
	(
		cd "$folder"
		export GOWORK=off GOFLAGS=-mod=mod
		trap 'for other in "${folders[@]}"; do go mod edit -dropreplace "$(path "$root/$other")"; done' EXIT
		for other in "${folders[@]}"; do
			[[ $other == "$folder" ]] || go mod edit -replace "$(path "$root/$other")=$root/$other"
		done
		go mod tidy
	)
done
