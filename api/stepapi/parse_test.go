package stepapi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"stepd/step"
)

// TestParseFile: what is sent of a file is read as JSON's parser reads it, whatever
// else is in the record and however it is written.
func TestParseFile(t *testing.T) {
	whole := bytes.Repeat([]byte{0, 1, 255, '"', '\\'}, step.SentChunk/5)
	for name, b := range map[string][]byte{
		"a piece":           encoded(t, &Msg{Type: TypeFile, File: 3, Data: whole, LZ4: true}),
		"the first file's":  encoded(t, &Msg{Type: TypeFile, Data: []byte("x")}),
		"every field":       encoded(t, fullFrame(TypeFile)),
		"no data":           encoded(t, &Msg{Type: TypeFile, Version: Version, Seq: 7}),
		"empty data":        []byte(`{"type":"file","file":1,"data":"","lz4":true}`),
		"data in the text":  encoded(t, &Msg{Type: TypeFile, Text: `,"data":"`, Data: []byte("y")}),
		"blanks":            []byte(`{"type":"file", "data": "eHl6"}`),
		"escaped":           []byte(`{"type":"file","file":2,"data":"eH\u006c6"}`),
		"data comes twice":  []byte(`{"type":"file","data":"eHl6","data":"eA=="}`),
		"in another field":  []byte(`{"type":"file","record":{"x":1,"data":"eHl6"}}`),
		"of another record": []byte(`{"type":"message","data":"eHl6"}`),
	} {
		want := new(Msg)
		if err := json.Unmarshal(b, want); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %.200v, %v", name, got, err)
		}
	}
	for name, text := range map[string]string{
		"no base64":      `{"type":"file","data":"eHl!"}`,
		"half":           `{"type":"file","file":1,"data":"eHl6`,
		"half of a rest": `{"type":"file","data":"eHl6","file":`,
		"more behind":    `{"type":"file","data":"eHl6"}}`,
		"in a string":    `{"type":"file","text":"b,"data":"eHl6c"}`,
		"of two lines":   "{\"type\":\"file\",\"data\":\"eH\nl6\"}",
	} {
		if m, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

// FuzzParse: what JSON's parser refuses is refused, and what is sent comes as it was.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"type":"file","file":1,"data":"eHl6","lz4":true}`), []byte("data"))
	f.Add([]byte(`{"type":"file","text":"\",\"data\":\"","data":"eA=="}`), []byte{})
	f.Fuzz(func(t *testing.T, b, data []byte) {
		was := bytes.Clone(b)
		m, err := Parse(b)
		if jsonErr := json.Unmarshal(b, new(Msg)); (err == nil) != (jsonErr == nil) {
			t.Fatalf("got %+v, %v; JSON's parser says %v", m, err, jsonErr)
		}
		if !bytes.Equal(b, was) {
			t.Fatal("what was parsed is changed")
		}
		sent := &Msg{Type: TypeFile, File: len(b), Text: string(bytes.ToValidUTF8(b, nil)), Data: data}
		text, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(text); err != nil || !bytes.Equal(got.Data, data) || got.Text != sent.Text || got.File != len(b) {
			t.Fatalf("got %+v, %v of %s", got, err, text)
		}
	})
}

func BenchmarkParseFile(b *testing.B) {
	text, err := json.Marshal(&Msg{Type: TypeFile, File: 1, Data: bytes.Repeat([]byte{1, 2, 3, 4}, step.SentChunk/4)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(step.SentChunk)
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
