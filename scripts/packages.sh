#!/usr/bin/env bash
# Prints the packages of all modules but those that only compare with other libraries.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
go list work | grep -vE '/(bench/peers|examples/gocron-jobs|examples/nats-driver|examples/sqlite-driver)(/|$)'
