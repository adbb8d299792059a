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
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
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
func Marshal(v any) ([]byte, error) { return appendValue(make([]byte, 0, 1024), reflect.ValueOf(v)) }

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

func appendValue(b []byte, v reflect.Value) ([]byte, error) {
	if !v.IsValid() {
		return append(b, "null"...), nil
	}
	t := v.Type()
	switch t.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		return appendValue(b, v.Elem())
	case reflect.Struct, reflect.Slice, reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if !speaksForItself(t, marshaler, textMarshaler) {
			return appendPlain(b, v)
		}
	}
	return appendOther(b, v)
}

// appendPlain is for the kinds that this package knows.
func appendPlain(b []byte, v reflect.Value) ([]byte, error) {
	switch {
	case v.Kind() == reflect.Struct:
		return appendStruct(b, v)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8: // bytes are base64
		return appendSlice(b, v)
	case v.Kind() == reflect.String:
		return appendString(b, v.String()), nil
	case v.Kind() == reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case v.CanInt():
		return strconv.AppendInt(b, v.Int(), 10), nil
	case v.CanUint():
		return strconv.AppendUint(b, v.Uint(), 10), nil
	}
	return appendOther(b, v)
}

// appendOther leaves a value to encoding/json, which asks an addressable one's pointer for its methods.
func appendOther(b []byte, v reflect.Value) ([]byte, error) {
	if v.CanAddr() {
		v = v.Addr()
	}
	doc, err := json.Marshal(v.Interface())
	return append(b, doc...), err
}

func appendStruct(b []byte, v reflect.Value) (_ []byte, err error) {
	b = append(b, '{')
	first := true
	o := objectOf(v.Type())
	for i := range o {
		f := &o[i]
		value := v.FieldByIndex(f.index)
		if f.omitEmpty && empty(value) || f.omitZero && zero(value) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		if b, err = appendValue(append(appendString(b, f.name), ':'), value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendSlice(b []byte, v reflect.Value) (_ []byte, err error) {
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	if v.Len() > manyStructs && holdsStructs(v.Type()) {
		return appendOther(b, v)
	}
	b = append(b, '[')
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, v.Index(i)); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// appendString writes what needs no escape itself.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			doc, _ := json.Marshal(s) // a string has no error
			return append(b, doc...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// empty is the tag's option "omitempty".
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// zero is the tag's option "omitzero".
func zero(v reflect.Value) bool {
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok && !(v.Kind() == reflect.Pointer && v.IsNil()) {
		return z.IsZero()
	}
	return v.IsZero()
}

// decode parses one value, which is known to be valid JSON without white space around it.
func decode(doc []byte, v reflect.Value) error {
	t := v.Type()
	null := doc[0] == 'n'
	switch {
	case t.Kind() == reflect.Pointer && null:
		v.SetZero()
		return nil
	case t.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(t.Elem()))
		}
		return decode(doc, v.Elem())
	case speaksForItself(t, unmarshaler, textUnmarshaler):
	case t.Kind() == reflect.Struct && doc[0] == '{':
		return decodeStruct(doc, v)
	case t.Kind() == reflect.Slice && doc[0] == '[' && holdsStructs(t.Elem()):
		return decodeSlice(doc, v)
	case !null && decodeScalar(doc, v):
		return nil
	}
	return json.Unmarshal(doc, v.Addr().Interface())
}

func holdsStructs(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func decodeStruct(doc []byte, v reflect.Value) error {
	o := objectOf(v.Type())
	next := 0
	return items(doc, func(key, value []byte) error {
		name := key[1 : len(key)-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			var unescaped string
			if err := json.Unmarshal(key, &unescaped); err != nil {
				return err
			}
			name = []byte(unescaped)
		}
		i := o.find(name, next)
		if i < 0 {
			return nil
		}
		next = i + 1
		if err := decode(value, v.FieldByIndex(o[i].index)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

func decodeSlice(doc []byte, v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	if len(doc) > manyBytes {
		return json.Unmarshal(doc, v.Addr().Interface())
	}
	return items(doc, func(_, value []byte) error {
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		last := v.Index(v.Len() - 1)
		last.SetZero()
		return decode(value, last)
	})
}

// decodeScalar decodes what needs no second look, and reports whether it has.
func decodeScalar(doc []byte, v reflect.Value) bool {
	switch {
	case v.Kind() == reflect.String:
		if doc[0] != '"' || bytes.IndexByte(doc, '\\') >= 0 || !utf8.Valid(doc) {
			return false
		}
		v.SetString(string(doc[1 : len(doc)-1]))
		return true
	case v.Kind() == reflect.Bool && (doc[0] == 't' || doc[0] == 'f'):
		v.SetBool(doc[0] == 't')
		return true
	case v.CanInt():
		n, err := strconv.ParseInt(string(doc), 10, v.Type().Bits())
		if err == nil {
			v.SetInt(n)
		}
		return err == nil
	case v.CanUint():
		n, err := strconv.ParseUint(string(doc), 10, v.Type().Bits())
		if err == nil {
			v.SetUint(n)
		}
		return err == nil
	}
	return false
}

// items calls f with each member of an object, or each element of an array, whose key is nil.
func items(doc []byte, f func(key, value []byte) error) error {
	named := doc[0] == '{'
	for at := space(doc, 1); at < len(doc)-1; {
		var key []byte
		if named {
			stop := end(doc, at)
			key = doc[at:stop]
			at = space(doc, space(doc, stop)+1) // over the colon
		}
		stop := end(doc, at)
		if err := f(key, doc[at:stop]); err != nil {
			return err
		}
		if at = space(doc, stop); doc[at] == ',' {
			at = space(doc, at+1)
		}
	}
	return nil
}

// space returns where the white space at i ends.
func space(doc []byte, i int) int {
	for i < len(doc) && (doc[i] == ' ' || doc[i] == '\t' || doc[i] == '\n' || doc[i] == '\r') {
		i++
	}
	return i
}

// end returns where the value that begins at i ends. The document is valid.
func end(doc []byte, i int) int {
	depth := 0
	for {
		switch doc[i] {
		case '"':
			i = endOfString(doc, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
		default: // a number, true, false, null
			for i < len(doc) && bytes.IndexByte([]byte(",:]} \t\n\r"), doc[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

func endOfString(doc []byte, i int) int {
	for i++; doc[i] != '"'; i++ {
		if doc[i] == '\\' {
			i++
		}
	}
	return i + 1
}
