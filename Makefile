# Targets are the contract of the project: see docs/HACKING.md.
SHELL   := /bin/bash
.SHELLFLAGS := -o pipefail -c
BIN     := bin
BUILD   := build
PREFIX  ?= /usr
DESTDIR ?=
GO      ?= $(shell command -v go || echo /usr/local/go/bin/go)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_STEPD := -trimpath -buildvcs=false
LDFLAGS = -s -w -X stepd/internal/build.version=$(VERSION)

export CGO_ENABLED = 0

# A build prints each program and its file; V=1 prints the commands.
Q   := $(if $(V),,@)
say  = $(if $(V),@:,@printf '%-4s %s\n' '$(1)' '$(2)')

# The project's files by a pattern: there may be no git, as in a tarball.
files = $$(find . -path ./$(BUILD) -prune -o -name '$(1)' -printf '%P\n')

.PHONY: all help
all: go-programs $(BIN)/spankhost $(BIN)/stepkeeper $(BIN)/pamhost ## build bin/{noded,stepd,stepctl,spankhost,stepkeeper,pamhost}, and pmixhost where libpmix-dev is

include spank/host/host.mk
include mpi/pmixhost/pmixhost.mk
include slurm/keeper/program/keeper.mk
include slurm/pam/program/pamhost.mk

help: ## list the targets
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | expand -t 16

.PHONY: go-programs
go-programs:
	@mkdir -p $(BIN)
	$(call say,GO,$(BIN))
	$(Q)$(GO) build $(GOFLAGS_STEPD) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

# What a new machine lacks. Packages are asked for only where one is missing,
# so that a second run needs no network.
BUILD_PKGS := gcc libc6-dev make
TEST_PKGS  := $(BUILD_PKGS) g++ pkgconf liblua5.4-dev clang-format graphviz libslurm-dev passwd util-linux procps curl libasan8 libubsan1 \
              mpich libmpich-dev libpmi2-0 libpmi2-0-dev openmpi-bin libopenmpi-dev libpmix-dev libpmix-bin \
              qemu-system-x86 mmdebstrap e2fsprogs cpio busybox-static tmux \
              bash-completion zsh fish groff-base mandoc bindfs munge gdb
DEMO_PKGS  := $(BUILD_PKGS) mpich libmpich-dev mmdebstrap

define need_packages
	@missing=$$(for p in $(1); do dpkg-query -W -f '$${Status}\n' $$p 2>/dev/null | grep -q '^install ok' || echo $$p; done); \
	if [ -n "$$missing" ]; then echo "installing" $$missing; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; fi
endef

# The guest's are of no use in a container, which gets an interface beside lo.
CONTAINER_PKGS := iproute2 $(filter-out qemu-system-x86 mmdebstrap e2fsprogs cpio busybox-static clang-format,$(TEST_PKGS))
PODMAN_PKGS    := podman buildah runc mmdebstrap

.PHONY: deps-build deps-test deps-demo deps-container deps-podman
deps-container: ; $(call need_packages,$(CONTAINER_PKGS))
deps-podman: ; $(call need_packages,$(PODMAN_PKGS))
deps-build: ; $(call need_packages,$(BUILD_PKGS))
deps-test:  ; $(call need_packages,$(TEST_PKGS))
deps-demo:  ; $(call need_packages,$(DEMO_PKGS))

# gate fails the run for a failed test and for a skip that its list does not allow.
GATE := $(GO) run ./internal/testkit/gate

# The tests of mechanisms are test-root's alone, with -race as well. Many tests wait more
# than they compute, so that -parallel is more than the CPUs. At its end the race detector
# waits a second for other goroutines, in each of the tests' processes: 10 ms are enough.
ROOT_TESTS := ^(TestRoot|TestMPICH|TestLibPMI2)
RACE := CGO_ENABLED=1 GORACE=atexit_sleep_ms=10
UNIT := test -race -shuffle=on -parallel 8 -skip '$(ROOT_TESTS)' $$($(GO) list ./... | grep -vE '/integration(/vm/guest)?$$')
.PHONY: unit unit-strict
unit: ## tests without root or network, with -race
	$(RACE) $(GO) $(UNIT)

