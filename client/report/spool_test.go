package report

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/api"
	"stepd/client"
	"stepd/eventlog/archive"
	"stepd/step"
)

// TestSources: noded is asked where it is named or serves, else slurmd's spool is read, if
// slurmstepd has steps there.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	used, empty := filepath.Join(dir, "used"), filepath.Join(dir, "empty")
	conf := func(spool string) string {
		path := filepath.Join(dir, filepath.Base(spool)+".conf")
		if err := os.WriteFile(path, []byte("ClusterName=c\nSlurmctldHost=h\nSlurmdSpoolDir="+spool+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.MkdirAll(filepath.Join(used, "stepd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, spool, socket, env, conf string
		want                           archive.Archive // "" is noded
		err                            string
	}{
		{name: "--spool", spool: "/s", conf: conf(used), want: "/s/stepd"},
		{name: "--spool of a slurmd without steps", spool: empty, want: archive.In(empty)},
		{name: "slurm.conf's spool", conf: conf(used), want: archive.In(used)},
		{name: "no step of slurmstepd", conf: conf(empty)},
		{name: "no slurm.conf", conf: filepath.Join(dir, "none")},
		{name: "--socket", socket: "/no/noded.sock", conf: conf(used)},
		{name: "NODED_SOCKET", env: "/no/noded.sock", conf: conf(used)},
		{name: "both", socket: "/no/noded.sock", spool: "/s", err: "--spool and --socket exclude each other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat(client.DefaultSocket); err == nil && c.env == "" && c.socket == "" {
				t.Skip("a noded serves here")
			}
			t.Setenv("NODED_SOCKET", c.env)
			t.Setenv("SLURM_CONF", c.conf)
			s := sources{d: &client.Dialer{Socket: c.socket}, spool: c.spool}
			got, err := s.choose()
			if c.err != "" || err != nil {
				if err == nil || !strings.Contains(err.Error(), c.err) || c.err == "" {
					t.Fatalf("%v, want %q", err, c.err)
				}
				return
			}
			files, ok := got.(spooled)
			if ok != (c.want != "") || files.archive != c.want {
				t.Errorf("%#v, want %q", got, c.want)
			}
		})
	}
}

func TestSpooled(t *testing.T) {
	a := archive.In(t.TempDir())
	id := step.ID{Job: 12, Step: 0}
	f, err := a.Create(id, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"event":"stage_end","phase":"init","errno":2}` + "\n"); err != nil {
		t.Fatal(err)
	}
	s := spooled{a}
	if err := explainRequests(&sources{d: &client.Dialer{}, spool: string(a)}, false); err == nil || !strings.Contains(err.Error(), "squeue") {
		t.Errorf("what waits under Slurm: %v", err)
	}
	if _, err := s.records(api.Ref(id)); err == nil || !strings.Contains(err.Error(), "KeepSteps") {
		t.Errorf("a step without a record: %v", err)
	}
	if err := a.Note(&step.Record{ID: id, State: step.Failed}, uint32(os.Getuid())); err != nil {
		t.Fatal(err)
	}
	recs, err := s.records(api.Ref(id))
	if err != nil || len(recs) != 1 || recs[0].State != step.Failed {
		t.Errorf("%+v, %v", recs, err)
	}
	events, err := eventsOf(s, id)
	if b, _ := json.Marshal(events); err != nil || !strings.Contains(string(b), `"errno":2`) {
		t.Errorf("%s, %v", b, err)
	}
	if events, err := eventsOf(s, step.ID{Job: 13}); err != nil || events != nil {
		t.Errorf("a step that is gone: %v, %v", events, err)
	}
}

// TestPluginsWithoutNoded: slurmd's files stand in for noded, and for a file alone the defaults.
func TestPluginsWithoutNoded(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "slurm.conf")
	for name, text := range map[string]string{"slurm.conf": "PluginDir=/plugins\nPlugStackConfig=/stack\n", "stepd.conf": "HookTimeout=7\nSpankAllowReleases=20.11\nRequireSafePlugins=yes\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	why := errors.New("no noded")
	for _, c := range []struct {
		name, conf, socket string
		file               bool
		stack, plugins     string
		err                error
	}{
		{name: "slurmd's", conf: conf, stack: "/stack", plugins: "/plugins"},
		{name: "a file beside slurmd's", conf: conf, file: true, stack: "/stack", plugins: "/plugins"},
		{name: "no slurmd", conf: filepath.Join(dir, "none"), err: why},
		{name: "a file and no slurmd", conf: filepath.Join(dir, "none"), file: true},
		{name: "a noded by name", conf: conf, socket: "/no/noded.sock", err: why},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("NODED_SOCKET", "")
			t.Setenv("SLURM_CONF", c.conf)
			got, err := withoutNode(&client.Dialer{Socket: c.socket}, why, c.file)
			if c.err != nil || err != nil {
				if !errors.Is(err, why) || c.err == nil {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			if got.Plugstack != c.stack || c.plugins != "" && !slices.Equal(got.PluginDirs, []string{c.plugins}) {
				t.Errorf("stack %q, plugins in %q", got.Plugstack, got.PluginDirs)
			}
			if ours := got.HookTimeoutS == 7 && got.RequireSafe && slices.Equal(got.AllowReleases, []string{"20.11"}); ours != (c.stack != "") {
				t.Errorf("of stepd.conf: %+v", got)
			}
		})
	}
}
