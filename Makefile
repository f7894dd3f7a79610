# Fencelock. `make` or `make help` lists the targets.

SHELL       := bash
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: help build install test test-full setup images lint lint-all fmt cross fuzz bench faults mistakes versions soak stranger figures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the command into bin/
	go build -o bin/fencelock ./cmd/fencelock

install: ## install the command
	go install ./cmd/fencelock

test: ## set up what the tests need, and run them with small numbers: some minutes
	@scripts/test.sh

test-full: ## all tests, most with the race detector: half an hour
	@scripts/test.sh --full

setup: ## install the servers that the tests run (Debian or Ubuntu as root; else it says what is missing)
	@scripts/setup-tests.sh

images: ## build the servers' Docker images from Debian packages, for machines that can pull none
	@scripts/build-images.sh redis etcd zookeeper postgres

lint: ## go vet, gofumpt, staticcheck and the width of lines
	go vet work
	@files="$$(go run $(GOFUMPT) -l .)"; if [ -n "$$files" ]; then echo "not formatted (make fmt):"; echo "$$files"; exit 1; fi
	@scripts/columns.sh
	go run $(STATICCHECK) work

lint-all: ## golangci-lint with .golangci.yml (builds it first, which takes minutes)
	go run $(GOLANGCI) run

fmt: ## format all Go files
	go run $(GOFUMPT) -w .

cross: ## build and vet for macOS and Windows, as lint does for Linux
	@for on in darwin/arm64 windows/amd64; do echo "build for $$on"; \
		export GOOS=$${on%/*} GOARCH=$${on#*/}; go build -o /dev/null ./cmd/fencelock && go vet $$(scripts/packages.sh) || exit 1; done

fuzz: ## fuzz what reads foreign data, FUZZTIME each (default 20s)
	@scripts/fuzz.sh

bench: ## benchmarks against the raw store, named for benchstat
	go test -run '^$$' -bench . ./bench ./redis ./redlock ./etcd ./zookeeper ./postgres
	cd bench/peers && go run ./cmd/targets

faults: ## every fault on every backend, ROUNDS each (default 20), then the planted bugs; ONLY='etcd redlock/latency'; renders docs/guarantees.md
	@scripts/faults.sh

mistakes: ## plant ten bugs in each backend and in the engine and require that the rules find them, ONLY='redis etcd/no-owner'
	@scripts/mistakes.sh

versions: ## every rule on every version of a server that can be had, ONLY='redis-8.0 etcd-3.5'; renders tests/versions/README.md
	@scripts/versions.sh

soak: ## overlapping faults for HOURS, added to docs/soak.json
	@scripts/soak.sh

stranger: ## try the README in a new container that has only Go: a quarter of an hour
	@scripts/stranger.sh

figures: ## how big the project is
	@scripts/figures.sh

clean: ## remove what was built
	rm -rf bin
