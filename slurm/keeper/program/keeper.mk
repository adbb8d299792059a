# SPDX-License-Identifier: Apache-2.0
# stepkeeper: included by the Makefile, after spank/host/host.mk, whose flags it has.

KEEPER_DIR    := slurm/keeper/program
KEEPER_CFLAGS := -std=c11 -Wall -Wextra -Werror -I$(KEEPER_DIR) -DSTEPD_VERSION='"$(VERSION)"'
KEEPER_LDFLAGS := -pie -Wl,-z,relro,-z,now,-z,noexecstack

$(BIN)/stepkeeper: $(KEEPER_DIR)/main.c $(KEEPER_DIR)/keeper.h $(BUILD)/version
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(KEEPER_CFLAGS) $(CFLAGS) $(KEEPER_LDFLAGS) -o $@ $<

$(BUILD)/asan/stepkeeper: $(KEEPER_DIR)/main.c $(KEEPER_DIR)/keeper.h
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(KEEPER_CFLAGS) -o $@ $<

$(BUILD)/asan/keeper_test: $(KEEPER_DIR)/tests/keeper_test.c $(KEEPER_DIR)/keeper.h
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(KEEPER_CFLAGS) -o $@ $<

.PHONY: test-keeper
test-keeper: $(BUILD)/asan/stepkeeper $(BIN)/stepkeeper $(BUILD)/asan/keeper_test
	KEEPER=$(abspath $(BUILD)/asan/stepkeeper) $(BUILD)/asan/keeper_test
	KEEPER=$(abspath $(BIN)/stepkeeper) $(BUILD)/asan/keeper_test
test-c: test-keeper
