#!/usr/bin/env bash
# Prints the packages of all modules but those that only compare with other libraries, or that
# take long to build: test.sh --full has those.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
go list work | grep -vE '/(bench/peers|tests/peers|examples/nats-driver|examples/sqlite-driver|integrations/(controller-runtime|goose))(/|$)'
