// Package quickjson is encoding/json for programs that live ten milliseconds. Before its first
// struct encoding/json makes an encoder of each type that the struct can reach, in order to decode
// as well: for a step's Spec or Record that costs a process 0.9 ms. This package looks at those
// structs alone that a document holds, and leaves all that is neither a struct, a list, a string,
// a whole number nor a bool to encoding/json. The documents are the same, byte for byte.
//
// It serves the types of the project's own protocols. Two things differ from encoding/json: a name
// matches a field only in its exact case (but in long lists), and the tag's option "string" is unknown.
package quickjson

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// In longer lists the encoder of encoding/json pays for itself: it takes a fourth of the time for
// each element.
const (
	manyStructs = 32
	manyBytes   = 8 << 10
)

// field is a field of a struct, or of one that is embedded in it.
type field struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  bool
}

// object is the fields of a struct, in the order of encoding/json.
type object []field

var objects sync.Map // reflect.Type to object

func objectOf(t reflect.Type) object {
	if o, ok := objects.Load(t); ok {
		return o.(object)
	}
	o := make(object, 0, t.NumField()).add(t, nil)
	objects.Store(t, o)
	return o
}

// add adds the fields of t, which is embedded at index.
func (o object) add(t reflect.Type, index []int) object {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := sf.Index
		if len(index) > 0 {
			at = slices.Concat(index, at)
		}
		tag := sf.Tag.Get("json")
		if sf.Anonymous && tag == "" {
			o = o.add(sf.Type, at)
			continue
		}
		if !sf.IsExported() || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		name = cmp.Or(name, sf.Name)
		// Of two fields of one name the one that is less deep is the struct's.
		if k := slices.IndexFunc(o, func(f field) bool { return f.name == name }); k >= 0 && len(o[k].index) <= len(at) {
			continue
		} else if k >= 0 {
			o = slices.Delete(o, k, k+1)
		}
		o = append(o, field{name, at, strings.Contains(options, "omitempty"), strings.Contains(options, "omitzero")})
	}
	return o
}

// find returns the field of a name, which is mostly the one at next or not far behind it: documents
// have the order of the struct.
func (o object) find(name []byte, next int) int {
	is := func(f field) bool { return f.name == string(name) }
	if k := slices.IndexFunc(o[next:], is); k >= 0 {
		return next + k
	}
	return slices.IndexFunc(o[:next], is)
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