unit-strict: # the same, where nothing may be skipped
	$(RACE) STRICT=1 $(GO) $(subst test -race,test -json -race,$(UNIT)) | CGO_ENABLED=0 $(GATE)

.PHONY: test-root
test-root: all ## mechanism tests: root, real cgroups and namespaces
	$(RACE) STRICT=1 $(GO) test -json -race -shuffle=on -run '$(ROOT_TESTS)' $$($(GO) list ./... | grep -v /integration) | $(GATE)

.PHONY: integration
# TIMEOUT= is for machines that are slow, or have others on them.
TIMEOUT ?= 20m
integration: all examples ## black-box tests on the built programs
	STRICT=1 STEPD_BIN=$(CURDIR)/$(BIN) $(GO) test -json -count=1 -parallel 4 -timeout $(TIMEOUT) $(if $(RUN),-run '$(RUN)') ./integration | $(GATE)

# Private Slurms of Debian's releases, each in a root that mmdebstrap makes once:
# integration/slurm. CHECKS= names checks of testdata/checks.txt, SLURM_SELF=1 has Slurm's
# own step daemon on both sides. SLURM_CACHE= is where the roots lie.
.PHONY: slurm-test slurm-matrix slurm-run
SLURM_CACHE ?= /var/cache/stepd-slurm
SLURM       := STRICT=1 SLURM_CACHE=$(SLURM_CACHE) STEPD_BIN=$(CURDIR)/$(BIN) $(GO) test -json -count=1 -parallel 4 -timeout $(TIMEOUT)
slurm-test: all ## what srun and sbatch do under the real slurmd, with ours and Slurm's step daemon (RUN=TestX, CHECKS=01,02)
	CHECKS='$(CHECKS)' $(SLURM) -run '$(or $(RUN),^TestRoot)' ./integration/slurm/... | $(GATE) $(if $(CHECKS),-v)

slurm-matrix: all ## every such check on every release, a table of the results, and ssh, X11, PAM, containers, devices, MPI on the later ones (or RUN=)
	@mkdir -p $(BUILD); SLURM_MATRIX=1 CHECKS='$(CHECKS)' $(SLURM) -run '$(or $(RUN),^TestRootSlurm[0-9]$(if $(CHECKS),,|^TestRoot(SSH|X11|Runtime|SlurmMPI|SlurmSpawn|PAM|Containers|GresDevices|TmpfsKilled)$$))' ./integration/slurm > $(BUILD)/slurm-matrix.json; \
	$(GATE) < $(BUILD)/slurm-matrix.json; status=$$?; integration/slurm/matrix.sh $(BUILD)/slurm-matrix.json; exit $$status

slurm-run: export CMD := $(value CMD)
slurm-run: all ## run CMD= as a user of such a Slurm (RELEASE=22.05, SITE=affinity, ARGS=-real, -root, -log)
	@$(GO) run ./integration/slurm/run -cache $(SLURM_CACHE) -bin $(BIN) -release $(or $(RELEASE),22.05) -site '$(SITE)' $(ARGS) "$$CMD"

.PHONY: slurm-cuts
slurm-cuts: all ## kill a step daemon or slurmd of three nodes, or cut its node off, at random moments, with MPI and without, POINTS= times each (100; SEED=, RELEASE=)
	POINTS=$(or $(POINTS),100) RELEASE=$(or $(RELEASE),22.05) $(SLURM) -v -run '^TestRoot(SlurmCuts|PeersLost)$$' ./integration/slurm | $(GATE) -v

.PHONY: slurm-faults
slurm-faults: all ## kill each process at every phase of a step under slurmd, and as often at random, POINTS= kills each (500)
	POINTS=$(or $(POINTS),500) $(SLURM) -v -run '^TestRoot(SlurmFaults|SlurmRandomKills|MungedAway)$$' ./integration/slurm | $(GATE) -v

