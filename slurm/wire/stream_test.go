package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// captured are the streams of real slurmds, by their names. A tee before the real step daemon
// has written them down; the signatures of munge are blanked.
func captured(t testing.TB, pattern string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in testdata: %v", pattern, err)
	}
	streams := make(map[string][]byte)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := filepath.Rel("testdata", f)
		streams[name] = b
	}
	return streams
}

// hangup is a pipe whose writer waits for an answer behind the last byte. A reader that
// asks for more would wait for ever.
type hangup struct {
	left  []byte
	ended error
	asked bool
}

func (h *hangup) Read(b []byte) (int, error) {
	if len(b) > 0 && len(h.left) == 0 {
		h.asked = true
		return 0, h.ended
	}
	n := copy(b, h.left)
	h.left = h.left[n:]
	return n, nil
}

func TestStreams(t *testing.T) {
	for name, b := range captured(t, "*/*.stream") {
		t.Run(name, func(t *testing.T) {
			in := &hangup{left: b, ended: errors.New("slurmd waits for an answer")}
			s, err := ReadStream(in)
			if err != nil || in.asked || len(in.left) > 0 {
				t.Fatalf("err %v, %d bytes are left, asked for more: %v", err, len(in.left), in.asked)
			}
			if v := s.Conf.Release.String(); v != filepath.Dir(name) {
				t.Errorf("it is of Slurm %s", v)
			}
			file := strings.TrimSuffix(name, ".stream") + ".json"
			if _, err := os.Stat(filepath.Join("testdata", file)); err == nil {
				golden(t, file, s)
			}
		})
	}
}

// golden compares a value with its file.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = regexp.MustCompile(`\[\s+([^][{}]*?)\s+\]`).ReplaceAllFunc(got, func(list []byte) []byte {
		return bytes.Join(bytes.Fields(list), []byte(" "))
	})
	got = append(regexp.MustCompile(`(QUFB){4,}`).ReplaceAll(got, []byte("blank")), '\n')
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, d)
	}
}

// TestEveryRelease holds that the captures have what differs between steps, of each release.
// The files first.stream are of 23.02.0 and 23.11.4, the others of the last minor versions, but
// for the three of Debian: 22.05.8, 24.11.5 and 26.05.5.
func TestEveryRelease(t *testing.T) {
	for v := V2205; v <= V2605; v += 1 << 8 {
		for _, file := range []string{"extern.stream", "tasks.stream", "tasks.json", "batch.stream", "prolog.conf"} {
			if _, err := os.Stat(filepath.Join("testdata", v.String(), file)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestStreamCut(t *testing.T) {
	for name, b := range captured(t, "*/*.stream") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := range b {
				in := &hangup{left: b[:n], ended: io.EOF}
				s, err := ReadStream(in)
				if s != nil || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix(err.Error(), "cannot read slurmd's ") {
					t.Fatalf("of %d of %d bytes: %v, %v", n, len(b), s, err)
				}
			}
		})
	}
}

// pieces are the packed records of a stream.
func pieces(t testing.TB, stream []byte) (conf, launch []byte, c *Conf) {
	t.Helper()
	p := &pipe{in: bytes.NewReader(stream)}
	conf = p.blob("conf")
	c, err := decodeConf(conf)
	if err != nil {
		t.Fatal(err)
	}
	p.blob("slurm.conf")
	if c.Release < V2302 {
		p.blob("acct_gather.conf")
	}
	p.read("type, tree", 6*4)
	new(Stream).neighbours(p, c.Release)
	launch = p.blob("launch")
	if p.err != nil {
		t.Fatal(p.err)
	}
	return conf, launch, c
}

// decodeBody reads a launch of either kind.
func decodeBody(name string, c *Conf, body []byte) error {
	var err error
	if strings.Contains(name, "batch") {
		_, err = DecodeBatch(c, body)
	} else {
		_, err = DecodeLaunch(c, body)
	}
	return err
}

func TestRecordCut(t *testing.T) {
	for name, b := range captured(t, "*/*.stream") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf, launch, c := pieces(t, b)
			for n := range conf {
				if _, err := decodeConf(conf[:n]); err == nil || !strings.HasPrefix(err.Error(), "slurmd_conf.") {
					t.Fatalf("of %d of %d bytes of the configuration: %v", n, len(conf), err)
				}
			}
			for n := range launch {
				err := decodeBody(name, c, launch[:n])
				if err == nil || !strings.HasPrefix(err.Error(), "launch_tasks.") && !strings.HasPrefix(err.Error(), "batch_job_launch.") {
					t.Fatalf("of %d of %d bytes of the launch: %v", n, len(launch), err)
				}
			}
			if err := decodeBody(name, c, append(launch, 0)); err == nil {
				t.Error("a byte too much is no error")
			}
		})
	}
}

