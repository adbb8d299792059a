package srunopt

import (
	"strings"
	"testing"

	"stepd/step"
)

func TestParseMemory(t *testing.T) {
	for _, c := range []struct {
		in   string
		want uint64
	}{
		{"0", 0}, {"64", 64}, {"64M", 64}, {"64m", 64}, {"2G", 2048}, {"1t", 1 << 20}, {"1024K", 1}, {"1025k", 2}, {"1K", 1}, {"0K", 0},
	} {
		if got, err := ParseMemory(c.in); err != nil || got != c.want {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"", "G", "-1", "+1", "1.5G", "1GB", "1 G", "0x10", "99999999999999999999", "18446744073709551615T", "2000000T", "1_0"} {
		if got, err := ParseMemory(in); err == nil {
			t.Errorf("ParseMemory(%q) = %d, want an error", in, got)
		} else if strings.Contains(err.Error(), "strconv") {
			t.Errorf("ParseMemory(%q): %v", in, err)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, s := range []string{"1G", "0", "12k", "1T", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseMemory(s); err == nil && v > MemoryMax {
			t.Errorf("ParseMemory(%q) = %d, over the limit", s, v)
		}
	})
}

func TestValidateLimits(t *testing.T) {
	mb := func(v uint64) *uint64 { return &v }
	for _, c := range []struct {
		name  string
		set   func(*step.Request)
		field string
	}{
		{"both", func(r *step.Request) { r.Mem, r.MemPerCPU = mb(1), mb(1) }, "mem_mb"},
		{"mem", func(r *step.Request) { r.Mem = mb(MemoryMax + 1) }, "mem_mb"},
		{"per cpu", func(r *step.Request) { r.MemPerCPU = mb(1 << 30) }, "mem_per_cpu_mb"},
		{"gres", func(r *step.Request) { r.Gres = []step.GresRequest{{Name: "a b", Count: 1}} }, "gres"},
	} {
		r := goodRequest()
		c.set(&r)
		err := Validate(&r)
		if fe, ok := err.(*step.FieldError); !ok || fe.Field != c.field {
			t.Errorf("%s: %v, want an error of field %q", c.name, err, c.field)
		}
	}
}

func TestFormatMB(t *testing.T) {
	for mb, want := range map[uint64]string{30: "30 MB", 1500: "1500 MB", 2048: "2 GB", 24105: "23.5 GB", 1 << 20: "1 TB"} {
		if got := FormatMB(mb); got != want {
			t.Errorf("FormatMB(%d) = %q, want %q", mb, got, want)
		}
	}
}
