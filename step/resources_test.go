package step

import (
	"testing"
)

func TestFormatMB(t *testing.T) {
	for mb, want := range map[uint64]string{30: "30 MB", 1500: "1500 MB", 2048: "2 GB", 24105: "23.5 GB", 1 << 20: "1 TB"} {
		if got := FormatMB(mb); got != want {
			t.Errorf("FormatMB(%d) = %q, want %q", mb, got, want)
		}
	}
}

func TestGresAllocString(t *testing.T) {
	got := FormatAllocs([]GresAlloc{{Name: "gpu", Type: "a100", Count: 3, Index: []int{0, 1, 3}}, {Name: "scratch", Count: 10}})
	if want := "gpu:a100:3(IDX:0-1,3),scratch:10"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
