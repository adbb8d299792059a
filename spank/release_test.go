package spank

import (
	"strings"
	"testing"
)

func TestCheckRelease(t *testing.T) {
	for _, c := range []struct {
		name    string
		version uint32
		allow   []string
		want    string
		err     string // "" is accepted
	}{
		{"21.08", 0x150808, nil, "21.08.8", ""},
		{"22.05", 0x160508, nil, "22.05.8", ""},
		{"23.02", 0x170207, nil, "23.02.7", ""},
		{"23.11", 0x170b0a, nil, "23.11.10", ""},
		{"24.05", 0x180500, nil, "24.05.0", ""},
		{"24.11", 0x180b05, nil, "24.11.5", ""},
		{"25.05", 0x190503, nil, "25.05.3", ""},
		{"25.11", 0x190b00, nil, "25.11.0", ""},
		{"26.05", 0x1a0501, nil, "26.05.1", ""},
		{"any micro version", 0x1605ff, nil, "22.05.255", ""},

		{"the author's number", 1, nil, "20.11.0", "plugin_version 1"},
		{"the author's zero", 0, nil, "20.11.0", "SpankAllowReleases=20.11"},
		{"20.11 as a release", 0x140b05, nil, "20.11.0", "20.11 or older"},
		{"the author's date", 20210801, nil, "20.11.0", "plugin_version 20210801"},
		{"a number with no month in it", 2000000, nil, "20.11.0", "plugin_version 2000000"},
		{"the highest number", 0xffffffff, nil, "20.11.0", "plugin_version 4294967295"},
		{"a release that never was", 0x160100, nil, "22.01.0", "release 22.01.0"},
		{"newer", 0x1b0201, nil, "27.02.1", "SpankAllowReleases=27.02 in stepd.conf"},
		{"much newer", 0x630b00, nil, "99.11.0", "release 99.11.0"},

		{"old, allowed", 1, []string{"20.11"}, "20.11.0", ""},
		{"old, anything goes", 7, []string{"any"}, "20.11.0", ""},
		{"old, told as a release", 0x140201, []string{"20.02"}, "20.11.0", ""},
		{"old, another allowed", 1, []string{"27.02"}, "20.11.0", "plugin_version 1"},
		{"newer, allowed", 0x1b0201, []string{"20.11", "27.02"}, "27.02.1", ""},
		{"newer, anything goes", 0x1b0201, []string{"any"}, "27.02.1", ""},
		{"newer, only old ones allowed", 0x1b0201, []string{"20.11"}, "27.02.1", "release 27.02.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := CheckRelease(c.version, true, c.allow)
			if got.String() != c.want {
				t.Errorf("release %q, want %q", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
	if _, err := CheckRelease(0x160508, false, []string{"any"}); err == nil || !strings.Contains(err.Error(), "no plugin_version") {
		t.Errorf("a plugin without a version: %v", err)
	}
}
