package step

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// spec-v1.json is a Spec with a value in every field, as the release wrote it in which Site's
// fields were the Spec's own. It is never changed: a stepd reads the Spec of an older noded.
func TestSpecOfLastRelease(t *testing.T) {
	text, err := os.ReadFile("testdata/spec-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var s Spec
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Site.Cluster != s.Cluster || s.Cluster == "" || s.Spank.Plugstack == "" || s.MPIConf.PMI2.KeyBytes1 == 0 || s.Scripts.Prolog == "" {
		t.Errorf("the site's settings are missing: %+v", s.Site)
	}
	again, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	for text, doc := range map[string]*map[string]any{string(text): &want, string(again): &got} {
		if err := json.Unmarshal([]byte(text), doc); err != nil {
			t.Fatal(err)
		}
	}
	for field := range got {
		if _, ok := want[field]; !ok {
			delete(got, field) // a later release's, which the older one does not know
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("another document after decoding (-read +written):\n%s", d)
	}
}
