package acct

import (
	"strings"
	"testing"

	"stepd/step"
)

// Texts of kernels 6.1 and 6.18.
const (
	cpuStat = "usage_usec 102700\nuser_usec 69836\nsystem_usec 32864\nnice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
	procIO  = "rchar: 6976\nwchar: 12\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"
	ioStat  = "254:0 rbytes=1048576 wbytes=2097152 rios=2 wios=3 dbytes=0 dios=0\n8:0 rbytes=24576 wbytes=0 rios=4 wios=0 dbytes=0 dios=0\n7:0 \n"
	blkio   = "8:0 Read 4096\n8:0 Write 512\n8:0 Sync 4608\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 4608\n8:16 Read 1\nTotal 4609\n"
	psi     = "some avg10=0.12 avg60=1.00 avg300=99.99 total=7041\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=6910\n"
	stat    = "26866 (a) R (b) S 26861 26866 26866 0 -1 4194560 6460 65263 1 40 1 4 41 19 20 0 1 0 524775 5259264 993 18446744073709551615 94662252912640 94662253702045 140731457427088 0 0 0 65536 4 1132560123 1 0 0 17 1 0 0 0 0 0 94662253935344 94662253983588 94662624919552 140731457428319 140731457428334 140731457428334 140731457429482 0\n"
	statm   = "1284 993 434 193 0 180 0\n"
	rollup  = "5635b745e000-7ffeb57b8000 ---p 00000000 00:00 0                          [rollup]\nRss:                1736 kB\nPss:                 281 kB\nPss_Dirty:           112 kB\nSwapPss:               0 kB\n"
)

func known(t *testing.T, what string, got *int64, want int64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is not known, want %d", what, want)
	} else if *got != want {
		t.Errorf("%s is %d, want %d", what, *got, want)
	}
}

func TestParse(t *testing.T) {
	c, err := parseCPUStat([]byte(cpuStat))
	if err != nil {
		t.Fatal(err)
	}
	known(t, "total", c.total, 102700)
	known(t, "user", c.user, 69836)
	known(t, "system", c.system, 32864)

	b, err := parseProcIO([]byte(procIO))
	if err != nil {
		t.Fatal(err)
	}
	known(t, "rchar", b.readChars, 6976)
	known(t, "wchar", b.writtenChars, 12)
	known(t, "read_bytes", b.readDisk, 4096)
	known(t, "write_bytes", b.writtenDisk, 8192)

	if r, w, err := parseIOStat([]byte(ioStat)); r != 1048576+24576 || w != 2097152 || err != nil {
		t.Errorf("io.stat: %d, %d, %v", r, w, err)
	}
	if r, w, err := parseIOStat(nil); r != 0 || w != 0 || err != nil {
		t.Errorf("empty io.stat: %d, %d, %v", r, w, err)
	}
	if r, w, err := parseBlkio([]byte(blkio)); r != 4097 || w != 512 || err != nil {
		t.Errorf("blkio: %d, %d, %v", r, w, err)
	}
	s, err := parseProcStat([]byte(stat))
	want := procStat{
		parent: 26861, minor: 6460 + 65263, major: 1 + 40, userTicks: 1, systemTicks: 4, childUserTicks: 41, childTicks: 19,
		start: 524775, virtual: 5259264, resident: 993,
	}
	if err != nil || s != want {
		t.Errorf("stat: %+v, %v\nwant %+v", s, err, want)
	}
	if n, err := parseShared([]byte(statm)); n != 434 || err != nil {
		t.Errorf("statm: %d, %v", n, err)
	}
	pss, err := parsePss([]byte(rollup))
	if err != nil {
		t.Fatal(err)
	}
	known(t, "Pss", pss, 281)
}

func TestParsePressure(t *testing.T) {
	got, err := parsePressure([]byte(psi))
	if err != nil || got == nil || got.Full == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if want := (step.Stall{TotalUS: 7041, Avg10: 0.12, Avg60: 1, Avg300: 99.99}); got.Some != want {
		t.Errorf("some: %+v, want %+v", got.Some, want)
	}
	if got.Full.TotalUS != 6910 {
		t.Errorf("full: %+v", got.Full)
	}
	// Before Linux 5.13 cpu.pressure had one line.
	if got, err := parsePressure([]byte(strings.SplitAfter(psi, "\n")[0])); err != nil || got == nil || got.Full != nil {
		t.Errorf("without full: %+v, %v", got, err)
	}
	if got, err := parsePressure(nil); got != nil || err != nil {
		t.Errorf("empty: %+v, %v; want nothing", got, err)
	}
}

