package stepapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// fileStart and dataStart are what json.Marshal makes of a TypeFile: its first field, and
// what Data begins with.
var (
	fileStart = []byte(`{"type":"file",`)
	dataStart = []byte(`,"data":"`)
)

// Parse reads one record. Of b nothing is kept.
func Parse(b []byte) (*Msg, error) {
	m := new(Msg)
	// Nearly all of the bytes that a step is sent are these: JSON's parser would look at
	// each of them three times.
	if bytes.HasPrefix(b, fileStart) && parseFile(b, m) {
		return m, nil
	}
	*m = Msg{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("cannot parse record: %v", err)
	}
	return m, nil
}

// parseFile reads a record with its Data cut out, and Data by itself: there is no
// escape in base64, so that the next quotation mark ends it. false is that it is not
// as json.Marshal would have made it.
func parseFile(b []byte, m *Msg) bool {
	start := bytes.Index(b, dataStart)
	if start < 0 {
		return false
	}
	before, text := b[:start:start], b[start+len(dataStart):]
	size := bytes.IndexByte(text, '"')
	// It must not be in a string, nor in a field of a field.
	if size < 0 || !json.Valid(append(before, '}')) {
		return false
	}
	rest := append(before, text[size+1:]...)
	text = text[:size]
	// The decoder passes over ends of lines, which JSON has not in strings.
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 {
		return false
	}
	if json.Unmarshal(rest, m) != nil || m.Data != nil {
		return false
	}
	m.Data = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(m.Data, text)
	m.Data = m.Data[:n]
	return err == nil
}
