package eventlog

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// fill gives every field of a struct a value of its own; texts are text.
func fill(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 11, 22, 1, 2, 3, 40_500_000+n, time.FixedZone("", 3600*n))))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), text, n+i)
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(-n))
	case reflect.Uint32:
		v.SetUint(uint64(1<<32 - 1 - n))
	}
}

// Each field alone, and all of them, become what encoding/json makes of them: a new
// field of Event must be added here, too.
func TestEventLine(t *testing.T) {
	kind := reflect.TypeFor[Event]()
	for _, text := range []string{"plain", `a "b" \ <c>&`, "é\u2028\x7f", "\xff\x00\n", ""} {
		for i := -1; i < kind.NumField(); i++ {
			var e Event
			v := reflect.ValueOf(&e).Elem()
			if i < 0 {
				fill(v, text, 1)
				e.MPI, e.Usage = nil, nil // or all of it is encoded by the other way
			} else {
				fill(v.Field(i), text, i)
			}
			want, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(e.AppendTo([]byte("before\n"))); got != "before\n"+string(want)+"\n" {
				t.Errorf("%q, want %q behind the other line", got, want)
			}
		}
	}
	if b := (&Event{Time: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}).AppendTo(nil); len(b) > 0 {
		t.Errorf("the year 10000 became %q", b)
	}
}

// FuzzEventLine: any text is the same as encoding/json's.
func FuzzEventLine(f *testing.F) {
	f.Add("text", "phase", int64(5))
	f.Add("\xe2\x80", "<\">", int64(-1))
	f.Fuzz(func(t *testing.T, text, phase string, n int64) {
		e := Event{Time: time.Unix(n%(1<<37), n%1e9).UTC(), Event: EventStageEnd, Phase: phase, DurUS: &n, Text: text}
		want, err := json.Marshal(e)
		if err != nil {
			want = nil
		} else {
			want = append(want, '\n')
		}
		if got := e.AppendTo(nil); string(got) != string(want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func BenchmarkEventLine(b *testing.B) {
	us := int64(1234)
	e := Event{Time: time.Now(), Event: EventStageEnd, Phase: "task_pre_launch_priv", DurUS: &us}
	var buf []byte
	for b.Loop() {
		buf = e.AppendTo(buf[:0])
	}
}
