package spank

import (
	"slices"
	"strings"
	"testing"

	"stepd/internal/wire"
)

// missingReply is a REP_MISSING as recv returns it.
func missingReply(plugin, more uint32, symbol string) *reply {
	var w writer
	w.U32(plugin)
	w.U32(more)
	w.Str(symbol)
	return &reply{kind: repMissing, body: reader{Reader: wire.Reader{B: w.B}}}
}

func TestReadMissing(t *testing.T) {
	missing := make(map[uint32]*Loaded)
	for range missingMax {
		if err := readMissing(missingReply(1, 0, "f"), missing, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := readMissing(missingReply(1, 7, ""), missing, 2); err != nil || missing[1].MissingMore != 7 || len(missing[1].Missing) != missingMax {
		t.Errorf("%+v, %v", missing[1], err)
	}
	if err := readMissing(missingReply(1, 0, "f"), missing, 2); err == nil {
		t.Error("one symbol more than there can be was taken")
	}
	if err := readMissing(missingReply(2, 0, "f"), missing, 2); err == nil {
		t.Error("a plugin that is not in the stack was taken")
	}
	if err := readMissing(&reply{body: reader{Reader: wire.Reader{B: []byte{1, 2, 3}}}}, missing, 2); err == nil {
		t.Error("a record that is cut was taken")
	}
}

// pluginReply is a REP_PLUGIN of so many plugins, from first on.
func pluginReply(first, n uint32) *reply {
	var w writer
	for i := first; i < first+n; i++ {
		w.U32(i)
		w.U32(0x160508)
		w.U32(pluginLoaded | pluginHasVersion)
		w.U32(1 << i)
		w.Str("")
		w.Str("name")
		w.Str("spank")
	}
	return &reply{kind: repPlugin, body: reader{Reader: wire.Reader{B: w.B}}}
}

func TestReadPlugins(t *testing.T) {
	missing := map[uint32]*Loaded{1: {Missing: []string{"f"}, MissingMore: 2}}
	out, err := readPlugins(pluginReply(0, 2), nil, missing, 3)
	if err != nil {
		t.Fatal(err)
	}
	if out, err = readPlugins(pluginReply(2, 1), out, missing, 3); err != nil {
		t.Fatal(err)
	}
	if len(out) != 3 || out[0].Missing != nil || !slices.Equal(out[1].Missing, []string{"f"}) || out[1].MissingMore != 2 {
		t.Errorf("got %+v", out)
	}
	for i, l := range out {
		if l.Index != i || l.Name != "name" || !slices.Equal(l.Hooks, []string{hookNames[i]}) || !l.HasVersion || l.HasOptions || l.Error != "" {
			t.Errorf("plugin %d: %+v", i, l)
		}
	}
	if _, err := readPlugins(pluginReply(2, 2), nil, missing, 3); err == nil {
		t.Error("a plugin that is not in the stack was taken")
	}
	cut := pluginReply(0, 2)
	cut.body.B = cut.body.B[:len(cut.body.B)-1]
	if _, err := readPlugins(cut, nil, missing, 3); err == nil {
		t.Error("a record that is cut was taken")
	}
}

func TestLacks(t *testing.T) {
	for _, c := range []struct {
		name string
		l    Loaded
		want []string
	}{
		{"nothing", Loaded{}, []string{}},
		{"one line for each reason", Loaded{Missing: []string{"slurm_update_node", "slurm_stepd_connect", "slurm_requeue", "slurm_init_update_node_msg"}}, []string{
			"nothing here provides slurm_update_node(), slurm_requeue(), slurm_init_update_node_msg(), which it may call: a step's host has no slurmctld to ask",
			"nothing here provides slurm_stepd_connect(), which it may call: there is no slurmstepd to connect to: the step is stepd's",
		}},
		{"accounting", Loaded{Missing: []string{"slurmdb_jobs_get"}}, []string{"nothing here provides slurmdb_jobs_get(), which it may call: a step's host has no slurmdbd to ask"}},
		{"Slurm's own", Loaded{Missing: []string{"slurm_xstrdup"}}, []string{"nothing here provides slurm_xstrdup(), which it may call: it is none of the functions that Slurm gives to plugins"}},
		{"anybody's", Loaded{Missing: []string{"lua_newstate"}}, []string{"nothing here provides lua_newstate(), which it may call: neither the plugin's own libraries nor the C library has it"}},
		{"another release", Loaded{Version: 0x1a0500, Missing: []string{"slurm_load_job"}}, []string{
			"nothing here provides slurm_load_job(), which it may call: it differs by release and is known for 21.08 to 25.11; this plugin is of 26.05, and gets -1",
		}},
		{"more", Loaded{MissingMore: 3}, []string{"nothing here provides 3 further functions, which it may call"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.l.Lacks(); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestFault(t *testing.T) {
	h := &Host{loaded: []Loaded{{Missing: []string{"slurm_requeue", "other"}}}}
	for _, c := range []struct {
		plugin, fault int
		want          string
	}{
		{0, 0, ""},
		{0, faultFatal, "called slurm_fatal()"},
		{0, faultMissing, "called slurm_requeue(), which nothing here provides: a step's host has no slurmctld to ask"},
		{0, faultMissing + 1, "called other(), which nothing here provides: neither"},
		// What a plugin may have written there.
		{0, faultMissing + 2, ""},
		{0, 1 << 31, ""},
		{-1, faultMissing, ""},
		{1, faultMissing, ""},
	} {
		got := h.fault(c.plugin, c.fault)
		if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("plugin %d, fault %d: %q, want %q", c.plugin, c.fault, got, c.want)
		}
	}
}
