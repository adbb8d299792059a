# SPDX-License-Identifier: Apache-2.0
# pamhost: included by the Makefile, after spank/host/host.mk, whose flags it has.

PAM_DIR     := slurm/pam/program
PAM_CFLAGS  := -std=c11 -Wall -Wextra -Werror -I$(PAM_DIR) -DSTEPD_VERSION='"$(VERSION)"'
PAM_LDFLAGS := -pie -Wl,-z,relro,-z,now,-z,noexecstack

$(BIN)/pamhost: $(PAM_DIR)/main.c $(PAM_DIR)/pamhost.h $(BUILD)/version
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(HOST_HARDEN) $(PAM_CFLAGS) $(CFLAGS) $(PAM_LDFLAGS) -o $@ $< -ldl

$(BUILD)/asan/pamhost: $(PAM_DIR)/main.c $(PAM_DIR)/pamhost.h
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(PAM_CFLAGS) -o $@ $< -ldl

# A libpam of the test's own, which does as the user's name says.
$(BUILD)/asan/fakepam/libpam.so.0: $(PAM_DIR)/tests/fakepam.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Werror -O1 -fPIC -shared -o $@ $<

$(BUILD)/asan/pamhost_test: $(PAM_DIR)/tests/pamhost_test.c $(PAM_DIR)/pamhost.h
	@mkdir -p $(@D)
	$(CC) $(HOST_SANITIZE) $(PAM_CFLAGS) -o $@ $<

.PHONY: test-pam
test-pam: $(BUILD)/asan/pamhost $(BIN)/pamhost $(BUILD)/asan/fakepam/libpam.so.0 $(BUILD)/asan/pamhost_test
	LD_LIBRARY_PATH=$(abspath $(BUILD)/asan/fakepam) PAMHOST=$(abspath $(BUILD)/asan/pamhost) $(BUILD)/asan/pamhost_test
	LD_LIBRARY_PATH=$(abspath $(BUILD)/asan/fakepam) PAMHOST=$(abspath $(BIN)/pamhost) $(BUILD)/asan/pamhost_test
test-c: test-pam
