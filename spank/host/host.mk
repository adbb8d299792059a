# SPDX-License-Identifier: Apache-2.0
# spankhost: included by the Makefile as `include spank/host/host.mk`. Paths are
# from the repository's root; BIN and BUILD are the including file's.

BIN   ?= bin
BUILD ?= build
CC    ?= cc
VERSION ?= unreleased

# What spankhost and pmixhost share.
WIRE_DIR  := internal/wire/c
WIRE_HDRS := $(wildcard $(WIRE_DIR)/*.h)
WIRE_OBJ  := $(BUILD)/wire/reader.o
WIRE_ASAN_OBJ := $(BUILD)/asan/wire/reader.o

HOST_DIR  := spank/host
HOST_SRCS := $(wildcard $(HOST_DIR)/*.c)
HOST_HDRS := $(wildcard $(HOST_DIR)/*.h $(HOST_DIR)/include/slurm/*.h) $(WIRE_HDRS)
HOST_LIB_SRCS := $(filter-out $(HOST_DIR)/main.c,$(HOST_SRCS))
HOST_TESTS := $(HOST_DIR)/tests

HOST_CFLAGS := -std=c11 -Wall -Wextra -Werror -fvisibility=hidden \
	-I$(HOST_DIR) -I$(HOST_DIR)/include -I$(WIRE_DIR)
# Exactly what exports.list names is in the dynamic symbol table.
HOST_LDFLAGS := -pie -Wl,--dynamic-list=$(HOST_DIR)/exports.list -Wl,-z,relro,-z,now,-z,noexecstack
HOST_HARDEN := -O2 -fPIE -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HOST_SANITIZE := -O1 -g -fPIE -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all -U_FORTIFY_SOURCE

HOST_OBJS := $(HOST_SRCS:$(HOST_DIR)/%.c=$(BUILD)/host/%.o) $(WIRE_OBJ)
HOST_ASAN_OBJS := $(HOST_SRCS:$(HOST_DIR)/%.c=$(BUILD)/asan/host/%.o) $(WIRE_ASAN_OBJ)
HOST_ASAN_LIB := $(HOST_LIB_SRCS:$(HOST_DIR)/%.c=$(BUILD)/asan/host/%.o) $(WIRE_ASAN_OBJ)

$(BIN)/spankhost: $(HOST_OBJS) $(HOST_DIR)/exports.list
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(HOST_HARDEN) $(HOST_LDFLAGS) -o $@ $(HOST_OBJS) -ldl

$(BUILD)/host/%.o: $(HOST_DIR)/%.c $(HOST_HDRS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(HOST_CFLAGS) $(CFLAGS) -c -o $@ $<

$(WIRE_OBJ): $(BUILD)/wire/%.o: $(WIRE_DIR)/%.c $(WIRE_HDRS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(HOST_CFLAGS) $(CFLAGS) -c -o $@ $<

# The version is in these alone, and they are made anew for another one.
$(BUILD)/host/main.o: $(BUILD)/version
$(BUILD)/host/main.o: HOST_CFLAGS += -DSTEPD_VERSION='"$(VERSION)"'
.PHONY: version
version:
$(BUILD)/version: version
	@mkdir -p $(@D)
	@echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@

$(BUILD)/asan/spankhost: $(HOST_ASAN_OBJS) $(HOST_DIR)/exports.list
	$(CC) $(HOST_SANITIZE) $(HOST_LDFLAGS) -o $@ $(HOST_ASAN_OBJS) -ldl

$(BUILD)/asan/host/%.o: $(HOST_DIR)/%.c $(HOST_HDRS)
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(HOST_CFLAGS) -c -o $@ $<

$(WIRE_ASAN_OBJ): $(BUILD)/asan/wire/%.o: $(WIRE_DIR)/%.c $(WIRE_HDRS)
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(HOST_CFLAGS) -c -o $@ $<

# Tests, under the sanitizers. step_test, failure_test and life_test need root, and say so when they have not.
HOST_TEST_CFLAGS := $(HOST_SANITIZE) $(HOST_CFLAGS) -I$(HOST_TESTS)
HOST_UNIT_TESTS := $(addprefix $(BUILD)/asan/,unit_test explain_test fuzz_test hostlist_test)
HOST_STEP_TESTS := $(addprefix $(BUILD)/asan/,step_test failure_test life_test)

$(HOST_STEP_TESTS) $(BUILD)/asan/abi_test: $(BUILD)/asan/%: $(HOST_TESTS)/%.c $(HOST_TESTS)/driver.c $(HOST_TESTS)/blob.c \
		$(BUILD)/asan/host/wire.o $(WIRE_ASAN_OBJ) $(wildcard $(HOST_TESTS)/*.h)
	$(CC) $(HOST_TEST_CFLAGS) -o $@ $(filter %.c %.o,$^)

$(BUILD)/asan/probe.so: $(HOST_TESTS)/plugin.c $(HOST_HDRS)
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Werror -fPIC -shared -I$(HOST_DIR)/include -o $@ $<

# Plugins of abi_test: the last two with the headers of an installed Slurm, if
# there is one.
HOST_ABI_PLUGINS := $(addprefix $(BUILD)/asan/,imports.so many.so own.so)
HOST_SLURM_HEADER := $(wildcard /usr/include/slurm/slurm.h)
ifneq ($(HOST_SLURM_HEADER),)
HOST_ABI_PLUGINS += $(addprefix $(BUILD)/asan/,job.so job2605.so)
endif

$(BUILD)/asan/imports.so: PLUGIN_FLAGS := -I$(HOST_DIR)/include
$(BUILD)/asan/many.so: PLUGIN_FLAGS := -I$(HOST_DIR)/include -DMANY
$(BUILD)/asan/own.so: PLUGIN_FLAGS := -I$(HOST_DIR)/include -DOWN -L$(BUILD)/asan -Wl,-rpath,'$$ORIGIN'
$(BUILD)/asan/own.so: PLUGIN_LIBS := -ltheirs
$(BUILD)/asan/own.so: $(BUILD)/asan/libtheirs.so
$(BUILD)/asan/job2605.so: PLUGIN_FLAGS := -DVERSION=0x1a0500
$(BUILD)/asan/imports.so $(BUILD)/asan/many.so $(BUILD)/asan/own.so: $(HOST_TESTS)/imports_plugin.c
$(BUILD)/asan/job.so $(BUILD)/asan/job2605.so: $(HOST_TESTS)/job_plugin.c
$(HOST_ABI_PLUGINS): $(HOST_HDRS)
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -Wall -Wextra -Werror -fPIC -shared $(PLUGIN_FLAGS) -o $@ $(filter %.c,$^) -lm $(PLUGIN_LIBS)

$(BUILD)/asan/libtheirs.so: $(HOST_TESTS)/theirs.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -Wall -Wextra -Werror -fPIC -shared -o $@ $<

$(HOST_UNIT_TESTS): $(BUILD)/asan/%: $(HOST_TESTS)/%.c \
		$(HOST_TESTS)/blob.c $(HOST_ASAN_LIB) $(wildcard $(HOST_TESTS)/*.h)
	$(CC) $(HOST_TEST_CFLAGS) -o $@ $(filter %.c %.o,$^) -ldl

# What plugins may link against, and nothing else.
HOST_SYMBOLS = nm -D --defined-only $(1) | awk '{print $$3}' | sort

.PHONY: test-c
test-c: $(BIN)/spankhost $(BUILD)/asan/spankhost $(HOST_STEP_TESTS) \
		$(BUILD)/asan/probe.so $(BUILD)/asan/abi_test $(HOST_ABI_PLUGINS) $(HOST_UNIT_TESTS)
	$(BUILD)/asan/unit_test
	$(BUILD)/asan/explain_test
	FUZZ_SECONDS=5 $(BUILD)/asan/fuzz_test
	FUZZ_SECONDS=2 $(BUILD)/asan/hostlist_test
	@set -e; for test in $(HOST_STEP_TESTS); do for host in $(abspath $(BUILD)/asan/spankhost $(BIN)/spankhost); do \
		echo "$$test of $$host"; SPANKHOST=$$host PLUGIN=$(abspath $(BUILD)/asan/probe.so) $$test; \
	done; done
	SPANKHOST=$(abspath $(BUILD)/asan/spankhost) PLUGINS=$(abspath $(BUILD)/asan) $(BUILD)/asan/abi_test
	SPANKHOST=$(abspath $(BIN)/spankhost) PLUGINS=$(abspath $(BUILD)/asan) $(BUILD)/asan/abi_test
	sed -n 's/^\t\(.*\);/\1/p' $(HOST_DIR)/exports.list | sort >$(BUILD)/asan/exports.want
	$(call HOST_SYMBOLS,$(BIN)/spankhost) | diff $(BUILD)/asan/exports.want -
	$(CC) -std=c11 -I$(HOST_DIR)/include -o $(BUILD)/asan/abi $(HOST_TESTS)/abi.c && $(BUILD)/asan/abi >$(BUILD)/asan/abi.ours
	@if [ -f /usr/include/slurm/spank.h ]; then \
		$(CC) -std=c11 -o $(BUILD)/asan/abi $(HOST_TESTS)/abi.c && \
		$(BUILD)/asan/abi | diff $(BUILD)/asan/abi.ours - && $(CC) -std=gnu11 -fsyntax-only $(HOST_TESTS)/job_layout.c && \
		echo "ok the ABI is that of the installed Slurm"; \
	else echo "skipped: no Slurm headers to compare with"; test -z "$$STRICT"; fi

$(BUILD)/host/bench: $(HOST_TESTS)/bench.c $(HOST_TESTS)/driver.c $(HOST_TESTS)/blob.c \
		$(BUILD)/host/wire.o $(WIRE_OBJ) $(wildcard $(HOST_TESTS)/*.h)
	$(CC) $(HOST_HARDEN) $(HOST_CFLAGS) -I$(HOST_TESTS) -o $@ $(filter %.c %.o,$^)

.PHONY: bench-c
bench-c: $(BIN)/spankhost $(BUILD)/host/bench
	for n in 1 64 1000; do SPANKHOST=$(abspath $(BIN)/spankhost) $(BUILD)/host/bench $$n 15; done
