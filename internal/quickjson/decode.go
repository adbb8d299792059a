package quickjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"
)

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
