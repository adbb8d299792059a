package nearest

import "testing"

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"a", ""}: 1, {"", "ab"}: 2, {"label", "label"}: 0, {"lable", "label"}: 1, {"labl", "label"}: 1,
		{"labels", "label"}: 1, {"kitten", "sitting"}: 3, {"ab", "ba"}: 1,
	} {
		if got := Distance(pair[0], pair[1]); got != want {
			t.Errorf("Distance(%q) = %d, want %d", pair, got, want)
		}
	}
}
