package slurmconf

import (
	"slices"
	"strings"
	"testing"
)

func TestExpandHosts(t *testing.T) {
	for list, want := range map[string]string{
		"":                      "",
		"n1":                    "n1",
		"n[1-3,5],m":            "n1 n2 n3 n5 m",
		"n[08-11]":              "n08 n09 n10 n11",
		"n[008-10]":             "n008 n009 n010",
		"n[1-010]":              "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10",
		"a[1-2]b[3-4]":          "a1b3 a1b4 a2b3 a2b4",
		"a[1-2][1-2]":           "a11 a12 a21 a22",
		"n[1,1]":                "n1 n1",
		"n[2,1]":                "n2 n1",
		"n1,,n2":                "n1 n2",
		"x n2":                  "x n2",
		"n[0-1]-ib":             "n0-ib n1-ib",
		"[1-2]":                 "1 2",
		"n[999999999999999999]": "n999999999999999999",
	} {
		got, err := ExpandHosts(list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, %v, want %q", list, got, err, want)
		}
	}
}

func TestExpandHostsRefuses(t *testing.T) {
	for list, why := range map[string]string{
		"n[3-1]":                       `"3-1" is no range`,
		"n[1-":                         "not closed",
		"n[]":                          `"" is no range`,
		"n[a-b]":                       `"a-b" is no range`,
		"n[-1]":                        "no range",
		"n[1-3:2]":                     "no range",
		"n[1,]":                        "no range",
		"n[+1]":                        "no range",
		"n]1":                          "without an opening",
		"n[[1]]":                       "within a bracket",
		"n[1-100000]":                  "more than 65536",
		"n[1-65536],m":                 "more than 65536",
		"n[1-300][1-300]":              "more than 65536",
		"n[1-2][1-2][1-2][1-2][1-2][]": "more than 5 brackets",
		"n[9999999999999999999]":       "no range",
		strings.Repeat("x", 300):       "more than 237 bytes",
		strings.Repeat(",", 2<<20):     "2097152 bytes",
	} {
		got, err := ExpandHosts(list)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40q: got %d names, %v, want %q", list, len(got), err, why)
		}
	}
}

func TestCompressHosts(t *testing.T) {
	for names, want := range map[string]string{
		"":                    "",
		"n1":                  "n1",
		"n1 n2 n3 n5 m":       "n[1-3,5],m",
		"n08 n09 n10":         "n[08-10]",
		"n8 n9 n10":           "n[8-10]",
		"n1 n01 n2":           "n[1,01,2]",
		"b a a":               "b,a,a",
		"n3 n1 n2":            "n[3,1-2]",
		"a1b1 a1b2 a2b1 a2b2": "a1b[1-2],a2b[1-2]",
		"1 2 3":               "[1-3]",
		"n1-ib n2-ib":         "n1-ib,n2-ib",
		"n099 n100":           "n[099-100]",
		"n99 n0100":           "n[99,0100]",
		"n99999999999999999998 n99999999999999999999": "n99999999999999999998,n99999999999999999999",
	} {
		list := strings.Fields(names)
		got := CompressHosts(list)
		if got != want {
			t.Errorf("%q: got %q, want %q", names, got, want)
		}
		back, err := ExpandHosts(got)
		if err != nil || !slices.Equal(back, list) {
			t.Errorf("%q comes back as %q, %v", names, back, err)
		}
	}
}

func FuzzExpandHosts(f *testing.F) {
	for _, s := range []string{"n[1-3,5],m", "a[1-2]b[3-4]", "n[08-10] x", "n[1-", "n[3-1]", "[1-2][1-2][1-2]", "n1,n2,n3", "x[1]y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := ExpandHosts(list)
		if err != nil {
			return
		}
		if len(names) > hostsMax {
			t.Fatalf("%d names", len(names))
		}
		for _, n := range names {
			if n == "" || len(n) > hostNameMax {
				t.Fatalf("a name of %d bytes", len(n))
			}
		}
		short := CompressHosts(names)
		back, err := ExpandHosts(short)
		if len(short) <= hostListMax && (err != nil || !slices.Equal(back, names)) {
			t.Fatalf("%q: %d names became %q: %d names, %v", list, len(names), short, len(back), err)
		}
	})
}
