package srunopt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/step"
)

func TestParseGres(t *testing.T) {
	long := strings.Repeat("n", gresNameMax)
	for text, want := range map[string][]step.GresRequest{
		"":                       nil,
		"none":                   {},
		"NONE":                   {},
		"gpu":                    {{Name: "gpu", Count: 1}},
		"gpu:2":                  {{Name: "gpu", Count: 2}},
		"gpu:0":                  {{Name: "gpu", Count: 0}},
		"gpu:a100":               {{Name: "gpu", Type: "a100", Count: 1}},
		"gpu:a100:1":             {{Name: "gpu", Type: "a100", Count: 1}},
		"gpu:1g.5gb+me:3":        {{Name: "gpu", Type: "1g.5gb+me", Count: 3}},
		"gpu:1g.5gb":             {{Name: "gpu", Type: "1g.5gb", Count: 1}},
		"gpu:2,scratch:10G":      {{Name: "gpu", Count: 2}, {Name: "scratch", Count: 10 << 30}},
		"gpu:a:1,gpu:b:2":        {{Name: "gpu", Type: "a", Count: 1}, {Name: "gpu", Type: "b", Count: 2}},
		"x:1k,y:1M,z:1t,w:1P":    {{Name: "x", Count: 1 << 10}, {Name: "y", Count: 1 << 20}, {Name: "z", Count: 1 << 40}, {Name: "w", Count: 1 << 50}},
		"x:16383P":               {{Name: "x", Count: 16383 << 50}},
		"x:020":                  {{Name: "x", Count: 20}},
		"x:18446744073709551615": {{Name: "x", Count: 1<<64 - 1}},
		"gpu:4090:1":             {{Name: "gpu", Type: "4090", Count: 1}},
		long + ":" + long:        {{Name: long, Type: long, Count: 1}},
	} {
		got, err := ParseGres(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestParseGresMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"gpu:":                        `cannot parse gres "gpu:": a type or a count of "gpu" is missing`,
		"gpu::2":                      `cannot parse gres "gpu::2": a type or a count of "gpu" is missing`,
		":2":                          `cannot parse gres ":2": a name is empty`,
		"gpu,":                        `cannot parse gres "gpu,": a name is empty`,
		",":                           `cannot parse gres ",": a name is empty`,
		"gpu:-1":                      `cannot parse gres "gpu:-1": "-1" is no name: it may have letters, digits and -_.+ in it`,
		"gpu:a100:x":                  `cannot parse gres "gpu:a100:x": "x" is no count: write digits, and K, M, G, T or P behind them`,
		"gpu:a100:":                   `cannot parse gres "gpu:a100:": "" is no count: write digits, and K, M, G, T or P behind them`,
		"gpu:a100:1:2":                `cannot parse gres "gpu:a100:1:2": "gpu:a100:1:2" has more than NAME:TYPE:COUNT`,
		"gpu:99999999999999999999":    `cannot parse gres "gpu:99999999999999999999": the count "99999999999999999999" is out of range`,
		"x:16384P":                    `cannot parse gres "x:16384P": the count "16384P" is out of range`,
		"gpu:1,gpu:2":                 `cannot parse gres "gpu:1,gpu:2": "gpu" is given twice`,
		"gpu:a,gpu:a:2":               `cannot parse gres "gpu:a,gpu:a:2": "gpu:a" is given twice`,
		"gpu:a,gpu":                   `cannot parse gres "gpu:a,gpu": "gpu" is given with and without a type`,
		"gpu,none":                    `cannot parse gres "gpu,none": "none" stands alone`,
		"g pu":                        `cannot parse gres "g pu": "g pu" is no name: it may have letters, digits and -_.+ in it`,
		"gpu\n":                       `cannot parse gres "gpu\n": "gpu\n" is no name: it may have letters, digits and -_.+ in it`,
		"../x":                        `cannot parse gres "../x": "../x" is no name: it may have letters, digits and -_.+ in it`,
		strings.Repeat("n", 64):       `cannot parse gres "` + strings.Repeat("n", 64) + `": the name "` + strings.Repeat("n", 64) + `" has more than 63 bytes`,
		strings.Repeat("n,", gresMax): `cannot parse gres "` + strings.Repeat("n,", 40) + `": more than 64 entries`,
	} {
		if got, err := ParseGres(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, %v\nwant %s", text, got, err, want)
		}
	}
}

// TestCheckGres: what a client sends without ParseGres.
func TestCheckGres(t *testing.T) {
	if err := checkGres(make([]step.GresRequest, gresMax+1)); err == nil || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("got %v", err)
	}
	for _, bad := range []step.GresRequest{{}, {Name: "a/b"}, {Name: "gpu", Type: "a:b"}, {Name: "None"}} {
		if err := checkGres([]step.GresRequest{bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if err := checkGres(nil); err != nil {
		t.Error(err)
	}
}

func FuzzParseGres(f *testing.F) {
	for _, s := range []string{"", "none", "gpu:2,scratch:10G", "gpu:a100:1", "x:16384P", "a:1k:1k", ":::", "gpu,gpu"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseGres(s)
		if err != nil {
			return
		}
		if err := checkGres(list); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		again, err := ParseGres(FormatGres(list))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(list, again); diff != "" {
			t.Fatalf("%q: %s", s, diff)
		}
	})
}

func TestGresAllocString(t *testing.T) {
	got := FormatAllocs([]step.GresAlloc{{Name: "gpu", Type: "a100", Count: 3, Index: []int{0, 1, 3}}, {Name: "scratch", Count: 10}})
	if want := "gpu:a100:3(IDX:0-1,3),scratch:10"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
