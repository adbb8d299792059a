package quickjson_test

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/internal/quickjson"
	"stepd/step"
)

// documents are what the programs send to each other.
func documents() []any {
	return []any{new(stepapi.Msg), new(step.Spec), new(step.Record), new(step.Request), new(api.RunRequest), new(api.RunReply),
		new(api.LaunchRequest), new(api.ConfigReply), new(api.DryRunReply), new(api.Line), new(api.Refusal), new(api.AllocReply)}
}

// fill gives each field a value, or leaves it out.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if r.IntN(4) == 0 || depth > 6 {
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).UTC()))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"a":[1,"b"]}`))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem(), depth)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(r, v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		n := r.IntN(3)
		if r.IntN(40) == 0 && depth < 3 {
			n = 50 // a long list
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(r, key, depth)
		fill(r, value, depth)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString([]string{"", "x", `a "quoted" \ <b>&`, "line\nand\ttab", "Grüße\u2028", "\xff\x00"}[r.IntN(6)])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(r.Float64() * 1e9)
	default:
		if v.CanInt() {
			v.SetInt(r.Int64() >> (r.IntN(64)) * int64(1-2*r.IntN(2)))
		} else if v.CanUint() {
			v.SetUint(r.Uint64() >> r.IntN(64))
		}
	}
}

// TestAsEncodingJSON: each document is the same as encoding/json's, and is read as encoding/json reads it.
func TestAsEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		for _, doc := range documents() {
			fill(r, reflect.ValueOf(doc).Elem(), 0)
			want, wantErr := json.Marshal(doc)
			got, err := quickjson.Marshal(doc)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%T: %v, encoding/json: %v", doc, err, wantErr)
			}
			if err != nil {
				continue
			}
			if string(got) != string(want) {
				t.Fatalf("%T:\n%s\nencoding/json:\n%s", doc, got, want)
			}
			theirs, ours := reflect.New(reflect.TypeOf(doc).Elem()).Interface(), reflect.New(reflect.TypeOf(doc).Elem()).Interface()
			wantErr, err = json.Unmarshal(want, theirs), quickjson.Unmarshal(want, ours)
			if wantErr != nil || err != nil || !reflect.DeepEqual(ours, theirs) {
				t.Fatalf("%T: %v, encoding/json: %v\n%s\n%+v\n%+v", doc, err, wantErr, want, ours, theirs)
			}
		}
	}
}

func TestMarshalNothing(t *testing.T) {
	for _, v := range []any{nil, (*step.Spec)(nil), struct{}{}, []*step.Record{nil}, []int(nil)} {
		want, _ := json.Marshal(v)
		if got, err := quickjson.Marshal(v); err != nil || string(got) != string(want) {
			t.Errorf("%#v: %s, %v, want %s", v, got, err, want)
		}
	}
}

func TestUnmarshalKeepsOthers(t *testing.T) {
	rec := step.Record{Reason: "before", Tasks: []step.Task{{Rank: 7}}}
	if err := quickjson.Unmarshal([]byte(` {"state" : "FAILED", "unknown": [{"a":"}\""}, null] } `), &rec); err != nil {
		t.Fatal(err)
	}
	if rec.State != step.Failed || rec.Reason != "before" || len(rec.Tasks) != 1 {
		t.Errorf("%+v", rec)
	}
}

func TestUnmarshalErrors(t *testing.T) {
	for doc, want := range map[string]string{
		`{"state":`:                "unexpected end",
		`{"tasks":[{"rank":"x"}]}`: "tasks: rank: ",
		`{"tasks":{"rank":1}}`:     "tasks: ",
		`{"tasks":[` + strings.Repeat(`{"rank":1},`, 1000) + `{"rank":"x"}]}`: "rank",
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000):               "depth",
	} {
		if err := quickjson.Unmarshal([]byte(doc), new(step.Record)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", doc, err, want)
		}
	}
	if err := quickjson.Unmarshal([]byte("{}"), step.Record{}); err == nil {
		t.Error("a value that is no pointer was decoded into")
	}
}

// plain reports whether each name in a document is in lower case, and none comes twice in an object: in
// these alone encoding/json does otherwise.
func plain(dec *json.Decoder) bool {
	token, err := dec.Token()
	if err != nil {
		return err == io.EOF
	}
	seen := map[string]bool{}
	for open, _ := token.(json.Delim); (open == '{' || open == '[') && dec.More(); {
		if open == '{' {
			name, _ := dec.Token()
			key, _ := name.(string)
			if seen[key] || key != strings.ToLower(key) || strings.ContainsAny(key, "ſK") { // these fold to s and k
				return false
			}
			seen[key] = true
		}
		if !plain(dec) {
			return false
		}
	}
	if open, ok := token.(json.Delim); ok && (open == '{' || open == '[') {
		_, _ = dec.Token() // its end
	}
	return true
}

func FuzzUnmarshal(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 4 {
		doc := new(stepapi.Msg)
		fill(r, reflect.ValueOf(doc).Elem(), 0)
		if b, err := json.Marshal(doc); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte(`{"Seq":1e1}`)) // another case: a field to encoding/json, and no number for it
	f.Add([]byte(`{"type":"hello","seq":1e1,"ranks":[null,-0],"record":{"tasks":[null,{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		theirs, ours := new(stepapi.Msg), new(stepapi.Msg)
		wantErr, err := json.Unmarshal(data, theirs), quickjson.Unmarshal(data, ours)
		if json.Valid(data) && !plain(json.NewDecoder(strings.NewReader(string(data)))) {
			return
		}
		if (wantErr == nil) != (err == nil) {
			t.Fatalf("%v, encoding/json: %v\n%s", err, wantErr, data)
		}
		if err == nil && !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%+v\nencoding/json: %+v\n%s", ours, theirs, data)
		}
	})
}
