#!/usr/bin/env bash
# Prepares a version of all modules: release.sh v0.1.0. It writes the version into each go.mod, go.sum and go.work,
# installs the command as a module proxy would serve it, and prints what is left to do. It commits, tags and pushes nothing.
#
# The hashes in go.sum are those of the tree as it is: after any other change run it again.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:?usage: release.sh VERSION}
fail() {
	echo "release: $*" >&2
	exit 1
}
[[ -z $(git status --porcelain) ]] || fail "commit or remove what git status lists: it would be in the modules"
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
grep -q "fencelock@$version" README.md || fail "README.md does not say how to install $version"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tags=$(go run ./tests/release "$version" "$dir")

command=github.com/fencelock/fencelock/cmd/fencelock
GOWORK=off GOFLAGS=-modcacherw GONOSUMDB=github.com/fencelock GOENV=off GOPRIVATE= GONOPROXY= \
	GOPROXY="file://$dir,$(go env GOPROXY)" GOMODCACHE="$dir/modules" GOBIN="$dir/bin" go install "$command@$version"
"$dir/bin/fencelock" version

git ls-files '*go.mod' '*go.sum' go.work | while read -r file; do cp "$dir/tree/$file" "$file"; done
echo
echo "Look at git diff, then:"
echo "git commit -am 'Release $version'"
for tag in $tags; do echo "git tag $tag"; done
echo "git push --atomic origin HEAD" $tags
