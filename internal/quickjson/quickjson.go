// Package quickjson is encoding/json for programs that live ten milliseconds. Before its first
// struct encoding/json makes an encoder of each type that the struct can reach, in order to decode
// as well: for a step's Spec or Record that costs a process 0.9 ms. This package looks at those
// structs alone that a document holds, and leaves all that is neither a struct, a list, a string,
// a whole number nor a bool to encoding/json. The documents are the same, byte for byte.
//
// It serves the types of the project's own protocols. Two things differ from encoding/json: a name
// matches a field only in its exact case, and the tag's option "string" is unknown.
package quickjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// field is a field of a struct, or of one that is embedded in it.
type field struct {
	name      string
	key       []byte // `"name":`
	index     []int
	omitEmpty bool
	omitZero  bool
}

// object is what a struct is as JSON.
type object struct {
	fields []field        // in the order of encoding/json
	byName map[string]int // index of fields
}

var objects sync.Map // reflect.Type to *object

func objectOf(t reflect.Type) *object {
	if o, ok := objects.Load(t); ok {
		return o.(*object)
	}
	o := &object{byName: make(map[string]int, t.NumField())}
	o.add(t, nil)
	objects.Store(t, o)
	return o
}

// add adds the fields of t, which is embedded at index. Of two fields of one name the one that is
// less deep is the struct's (the language's rule for embedded fields).
func (o *object) add(t reflect.Type, index []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := sf.Tag.Get("json")
		at := append(index[:len(index):len(index)], i)
		if sf.Anonymous && tag == "" {
			o.add(sf.Type, at)
			continue
		}
		if !sf.IsExported() || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if name == "" {
			name = sf.Name
		}
		f := field{name: name, key: append(appendString(nil, name), ':'), index: at,
			omitEmpty: strings.Contains(options, "omitempty"), omitZero: strings.Contains(options, "omitzero")}
		if k, twice := o.byName[name]; twice {
			if len(at) < len(o.fields[k].index) {
				o.fields[k] = f
			}
			continue
		}
		o.byName[name] = len(o.fields)
		o.fields = append(o.fields, f)
	}
}

var (
	marshaler       = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// speaksForItself reports whether a type, or a pointer to it, has its own JSON.
func speaksForItself(t reflect.Type, how ...reflect.Type) bool {
	if t.Name() == "" && t.Kind() != reflect.Struct {
		return false // it has no methods of its own
	}
	p := reflect.PointerTo(t)
	for _, i := range how {
		if p.Implements(i) {
			return true
		}
	}
	return false
}

// Marshal returns v as JSON, as json.Marshal does.
func Marshal(v any) ([]byte, error) {
	return appendValue(make([]byte, 0, 1024), reflect.ValueOf(v))
}

// Unmarshal parses a document into v, a pointer, as json.Unmarshal does. The fields that the
// document does not name keep their values.
func Unmarshal(data []byte, v any) error {
	if !json.Valid(data) {
		if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
			return err
		}
	}
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("cannot decode JSON into a %T: it is no pointer to anything", v)
	}
	at := space(data, 0)
	return decode(data[at:end(data, at)], to.Elem())
}
