package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// TestGres has the resources of one node under each release: gpu[0-3], nic[0-1] and fpga[0-1]
// with files, tool:4 without, shard:8 and mps:400, and a step that is bound to the nearest.
func TestGres(t *testing.T) {
	for v := V2205; v <= V2605; v += 1 << 8 {
		s, err := ReadStream(bytes.NewReader(captured(t, v.String()+"/gres.stream")[v.String()+"/gres.stream"]))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range s.NodeGres {
			text := fmt.Sprintf("%s:%d %#x", g.Name, g.Count, g.EnvFlags)
			for _, d := range g.Devices {
				at := strings.LastIndexByte(d.Path, '/')
				text += fmt.Sprintf(" %d/%d:%d:%d:%d%s", d.Index, d.Number, d.Kind, d.Major, d.Minor, d.Path[at:])
			}
			got = append(got, text)
		}
		gpus := " 0/0:2:240:0/gpu0 1/1:2:240:1/gpu1 2/2:2:240:2/gpu2 3/3:2:240:3/gpu3"
		want := []string{
			"gpu:4 0x20" + gpus, "nic:2 0x0 0/0:2:240:4/nic0 1/1:2:240:5/nic1", "fpga:2 0x0 0/0:2:240:6/fpga0 1/1:2:240:7/fpga1",
			"tool:4 0x0", "shard:8 0x20" + gpus, "mps:400 0x0" + gpus,
		}
		if v == V2205 { // it knows files of its plugins alone
			want[2] = "fpga:2 0x0"
		}
		if text := strings.Join(got, "\n"); text != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s", v, text)
		}
		near := ""
		for _, l := range s.GresLines {
			if l.Name == "gpu" {
				near += fmt.Sprint(l.Type, l.Count, l.Links, len(l.CPUs), ";")
			}
		}
		if near != "a1001-1,4,0,08;a1001-1,4,0,08;v10018;v10018;" {
			t.Errorf("%s: gres.conf is %s", v, near)
		}
		if g := s.Gres(s.Launch.Cred.StepGres[0].ID); g == nil || g.Name != "gpu" || s.Gres(1) != nil {
			t.Errorf("%s: the step's resource is %+v", v, g)
		}
	}
}

// TestBadGres: a count takes no memory for what has not come, and a device has a place.
func TestBadGres(t *testing.T) {
	u32 := func(list ...uint32) (b []byte) {
		for _, n := range list {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		return b
	}
	gpu := bytes.Join([][]byte{u32(1, 2, 4), []byte("gpu\x00"), u32(0, 0, 0, 7, 0, 4)}, nil)
	device := func(index uint32) []byte { return u32(index, 0, DeviceChar, 1, 3, 0, 0) }
	for what, b := range map[string][]byte{
		"4 billion resources": u32(0xffffffff),
		"4 billion devices":   append(gpu[:len(gpu):len(gpu)], u32(0xffffffff)...),
		"device 4 billion":    append(append(gpu[:len(gpu):len(gpu)], u32(1)...), append(device(0xfffffffe), u32(0)...)...),
		"device 1 million":    append(append(gpu[:len(gpu):len(gpu)], u32(1)...), append(device(devicesMax), u32(0)...)...),
		"bytes behind":        append(append(gpu[:len(gpu):len(gpu)], u32(1)...), append(device(1), u32(0, 0)...)...),
	} {
		if g, err := nodeGres(V2205, b); err == nil || !strings.HasPrefix(err.Error(), "gres.") {
			t.Errorf("%s: %+v, %v", what, g, err)
		}
	}
	if g, err := nodeGres(V2205, append(append(gpu, u32(1)...), append(device(1), u32(0)...)...)); err != nil || g[0].Devices[0].Index != 1 {
		t.Errorf("a good one: %+v, %v", g, err)
	}
	if l, err := gresLines(V2205, u32(0, 1, 0xffffffff)); err == nil || l != nil {
		t.Errorf("4 billion lines: %v, %v", l, err)
	}
}