.PHONY: faults
FAULTS ?= 5
faults: all ## kill each process at every phase of a step, FAULTS times (5)
	STRICT=1 FAULTS=$(FAULTS) STEPD_BIN=$(CURDIR)/$(BIN) $(GO) test -v -count=1 -timeout 60m -run '^TestRootFaults$$' ./integration | grep -vE '^ *(--- (PASS|SKIP)|=== )'

.PHONY: chaos
chaos: all ## CHAOS steps (300) and faults at random among them, and each attack of one user for AGAINST (10s) (SEED=, ROUND=)
	STRICT=1 CHAOS=$(or $(CHAOS),300) AGAINST=$(or $(AGAINST),10s) STEPD_BIN=$(CURDIR)/$(BIN) $(GO) test -v -count=1 -timeout 60m -run '^TestRoot(Chaos|OneUserAgainstAll)$$' ./integration | grep -vE '^ *(--- (PASS|SKIP)|=== )'

.PHONY: soak
SOAK ?= 10000
soak: all ## SOAK steps (10000) that end in all kinds of ways, and what is left of them
	STRICT=1 SOAK=$(SOAK) STEPD_BIN=$(CURDIR)/$(BIN) $(GO) test -v -count=1 -timeout 120m -run '^TestRootThousandSteps$$' ./integration

# The guest: integration/vm. RUN= names tests to run, not the ones in
# integration/vm/tests.tsv, PKG= the packages to look for them in; CMD= is a
# command for vm-run; OLD_BIN= has the programs of an earlier release, to upgrade
# from. VM_CACHE= is where its image lies.
VM_CACHE ?= /var/cache/stepd-vm
VM       := $(GO) run ./integration/vm -cache $(VM_CACHE)
.PHONY: vm-test vm-run
vm-test: all ## tests in a guest with systemd and pure cgroup v2 (RUN=TestX PKG=./proctrack)
	$(VM) -run '$(RUN)' -pkg '$(PKG)' $(if $(OLD_BIN),-old '$(abspath $(OLD_BIN))') | $(GATE) -where guest $(if $(RUN),-v)

vm-run: export CMD := $(value CMD)
vm-run: all ## run CMD= as root in that guest
	@$(VM) -cmd "$$CMD"

.PHONY: fuzz
# A count, not a time: a fuzz test that ends by its time may fail for that alone. Two
# packages at a time, and only those that have such tests. Each is built once for all of
# its fuzz tests, which keep what they find where `go test -fuzz` does. Making an input
# smaller that is only of interest takes a minute each unless told otherwise.
FUZZTIME ?= 10000x
fuzz: ## every fuzz test, FUZZTIME executions each
	@mkdir -p $(BUILD)/fuzz; cache=$$($(GO) env GOCACHE)/fuzz/stepd; \
	grep -l '^func Fuzz' $(call files,*_test.go) | xargs -n 1 dirname | sort -u | xargs -P 2 -I % sh -c ' \
	  out=$(CURDIR)/$(BUILD)/fuzz/$$(echo % | tr / .); \
	  $(GO) test -c -vet=off -fuzz . -o $$out.test ./% && cd % || exit 255; \
	  for f in $$(sed -n "s/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p" *_test.go); do \
	    echo "% $$f"; \
	    $$out.test -test.run "^$$" -test.fuzz "^$$f\$$" -test.fuzztime $(FUZZTIME) -test.fuzzminimizetime 20x -test.parallel 1 -test.fuzzcachedir "$$0/%" >$$out.log 2>&1 || { cat $$out.log; bad=1; }; \
	  done; exit $$bad' "$$cache"

