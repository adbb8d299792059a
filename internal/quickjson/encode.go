package quickjson

import (
	"encoding/json"
	"reflect"
	"strconv"
)

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
