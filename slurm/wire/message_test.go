package wire

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// messages are one of each kind.
func messages() []Message {
	step := StepID{SLUID: 0x1122334455667788, Job: 7, Step: 1, HetComp: NoVal}
	used := NewUsage([]TRES{{ID: TRESCPU}, {ID: TRESMemory}, {ID: TRESDisk}})
	used.User, used.System, used.CPUFreq, used.Energy = 3*time.Second+2*time.Microsecond, 4500*time.Millisecond, 2400000, 9
	used.Of(TRESMemory).In = Figures{0x100, 1, 2, 0x80, 3, 4, 0x180}
	used.Of(TRESDisk).Out = Figures{5, 6, 7, 8, 9, 10, 11}
	return []Message{
		&LaunchResponse{Step: step, RC: 4020, Node: "n1", PIDs: []uint32{101, 102}, Ranks: []uint32{4, 5}},
		&TaskExit{Step: step, Status: 0x0700, Ranks: []uint32{4, 5}},
		&NetForward{Step: step, Port: 6010, Target: "localhost"},
		&NetForward{Step: step, Target: "/tmp/.X11-unix/X0"},
		&StepComplete{Step: step, First: 1, Last: 2, RC: 9},
		&StepComplete{Step: step, First: 1, Last: 2, RC: 9, Usage: used},
		&CompleteBatchScript{Step: step, RC: 0x0100, Fault: 0, UID: 1000, Node: "n1"},
		&UpdateNode{Node: "n1", Reason: "Kill task failed"},
		&CancelStep{Step: step, Signal: 9},
		&ForwardData{Address: "/spool/sock", Data: []byte("data")},
	}
}

// TestMessages compares what is sent with testdata/messages.txt, one line for each form of a
// message: slurmctlds and sruns of all releases have taken these.
func TestMessages(t *testing.T) {
	var got strings.Builder
	for _, m := range messages() {
		first, form := V2205, Pack(V2205, m)
		for v := V2205; v <= V2605+1<<8; v += 1 << 8 {
			if v.Known() && bytes.Equal(Pack(v, m), form) {
				continue
			}
			fmt.Fprintf(&got, "%s %s-%s %x\n", m.Type(), first, v-1<<8, form)
			first, form = v, Pack(v, m)
		}
	}
	file := "testdata/messages.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUsageOf(t *testing.T) {
	u := NewUsage([]TRES{{ID: TRESCPU}, {ID: 1001}})
	u.Of(1001).In.Total = 5
	if u.TRES[1].In.Total != 5 || u.Of(TRESEnergy) != nil || u.TRES[0].Out.Min != Infinite64 {
		t.Errorf("%+v", u)
	}
	if b := PackUsage(nil); !bytes.Equal(b, []byte{0}) {
		t.Errorf("nothing is %x", b)
	}
	b := PackUsage(u)
	if n, want := len(b), 1+2*12+4+8+4+2*4+4+2*28+14*(4+2*8); n != want {
		t.Errorf("%d bytes, want %d", n, want)
	}
	r := newReader(V2205, "usage", b[1+2*12+4+8+4+2*4:])
	if list := r.tres("list"); len(list) != 2 || list[1].ID != 1001 {
		t.Errorf("the list is %+v", list)
	}
}

func TestFrame(t *testing.T) {
	for v := V2205; v <= V2605; v += 1 << 8 {
		for _, m := range messages() {
			body := Pack(v, m)
			frame := Frame(v, m.Type(), "MUNGE:x:", body)
			h, token, got, err := ParseFrame(frame[4:])
			if err != nil || h.Release != v || h.Type != m.Type() || token != "MUNGE:x:" || !bytes.Equal(got, body) {
				t.Fatalf("%s, %s: %+v, %q, %v", v, m.Type(), h, token, err)
			}
			for n := range frame[4:] {
				if _, _, _, err := ParseFrame(frame[4 : 4+n]); err == nil || !strings.HasPrefix(err.Error(), "message.") {
					t.Fatalf("%s: of %d of %d bytes: %v", m.Type(), n, len(frame)-4, err)
				}
			}
		}
	}
}

