package wire

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// TestPMISpawnFrame holds the form that sruns of 22.05, 24.11 and 26.05 have taken.
func TestPMISpawnFrame(t *testing.T) {
	m := &PMISpawnRequest{
		Token: "TOKEN", Node: "n1", Preput: []PMIPair{{"k", ""}},
		Apps: []PMIApp{{Command: "c", Args: []string{"", "a"}, Tasks: 2, Info: []PMIPair{{"wdir", "/"}}}},
	}
	want := "" +
		"0000005a" + "0002" + "00000065" + "00000006544f4b454e00" + "00000000" + // length, command, token, number
		"000000036e3100" + "00000001" + "00000001" + // node, commands, keys
		"000000026b00" + "0000000100" + // a key with an empty value
		"000000026300" + "00000002" + "00000002" + "0000000100" + "000000026100" + // command, tasks, arguments
		"00000001" + "000000057764697200" + "000000022f00"
	if got := hex.EncodeToString(m.Frame()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPMINames(t *testing.T) {
	for _, c := range []struct {
		command PMICommand
		want    string
	}{
		{PMIPublish, "0000000e" + "0004" + "000000026e00" + "000000027000"},
		{PMIUnpublish, "00000008" + "0005" + "000000026e00"},
		{PMILookup, "00000008" + "0006" + "000000026e00"},
	} {
		if got := hex.EncodeToString(PMINameFrame(c.command, "n", "p")); got != c.want {
			t.Errorf("%d: got %s, want %s", c.command, got, c.want)
		}
	}
	if rc, err := PMINameResult([]byte{0, 0, 0, 7}); rc != 7 || err != nil {
		t.Errorf("result: %d, %v", rc, err)
	}
	if port, found, err := PMIPort([]byte("\x00\x00\x00\x05port\x00")); port != "port" || !found || err != nil {
		t.Errorf("port: %q, %v, %v", port, found, err)
	}
	if port, found, err := PMIPort(make([]byte, 4)); port != "" || found || err != nil {
		t.Errorf("no port: %q, %v, %v", port, found, err)
	}
}

func TestSpawnResult(t *testing.T) {
	b := []byte("\x00\x00\x00\x02\xff\xff\xff\xff\x12\x34\x00\x00\x00\x07" + "12.0-2\x00" + "\x00\x00\x00\x01\x00\x00\x00\x03")
	if m, err := ParseSpawnResult(b); err != nil || m != (SpawnResult{Seq: 2, RC: 0xffffffff, Job: "12.0-2"}) {
		t.Errorf("got %+v, %v", m, err)
	}
	for n := range b {
		if m, err := ParseSpawnResult(b[:n]); err == nil {
			t.Errorf("%d of %d bytes: got %+v", n, len(b), m)
		}
	}
}

// FuzzPMI: no answer of srun's is more than an error.
func FuzzPMI(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x00\x12\x34\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x05port\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ParseSpawnResult(b); err == nil && !bytes.Contains(b, []byte(m.Job)) {
			t.Errorf("the job %q is not in %q", m.Job, b)
		}
		if port, _, err := PMIPort(b); err == nil && !bytes.Contains(b, []byte(port)) {
			t.Errorf("the port %q is not in %q", port, b)
		}
		_, _ = PMINameResult(b)
	})
}