.PHONY: test
test: deps-test all ## everything that this machine can run; installs what it needs
	$(MAKE) lint
	$(MAKE) unit-strict
	$(MAKE) test-c
	$(MAKE) fuzz
	$(MAKE) test-root
	JOBS=2 $(MAKE) mpi-pmi2
	$(MAKE) integration
	$(MAKE) slurm-test
	$(MAKE) vm-test

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
.PHONY: lint
lint: ## gofmt, vet, staticcheck, clang-format
	@out=$$(gofmt -l $(call files,*.go)); if [ -n "$$out" ]; then echo "gofmt would change:" $$out; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	clang-format --dry-run -Werror $(call files,*.[ch])

.PHONY: pictures
pictures: ## docs/pictures/*.svg from their texts (Debian: graphviz)
	for f in docs/pictures/*.dot; do dot -Tsvg -o $${f%.dot}.svg $$f || exit; done

.PHONY: examples
examples: $(BIN)/spankhost ## the example plugins and MPI programs
	@$(MAKE) --no-print-directory -C examples/plugins INCLUDE=$(CURDIR)/spank/host/include OUT=$(CURDIR)/$(BUILD)/examples
	@$(MAKE) --no-print-directory -C examples/mpi OUT=$(CURDIR)/$(BUILD)/examples

.PHONY: demo need-root
need-root:
	@[ "$$(id -u)" = 0 ] || { echo 'make demo needs root, for cgroups, mounts and missing Debian packages: sudo make demo' >&2; exit 1; }

demo: need-root deps-demo all examples ## the main job: MPI under two SPANK plugins, and where the time went; srun under Slurm
	@$(GO) build -o $(BUILD)/slurm-demo ./integration/slurm/demo
	@./examples/demo.sh $(CURDIR)/$(BIN) $(CURDIR)/$(BUILD)/examples $(BUILD)/slurm-demo -bin $(CURDIR)/$(BIN) -cache $(SLURM_CACHE)

.PHONY: bench
bench: all ## the benchmark table, its peers measured in the same run (BASE=DIR: another release in DIR/bin is the peer; RUN=table,table)
	$(GO) run ./integration/bench -bin $(CURDIR)/$(BIN) $(if $(BASE),-base $(abspath $(BASE))/bin) $(if $(RUN),-run $(RUN))

.PHONY: bench-slurm
bench-slurm: all ## srun and sbatch with our step daemon and Slurm's, in turns (RELEASE=24.11)
	@mkdir -p $(BUILD) && $(GO) build -o $(BUILD)/bench-slurm ./integration/slurm/bench
	$(BUILD)/bench-slurm -cache $(SLURM_CACHE) -bin $(CURDIR)/$(BIN) -release $(or $(RELEASE),22.05)

# BASE= and GO_IMAGE= name images to build from; without them they are made here,
# of Debian's packages and this machine's Go. RUN= names tests, as in vm-test.
.PHONY: container-test
container-test: deps-podman ## the image, and the black-box tests in a container (RUN=TestX)
	RUN='$(RUN)' VERSION='$(VERSION)' integration/container/run.sh $(BASE) $(GO_IMAGE)

# MPICH for PMI-2 and PMI-1 from Debian's sources, which no package has: some 5
# minutes of one idle CPU, once for each state of the recipe. The tests of MPI use
# what is built.
.PHONY: mpi-pmi2 mpi-suite
mpi-pmi2: ## MPICH for PMI-2, in /var/cache/stepd-mpich
	integration/mpisuite/mpich.sh

mpi-suite: all mpi-pmi2 ## MPICH's own tests under mpiexec.hydra and stepctl, or with ON=srun srun on three nodes (DIRS=attr,coll ARGS=-most=1m)
	integration/mpisuite/mpich.sh suite
	$(GO) run ./integration/mpisuite -bin $(BIN) -on $(or $(ON),stepctl) -cache $(SLURM_CACHE) $(if $(DIRS),-dirs $(DIRS)) $(ARGS)

.PHONY: install install-files
install: all install-files ## into DESTDIR and PREFIX

SHARE    := $(DESTDIR)$(PREFIX)/share
EXAMPLES := $(SHARE)/doc/stepd-dev/examples
# With BIN= an earlier release's programs are installed, which may have none of these.
SLURM_PROGRAMS = $(wildcard $(BIN)/slurmstepd $(BIN)/stepkeeper $(BIN)/pamhost)
install-files:
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec/stepd $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m755 $(BIN)/noded $(DESTDIR)$(PREFIX)/sbin/
	install -m755 $(BIN)/stepctl $(DESTDIR)$(PREFIX)/bin/
	install -m755 $(BIN)/stepd $(BIN)/spankhost $(PMIXHOST) $(SLURM_PROGRAMS) $(DESTDIR)$(PREFIX)/libexec/stepd/
	for u in noded.service noded.socket; do sed 's|/usr/|$(PREFIX)/|g' packaging/$$u | install -m644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$$u || exit; done
	install -d $(addprefix $(SHARE)/,bash-completion/completions zsh/site-functions fish/vendor_completions.d doc/stepd/adr man/man7)
	$(BIN)/stepctl completion bash > $(SHARE)/bash-completion/completions/stepctl
	$(BIN)/stepctl completion zsh > $(SHARE)/zsh/site-functions/_stepctl
	$(BIN)/stepctl completion fish > $(SHARE)/fish/vendor_completions.d/stepctl.fish
	install -m644 CHANGELOG.md LICENSE $(SHARE)/doc/stepd/
	# Without docs/ between them, docs/README.md is index.md: their links follow.
	sed -e 's|](docs/README\.md|](index.md|g' -e 's|](docs/|](|g' -e 's|](examples/plugins|](../stepd-dev/examples|g' README.md | install -m644 /dev/stdin $(SHARE)/doc/stepd/README.md
	for f in docs/*.md; do to=$${f##*/}; [ $$to != README.md ] || to=index.md; \
		sed -e 's|](README\.md|](index.md|g' -e 's|](\.\./examples/plugins|](../stepd-dev/examples|g' $$f | install -m644 /dev/stdin $(SHARE)/doc/stepd/$$to || exit; done
	install -d $(SHARE)/doc/stepd/examples
	install -m644 packaging/etc/* $(SHARE)/doc/stepd/examples/
	install -m644 docs/adr/*.md $(SHARE)/doc/stepd/adr/
	install -d $(SHARE)/doc/stepd/pictures
	install -m644 docs/pictures/*.svg $(SHARE)/doc/stepd/pictures/
	install -m644 docs/man/*.7 $(SHARE)/man/man7/
	install -d $(SHARE)/man/man8
	$(BIN)/stepctl man $(SHARE)/man
	$(BIN)/noded --manual > $(SHARE)/man/man8/noded.8
	install -d $(DESTDIR)$(PREFIX)/include/stepd/slurm $(SHARE)/pkgconfig $(EXAMPLES)
	install -m644 spank/host/include/slurm/*.h $(DESTDIR)$(PREFIX)/include/stepd/slurm/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' packaging/stepd-spank.pc.in > $(SHARE)/pkgconfig/stepd-spank.pc
	install -m644 examples/plugins/*.c examples/plugins/Makefile $(EXAMPLES)/
	sed 's|](\.\./\.\./docs/|](../../stepd/|g' examples/plugins/README.md | install -m644 /dev/stdin $(EXAMPLES)/README.md

# DEB_VERSION= names the version, else git does; DEB_OUT= the folder.
NFPM_VERSION := v2.45.2
NFPM         := $(BUILD)/tools/nfpm-$(NFPM_VERSION)
DEB_OUT      ?= $(BUILD)/deb
.PHONY: deb deb-files
deb: all deb-files ## Debian packages stepd, stepd-slurm, stepd-common and stepd-dev, in build/deb

deb-files: $(NFPM)
	@packaging/deb/build.sh $(NFPM) $(DEB_OUT)

$(NFPM):
	GOBIN=$(CURDIR)/$(BUILD)/tools $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	mv $(BUILD)/tools/nfpm $@

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) $(BUILD)
