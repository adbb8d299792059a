# SPDX-License-Identifier: Apache-2.0
# pmixhost: included by the Makefile, after spank/host/host.mk. It is built where
# libpmix-dev is; elsewhere --mpi=pmix says that it is missing.

PMIX_DIR  := mpi/pmixhost
PMIX_SRCS := $(wildcard $(PMIX_DIR)/*.c)
PMIX_HDRS := $(wildcard $(PMIX_DIR)/*.h) $(WIRE_HDRS)
PMIX_TESTS := $(PMIX_DIR)/tests

# Where Debian, or another distribution, has put the library.
PMIX_PC := $(shell pkg-config --silence-errors --exists 'pmix >= 3.2' && echo pmix)
ifneq ($(PMIX_PC),)
PMIXHOST := $(BIN)/pmixhost
all: $(PMIXHOST)
endif
PMIX_INC  = $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PMIX_PC)))
PMIX_LIBS = $(shell pkg-config --libs $(PMIX_PC)) -lpthread

PMIX_CFLAGS = -std=c11 -Wall -Wextra -Werror -fvisibility=hidden \
	-I$(PMIX_DIR) -I$(WIRE_DIR) $(PMIX_INC)
# accept() is what peer.c has, read() what quick.c has; they must be found before the
# C library's.
PMIX_LDFLAGS := -pie -Wl,--export-dynamic-symbol=accept -Wl,--export-dynamic-symbol=read -Wl,-z,relro,-z,now,-z,noexecstack

PMIX_OBJS := $(PMIX_SRCS:$(PMIX_DIR)/%.c=$(BUILD)/pmix/%.o) $(WIRE_OBJ)
PMIX_ASAN_OBJS := $(PMIX_SRCS:$(PMIX_DIR)/%.c=$(BUILD)/asan/pmix/%.o) $(WIRE_ASAN_OBJ)
PMIX_ASAN_LIB := $(filter-out $(BUILD)/asan/pmix/main.o,$(PMIX_ASAN_OBJS))

$(BIN)/pmixhost: $(PMIX_OBJS)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(HOST_HARDEN) $(PMIX_LDFLAGS) -o $@ $(PMIX_OBJS) $(PMIX_LIBS)

$(BUILD)/pmix/%.o: $(PMIX_DIR)/%.c $(PMIX_HDRS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(PMIX_CFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/pmix/main.o: $(BUILD)/version
$(BUILD)/pmix/main.o: PMIX_CFLAGS += -DSTEPD_VERSION='"$(VERSION)"'

$(BUILD)/asan/pmixhost: $(PMIX_ASAN_OBJS)
	$(CC) $(HOST_SANITIZE) $(PMIX_LDFLAGS) -o $@ $(PMIX_ASAN_OBJS) $(PMIX_LIBS)

$(BUILD)/asan/pmix/%.o: $(PMIX_DIR)/%.c $(PMIX_HDRS)
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(PMIX_CFLAGS) -c -o $@ $<

# Tests under the sanitizers; the library itself keeps memory until its end.
ifneq ($(PMIX_PC),)
$(BUILD)/asan/pmix_%_test: $(PMIX_TESTS)/%_test.c $(PMIX_ASAN_LIB) $(PMIX_HDRS)
	$(CC) $(HOST_SANITIZE) $(PMIX_CFLAGS) -o $@ $(filter %.c %.o,$^) $(PMIX_LIBS)

.PHONY: test-pmixhost
test-pmixhost: $(BUILD)/asan/pmix_wire_test $(BUILD)/asan/pmix_quick_test
	ASAN_OPTIONS=detect_leaks=0 $(BUILD)/asan/pmix_wire_test
	$(BUILD)/asan/pmix_quick_test
test-c: test-pmixhost
endif
