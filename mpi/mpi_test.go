package mpi

import (
	"strings"
	"testing"

	"stepd/mpi/pmi2"
	"stepd/step"
)

func TestNewMakesEveryListedPlugin(t *testing.T) {
	for _, name := range append(Names(), "") {
		plugin, err := New(name, &step.Site{}, Deps{})
		if err != nil {
			t.Errorf("New(%q): %v", name, err)
		}
		if wantNil := name == None || name == ""; (plugin == nil) != wantNil {
			t.Errorf("New(%q) = %v, want nil: %v", name, plugin, wantNil)
		}
	}
	plugin, _ := New(PMI2, &step.Site{}, Deps{})
	if _, ok := plugin.(*pmi2.Plugin); !ok {
		t.Errorf("New(%q) is a %T", PMI2, plugin)
	}
}

func TestNewNamesTheKnownPlugins(t *testing.T) {
	for _, name := range []string{"pmix2", "PMI2", "none ", "../pmi2", "list"} {
		_, err := New(name, &step.Site{}, Deps{})
		if err == nil {
			t.Errorf("New(%q) gave no error", name)
			continue
		}
		for _, known := range Names() {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("New(%q): %q does not name %q", name, err, known)
			}
		}
	}
}