// answer is slurmctld's answer to a message, with 0.
func answer() []byte { return Frame(V2605, TypeReturnCode, "MUNGE:x:", []byte{0, 0, 0, 0})[4:] }

func TestFrameRefused(t *testing.T) {
	for at, want := range map[int]string{
		11: "message.forward: ", // counts of the header
		13: "message.returned: ",
		19: "message.auth: ",
	} {
		b := answer()
		b[at]++
		if _, _, _, err := ParseFrame(b); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("at %d: %v, want %s", at, err, want)
		}
	}
}

// TestUnsigned holds that a message without a token is taken from 23.02 on only.
func TestUnsigned(t *testing.T) {
	signed := answer()
	b := append(bytes.Clone(signed[:16]), 0, 0, 0, 0)
	b[3] |= unsigned
	h, token, body, err := ParseFrame(b)
	if err != nil || !h.Unsigned() || token != "" || len(body) != 4 {
		t.Errorf("%+v, %q, %x, %v", h, token, body, err)
	}
	b[0] = byte(V2205 >> 8)
	if _, _, _, err := ParseFrame(b); err == nil {
		t.Error("22.05 has no such messages")
	}
}

func TestReturnCode(t *testing.T) {
	if rc, err := ReturnCode([]byte{0, 0, 7, 0xe5}); rc != 2021 || err != nil {
		t.Error(rc, err)
	}
	for _, b := range [][]byte{nil, {0, 0, 0}, {0, 0, 0, 0, 0}} {
		if _, err := ReturnCode(b); err == nil {
			t.Errorf("%x is no error", b)
		}
	}
	if _, err := ReturnCode(nil); !errors.Is(err, errShort) {
		t.Error(err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(answer())
	for _, m := range messages() {
		f.Add(Frame(V2411, m.Type(), "MUNGE:x:", Pack(V2411, m))[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, token, body, err := ParseFrame(b)
		if err == nil && !h.Unsigned() && len(token)+len(body) > len(b) {
			t.Fatal(h, token, body)
		}
		if err == nil {
			ReturnCode(body)
		}
	})
}

func TestUnpackUsage(t *testing.T) {
	u := NewUsage([]TRES{{ID: TRESCPU, Type: "cpu"}, {ID: 1001, Type: "gres", Name: "gpu"}})
	u.User, u.System, u.CPUFreq, u.Energy = 90*time.Second+time.Microsecond, time.Minute, 3, 4
	u.TRES[1].Out = Figures{1, 2, 3, 4, 5, 6, 7}
	w := &writer{v: V2205}
	u.pack(w)
	for _, b := range [][]byte{w.b, PackUsage(u)} {
		got, err := UnpackUsage(b)
		if err != nil || got.User != u.User || got.System != u.System || got.CPUFreq != 3 || got.Energy != 4 ||
			len(got.TRES) != 2 || got.TRES[1].ID != 1001 || got.TRES[1].Out != u.TRES[1].Out || got.TRES[0].In != unmeasured {
			t.Errorf("%+v, %v", got, err)
		}
		for n := range b {
			if got, err := UnpackUsage(b[:n]); err == nil {
				t.Fatalf("%d bytes: %+v", n, got)
			}
		}
		if got, err := UnpackUsage(append(slices.Clone(b), 0)); err == nil {
			t.Errorf("one more byte: %+v", got)
		}
	}
	if got, err := UnpackUsage([]byte{0}); got != nil || err != nil {
		t.Errorf("nothing measured: %+v, %v", got, err)
	}
}

func FuzzUsage(f *testing.F) {
	f.Add(PackUsage(NewUsage([]TRES{{ID: TRESCPU, Type: "cpu"}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := UnpackUsage(b)
		if err != nil || u == nil {
			return
		}
		again, err := UnpackUsage(PackUsage(u))
		if err != nil || len(again.TRES) != len(u.TRES) {
			t.Fatal(u, again, err)
		}
		again.Add(u)
	})
}
