package stepapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The frames of a version are made once, when it is new, and never changed: a noded
// meets the stepds of the version before it (docs/recovery.md). Only a field that no
// program reads any more, its feature being deleted, is taken out of them.
var newFrames = flag.String("new-frames", "", "write the frames of today's version into this file")

// frameTypes are all types of records.
var frameTypes = []Type{
	TypeHello, TypeAttach, TypeAttachDone, TypeSignal, TypeCancel, TypeSuspend, TypeResume, TypeStat, TypeWatch,
	TypeAck, TypeLauncherLost, TypeAnswer, TypeReply, TypeState, TypeMessage, TypeTaskExit, TypeAsk, TypeResult,
}

// fullFrame is a record with something in every field.
func fullFrame(typ Type) *Msg {
	m := new(Msg)
	n := 0
	fill(reflect.ValueOf(m).Elem(), &n, 0)
	m.Type, m.Version = typ, Version
	return m
}

// fill puts something into every field, however deep.
func fill(v reflect.Value, n *int, depth int) {
	*n++
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1700000000+int64(*n), 0).UTC()))
		return
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprint(*n))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if depth > 8 { // a step's parent has none
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n, depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), n, depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n, depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n, depth+1)
		fill(value, n, depth+1)
		v.SetMapIndex(key, value)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n, depth+1)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 250))
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n % 60000))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n % 120))
	}
}

// TestGoldenFrames: what an older stepd or noded sends is read whole: no field has
// been renamed, dropped, or come to mean another kind of value.
func TestGoldenFrames(t *testing.T) {
	if *newFrames != "" {
		if err := os.WriteFile(*newFrames, today(t), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("testdata/frames/v*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no frames: %v", err)
	}
	seen := map[string]bool{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			m, _, err := decode(line, nil, RecordMax)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			seen[string(m.Type)] = true
			for _, lost := range missing(string(m.Type), tree(t, line), tree(t, encoded(t, m))) {
				t.Errorf("%s: %s", path, lost)
			}
		}
	}
	for _, typ := range frameTypes {
		if !seen[string(typ)] {
			t.Errorf("no frame %q", typ)
		}
	}
}

// today are the frames of today's version: one of each type, the first with something
// in every field.
func today(t *testing.T) []byte {
	lines := append(encoded(t, fullFrame(TypeHello)), '\n')
	for _, typ := range frameTypes[1:] {
		lines = append(append(lines, encoded(t, &Msg{Type: typ, Version: Version, Seq: 7})...), '\n')
	}
	return lines
}

func encoded(t *testing.T, m *Msg) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tree(t *testing.T, b []byte) (v any) {
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// missing lists what existed and is gone, or is something else.
func missing(at string, was, is any) (lost []string) {
	switch w := was.(type) {
	case map[string]any:
		i, _ := is.(map[string]any)
		for key, v := range w {
			if _, ok := i[key]; !ok {
				lost = append(lost, at+"."+key+" is gone")
				continue
			}
			lost = append(lost, missing(at+"."+key, v, i[key])...)
		}
	case []any:
		i, _ := is.([]any)
		if len(i) != len(w) {
			return []string{fmt.Sprintf("%s has %d elements, had %d", at, len(i), len(w))}
		}
		for k, v := range w {
			lost = append(lost, missing(fmt.Sprintf("%s[%d]", at, k), v, i[k])...)
		}
	default:
		if !reflect.DeepEqual(was, is) {
			lost = append(lost, fmt.Sprintf("%s is %v, was %v", at, is, was))
		}
	}
	return lost
}

// TestFrameTypes: a new type of record has a frame.
func TestFrameTypes(t *testing.T) {
	src, err := os.ReadFile("message.go")
	if err != nil {
		t.Fatal(err)
	}
	block, _, _ := bytes.Cut(src, []byte("// Role says on whose"))
	if declared := bytes.Count(block, []byte(" Type = \"")) + strings.Count(string(block), " Type  = \""); declared > len(frameTypes) {
		t.Errorf("message.go declares %d types, frameTypes has %d", declared, len(frameTypes))
	}
}

// TestFutureVersion: a peer of another version is told so, by number.
func TestFutureVersion(t *testing.T) {
	s, _, _ := serve(t)
	ours, theirs := pair(t)
	s.Add(ours, "", true)
	if err := theirs.Send(&Msg{Type: TypeHello, Version: Version + 1, Role: RoleNoded}); err != nil {
		t.Fatal(err)
	}
	for {
		m, _, err := theirs.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == TypeReply {
			if want := fmt.Sprintf("cannot speak version %d of the step protocol: this stepd speaks %d", Version+1, Version); m.Error != want {
				t.Errorf("got %q, want %q", m.Error, want)
			}
			return
		}
	}
}