// What is missing is unknown, and what is no number is an error: never 0.
func TestParseWrong(t *testing.T) {
	if c, err := parseCPUStat([]byte("nice_usec 4\n")); err != nil || c.total != nil {
		t.Errorf("cpu.stat without usage_usec: %v, %v", c.total, err)
	}
	if pss, err := parsePss([]byte("Rss: 4 kB\n")); pss != nil || err != nil {
		t.Errorf("smaps_rollup without Pss: %v, %v", pss, err)
	}
	for _, tt := range []struct {
		name, text string
		parse      func([]byte) error
	}{
		{"cpu.stat", "usage_usec\n", func(b []byte) error { _, err := parseCPUStat(b); return err }},
		{"cpu.stat", "usage_usec -4\n", func(b []byte) error { _, err := parseCPUStat(b); return err }},
		{"cpu.stat", "usage_usec 18446744073709551615\n", func(b []byte) error { _, err := parseCPUStat(b); return err }},
		{"io", "rchar: many\n", func(b []byte) error { _, err := parseProcIO(b); return err }},
		{"io.stat", "8:0 rbytes=1.5\n", func(b []byte) error { _, _, err := parseIOStat(b); return err }},
		{"blkio", "8:0 Read x\n", func(b []byte) error { _, _, err := parseBlkio(b); return err }},
		{"pressure", "some avg10=101 total=4\n", func(b []byte) error { _, err := parsePressure(b); return err }},
		{"pressure", "some avg10=NaN total=4\n", func(b []byte) error { _, err := parsePressure(b); return err }},
		{"stat", "1 (sh S 1\n", func(b []byte) error { _, err := parseProcStat(b); return err }},
		{"stat", "1 (sh) S 1 2 3\n", func(b []byte) error { _, err := parseProcStat(b); return err }},
		{"statm", "4 5\n", func(b []byte) error { _, err := parseShared(b); return err }},
		{"smaps_rollup", "Pss: 4 MB\n", func(b []byte) error { _, err := parsePss(b); return err }},
		{"memory.peak", "max\n", func(b []byte) error { _, err := one(b); return err }},
	} {
		if tt.parse([]byte(tt.text)) == nil {
			t.Errorf("%s %q: no error", tt.name, tt.text)
		}
	}
}

func positive(t *testing.T, numbers ...*int64) {
	t.Helper()
	for _, n := range numbers {
		if n != nil && *n < 0 {
			t.Fatalf("a count of %d", *n)
		}
	}
}

func FuzzParseCPUStat(f *testing.F) {
	f.Add([]byte(cpuStat))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _ := parseCPUStat(data)
		positive(t, c.total, c.user, c.system)
	})
}

func FuzzParseProcIO(f *testing.F) {
	f.Add([]byte(procIO))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, _ := parseProcIO(data)
		positive(t, b.readChars, b.writtenChars, b.readDisk, b.writtenDisk)
	})
}

func FuzzParseIOStat(f *testing.F) {
	f.Add([]byte(ioStat))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, w, _ := parseIOStat(data)
		positive(t, &r, &w)
	})
}

func FuzzParseBlkio(f *testing.F) {
	f.Add([]byte(blkio))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, w, _ := parseBlkio(data)
		positive(t, &r, &w)
	})
}

func FuzzParsePressure(f *testing.F) {
	f.Add([]byte(psi))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parsePressure(data)
		if err != nil || s == nil {
			return
		}
		positive(t, &s.Some.TotalUS)
		if !(s.Some.Avg10 >= 0 && s.Some.Avg10 <= 100) {
			t.Fatalf("%v %%", s.Some.Avg10)
		}
	})
}

func FuzzParseProcStat(f *testing.F) {
	f.Add([]byte(stat))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseProcStat(data)
		if err != nil {
			return
		}
		rss := s.resident * 65536
		us := (s.userTicks + s.childUserTicks) * ticksToUS
		positive(t, &rss, &us, &s.virtual, &s.minor, &s.major, &s.start)
	})
}

func FuzzParseMemory(f *testing.F) {
	f.Add([]byte(statm))
	f.Add([]byte(rollup))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, _ := parseShared(data)
		pss, _ := parsePss(data)
		positive(t, &n, pss)
	})
}