// TestCounts puts 4 billion at each place of a record: memory is taken for the bytes
// that have come, whatever they claim.
func TestCounts(t *testing.T) {
	for _, name := range []string{"22.05/tasks.stream", "22.05/batch.stream", "26.05/tasks.stream", "26.05/batch.stream"} {
		conf, launch, c := pieces(t, captured(t, name)[name])
		of := func(b []byte, decode func([]byte)) {
			var before, after runtime.MemStats
			for i := range b[:len(b)-3] {
				bad := bytes.Clone(b)
				binary.BigEndian.PutUint32(bad[i:], 0xffffffff)
				runtime.ReadMemStats(&before)
				decode(bad)
				runtime.ReadMemStats(&after)
				if got := after.TotalAlloc - before.TotalAlloc; got > 1<<19 {
					t.Errorf("%s: %d bytes of memory, with 0xffffffff at %d of %d", name, got, i, len(b))
				}
			}
		}
		of(conf, func(b []byte) { decodeConf(b) })
		of(launch, func(b []byte) { decodeBody(name, c, b) })
	}
}

func TestUnknownRelease(t *testing.T) {
	for word, want := range map[uint16]string{
		0x2500: "protocol 0x2500", 0x2e00: "protocol 0x2e00", 0x2601: "protocol 0x2601", 0: "protocol 0x0000",
	} {
		b := binary.NativeEndian.AppendUint32(nil, 2)
		_, err := ReadStream(bytes.NewReader(binary.BigEndian.AppendUint16(b, word)))
		var unknown *ReleaseError
		if !errors.As(err, &unknown) || !strings.Contains(err.Error(), want) || Errno(err) != 1005 {
			t.Errorf("%#x: %v, errno %d", word, err, Errno(err))
		}
	}
}

func TestErrno(t *testing.T) {
	s := captured(t, "22.05/tasks.stream")["22.05/tasks.stream"]
	_, err := ReadStream(bytes.NewReader(s[:100]))
	if Errno(err) != 22 || Errno(nil) != 0 {
		t.Error(Errno(err), Errno(nil))
	}
	if manager := fmt.Errorf("launch_tasks.job_record: %w", errStepManager); Errno(manager) != 2036 {
		t.Error(Errno(manager))
	}
}

