# SPDX-License-Identifier: Apache-2.0
# spankhost: included by the Makefile as `include spank/host/host.mk`. Paths are
# from the repository's root; BIN and BUILD are the including file's.

BIN   ?= bin
BUILD ?= build
CC    ?= cc
VERSION ?= unreleased

HOST_DIR  := spank/host
HOST_SRCS := $(wildcard $(HOST_DIR)/*.c)
HOST_HDRS := $(wildcard $(HOST_DIR)/*.h $(HOST_DIR)/include/slurm/*.h)
HOST_LIB_SRCS := $(filter-out $(HOST_DIR)/main.c,$(HOST_SRCS))
HOST_TESTS := $(HOST_DIR)/tests

HOST_CFLAGS := -std=c11 -Wall -Wextra -Werror -fvisibility=hidden \
	-I$(HOST_DIR) -I$(HOST_DIR)/include -DSTEPD_VERSION='"$(VERSION)"'
# Exactly what exports.list names is in the dynamic symbol table.
HOST_LDFLAGS := -pie -Wl,--dynamic-list=$(HOST_DIR)/exports.list -Wl,-z,relro,-z,now,-z,noexecstack
HOST_HARDEN := -O2 -fPIE -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HOST_SANITIZE := -O1 -g -fPIE -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all -U_FORTIFY_SOURCE

HOST_OBJS := $(HOST_SRCS:$(HOST_DIR)/%.c=$(BUILD)/host/%.o)
HOST_ASAN_OBJS := $(HOST_SRCS:$(HOST_DIR)/%.c=$(BUILD)/asan/host/%.o)
HOST_ASAN_LIB := $(HOST_LIB_SRCS:$(HOST_DIR)/%.c=$(BUILD)/asan/host/%.o)

$(BIN)/spankhost: $(HOST_OBJS) $(HOST_DIR)/exports.list
	@mkdir -p $(@D)
	$(CC) $(HOST_HARDEN) $(LDFLAGS) $(HOST_LDFLAGS) -o $@ $(HOST_OBJS) -ldl

$(BUILD)/host/%.o: $(HOST_DIR)/%.c $(HOST_HDRS)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(HOST_CFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/asan/spankhost: $(HOST_ASAN_OBJS) $(HOST_DIR)/exports.list
	$(CC) $(HOST_SANITIZE) $(HOST_LDFLAGS) -o $@ $(HOST_ASAN_OBJS) -ldl

$(BUILD)/asan/host/%.o: $(HOST_DIR)/%.c $(HOST_HDRS)
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(HOST_CFLAGS) -c -o $@ $<
