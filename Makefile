# make            build the binary
# make demo       the real runtime on mock chips, traced live
# make screens    the pictures of docs/ui.md, from the real runtime
# make quick      vet, unit tests and one live test with the small library of test/fixture: a minute
# make test       all tests; what this machine cannot run is skipped, and said
# make page       the charts of the HTML report: bundles Apache ECharts from npm into internal/report/page/charts.js
# make compat     every published release: downloads them, cuts the test set again, compares end to end
# make soak       ten minutes of processes that come and go, as many as the machine makes, beside the real runtime, and then 6,000 samples
#                 of a process that allocates and frees 125,000 times a second
# make wire       fifty clients of the allocation server with 200,000 records each
# make packages   the .deb and the .rpm, into dist/; make reproducible shows that two builds have the same bytes
# make packages-test  installs, starts, upgrades and removes them in a clean Debian
# make collector  pushes metrics to a real OpenTelemetry Collector, built from its modules; a few minutes the first time, as root
# make test-simulator  runs kernels on a simulator, traced: TT_MEMTRACE_SIMULATOR=DIR names a folder that has one; minutes the first time, as root
# make test-kernels   the live tests in QEMU: on Debian's 6.1, without multi-uprobes, 6.12 and 5.10, which samples only, and Ubuntu's 5.15
# make random     random histories of processes with losses, and random lives of devices on the real runtime: five minutes each
# make bench      what tracing costs beside other ways to do it: docs/performance.md; twenty minutes, as root
# make check      linters, known vulnerabilities, formats, generated files, race detector, a moment of fuzzing

GO       ?= go
VERSION  ?= $(shell packaging/version.sh 2>/dev/null || echo dev)
FUZZTIME ?= 5000x
export CGO_ENABLED = 0

BINARY  := tt-memtrace
C_FILES := $(shell find bpf test/fixture -name "*.c" -o -name "*.h" -o -name "*.cpp")

.PHONY: random all build demo screens quick test test-simulator test-kernels check lint generate race fuzz bench compat page soak wire packages reproducible packages-test collector deps clean

all: build

build:
	$(GO) build -trimpath -ldflags "-s -w -X main.release=$(VERSION)" -o $(BINARY) ./cmd/tt-memtrace

demo: build
	scripts/demo.sh

screens: build
	scripts/deps.sh test
	scripts/screens.sh

# What needs neither the real runtime nor a machine of its own, and one live test. Some tests
# wait, those of wire most: so more packages than processors are tested at once, and wire first.
quick: export TT_MEMTRACE_TEST_PREBUILT := $(shell scripts/fixtures.sh)
quick:
	$(GO) vet ./...
	$(GO) test -vet=off -short -p 4 ./internal/wire $(shell $(GO) list ./... | grep -vE '/(test/.*|tracer|internal/(sampler|discover|proc|memory))$$')
	$(GO) test -vet=off -run '^TestAccountsMatchTheProcess$$' ./tracer

test:
	scripts/deps.sh test
	scripts/test.sh

test-simulator:
	scripts/deps.sh test
	$(GO) vet -tags simulator ./test/e2e
	$(GO) test -tags simulator -count 1 -run 'OnASimulator$$' -timeout 20m -v ./test/e2e

test-kernels:
	scripts/deps.sh kernels
	scripts/test-kernels.sh $(if $(CI),-short,linux-image-cloud-amd64 linux-image-6.12-cloud-amd64 \
		bullseye:linux-image-cloud-amd64 jammy:linux-image-5.15.0-25-generic)

check: lint generate race fuzz

lint:
	scripts/deps.sh check
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	scripts/vulncheck.sh
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	clang-format-14 --dry-run --Werror $(C_FILES)
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff

# The generated files are kept, so that users need no clang; they must be current.
generate:
	scripts/deps.sh check
	$(GO) generate ./...
	git diff --exit-code --stat -- bpf docs

race:
	CGO_ENABLED=1 $(GO) tool gotestsum --format pkgname-and-test-fails --rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
		--packages "./aggregator ./ui ./tracer $(addprefix ./internal/,export metrics telemetry wire discover inspect memory metal proc watch x86eval/...)" -- -race -short -p 1 -timeout 20m

fuzz:
	scripts/fuzz.sh $(FUZZTIME)

bench:
	scripts/deps.sh test bench
	$(GO) run ./test/bench -out docs/performance.md

compat:
	$(GO) run ./test/compat/refresh
	scripts/compat.sh

random:
	TT_MEMTRACE_RANDOM_TIME=5m $(GO) test -count 1 -run TestRandomHistories -timeout 10m -v ./tracer
	TT_MEMTRACE_RANDOM_TIME=5m $(GO) test -count 1 -run TestRandomLives -timeout 15m -v ./test/e2e

page:
	internal/report/page/build.sh

soak:
	scripts/deps.sh test
	TT_MEMTRACE_SOAK_TIME=10m $(GO) test -count 1 -run '^TestSoak$$' -timeout 30m -v ./test/e2e
	TT_MEMTRACE_LOAD_READINGS=3000 $(GO) test -count 1 -run '^TestUnderLoad$$' -timeout 15m -v ./internal/sampler

wire:
	TT_MEMTRACE_WIRE_RECORDS=200000 $(GO) test -count 1 -run TestMixedClients -v -timeout 15m ./internal/wire

packages:
	packaging/build.sh dist

reproducible:
	packaging/reproducible.sh

packages-test:
	scripts/deps.sh test packages
	$(GO) vet -tags packages ./test/packaging
	$(GO) test -tags packages -count 1 -timeout 20m ./test/packaging

collector:
	$(GO) vet -tags collector ./test/prometheus
	$(GO) test -tags collector -count 1 -run TestPushToACollector -v ./test/prometheus

deps:
	scripts/deps.sh test check

clean:
	rm -rf $(BINARY) dist