// TestCPUFrequencies holds that the table of a machine that has frequencies is passed over.
func TestCPUFrequencies(t *testing.T) {
	for _, name := range []string{"22.05/tasks.stream", "26.05/tasks.stream"} {
		s := captured(t, name)[name]
		_, launch, _ := pieces(t, s)
		at := bytes.Index(s, launch) - 4 - 2 - 2 // before the launch: its length, srun's release
		table := append(binary.NativeEndian.AppendUint16(nil, 3), make([]byte, 3*332)...)
		if _, err := ReadStream(bytes.NewReader(append(append(bytes.Clone(s[:at]), table...), s[at+2:]...))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadConf(t *testing.T) {
	for name, b := range captured(t, "*/*.conf") {
		in := &hangup{left: b, ended: errors.New("slurmd waits for an answer")}
		c, err := ReadConf(in)
		if err != nil || in.asked || len(in.left) > 0 || c.Release.String() != filepath.Dir(name) || c.Spool == "" {
			t.Errorf("%s: %+v, %v, %d bytes are left, asked for more: %v", name, c, err, len(in.left), in.asked)
		}
	}
}

// TestMinorVersions takes out of a configuration what earlier minor versions do not send.
func TestMinorVersions(t *testing.T) {
	str := func(s string) string {
		return string(binary.BigEndian.AppendUint32(nil, uint32(len(s)+1))) + s + "\x00"
	}
	cluster := str("real")
	type cut struct{ before, out, behind string }
	timeout := cut{"", "\x00\x78", str("/opt/hpc/2302/slurmd") + str("switch/none")}
	route, topology := cut{"", str("route/default"), str("select/cons_tres")}, cut{str("/tmp"), "\x00\x00\x00\x00" + str("topology/none"), ""}
	for _, c := range []struct {
		release string
		cuts    []cut
		cluster string
	}{
		{"23.02", []cut{timeout}, "real"},
		{"23.02", []cut{timeout, route, topology}, "real"},
		{"23.02", []cut{timeout, route, topology, {"", cluster, ""}}, ""},
		{"23.11", []cut{{"", cluster, ""}}, ""},
		{"24.05", []cut{{str("/opt/hpc/2405/slurmd"), "\x00\x00\x00\x00", "\x00\x00\x00\x00"}}, "real"},
		{"25.11", []cut{{"", "\x00\x00\x07\xd0", str("gpu,lic")}}, "real"},
	} {
		conf, _, _ := pieces(t, captured(t, c.release+"/tasks.stream")[c.release+"/tasks.stream"])
		whole, err := decodeConf(conf)
		if err != nil {
			t.Fatal(err)
		}
		text := string(conf)
		for _, cut := range c.cuts {
			from := cut.before + cut.out + cut.behind
			if strings.Count(text, from) != 1 {
				t.Fatalf("%s: %q is %d times in the configuration", c.release, from, strings.Count(text, from))
			}
			text = strings.Replace(text, from, cut.before+cut.behind, 1)
		}
		got, err := decodeConf([]byte(text))
		if err != nil {
			t.Errorf("%s without %d keys: %v", c.release, len(c.cuts), err)
			continue
		}
		whole.Settings.Cluster = c.cluster
		if len(c.cuts) >= 3 {
			whole.Settings.TopologyPlugin = ""
		}
		if d := cmp.Diff(whole, got); d != "" {
			t.Errorf("%s without %d keys (-want +got):\n%s", c.release, len(c.cuts), d)
		}
	}
}

func FuzzReadStream(f *testing.F) {
	for _, b := range captured(f, "*/*.stream") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ReadStream(bytes.NewReader(b))
		if (s == nil) != (err != nil) {
			t.Fatal(s, err)
		}
	})
}

func FuzzConf(f *testing.F) {
	for _, b := range captured(f, "*/tasks.stream") {
		conf, _, _ := pieces(f, b)
		f.Add(conf)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { decodeConf(b) })
}

func fuzzBody(f *testing.F, pattern string, decode func(*Conf, []byte) error) {
	for _, b := range captured(f, pattern) {
		_, launch, c := pieces(f, b)
		f.Add(uint16(c.Release), launch)
	}
	f.Fuzz(func(_ *testing.T, v uint16, b []byte) {
		if c := (&Conf{Release: Release(v), Settings: new(Settings)}); c.Release.Known() {
			decode(c, b)
		}
	})
}

func FuzzLaunch(f *testing.F) {
	fuzzBody(f, "*/[!b]*.stream", func(c *Conf, b []byte) error { _, err := DecodeLaunch(c, b); return err })
}

func FuzzBatch(f *testing.F) {
	fuzzBody(f, "*/batch.stream", func(c *Conf, b []byte) error { _, err := DecodeBatch(c, b); return err })
}

func FuzzCred(f *testing.F) {
	fuzzBody(f, "*/tasks.stream", func(c *Conf, b []byte) error {
		// The seeds are whole launches: a credential begins behind its release.
		if i := bytes.Index(b, binary.BigEndian.AppendUint16(nil, uint16(c.Release))); i >= 0 {
			b = b[i+2:]
		}
		r := newReader(c.Release, "cred", b)
		r.cred()
		return r.err
	})
}

// TestParent: slurmd sends its parent's name without the NUL of other strings (24.11, 26.05).
func TestParent(t *testing.T) {
	for sent, want := range map[string]string{"": "", "n1": "n1", "n1\x00": "n1"} {
		b := binary.NativeEndian.AppendUint32(nil, uint32(len(sent)))
		s := new(Stream)
		s.neighbours(&pipe{in: bytes.NewReader(append(b, sent...))}, V2411)
		if s.Parent != want {
			t.Errorf("%q: %q", sent, s.Parent)
		}
	}
}
