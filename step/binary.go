package step

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"
)

// JSON holds text: encoding/json replaces bytes that are no UTF-8. Arguments and
// variables are bytes (a file's name may be Latin-1). Entries that are no text therefore
// travel beside the lists, by their index.

// Pack moves the entries that are no text out of Argv and Env, before a Request or Spec
// is encoded. It replaces the lists, and does not write to the caller's.
func (r *Request) Pack() {
	r.Argv, r.ArgvBinary = pack(r.Argv)
	r.Env, r.EnvBinary = pack(r.Env)
}

// Unpack puts the entries back after decoding. An index out of range is a *FieldError.
func (r *Request) Unpack() error {
	if err := unpack("argv_binary", r.Argv, r.ArgvBinary); err != nil {
		return err
	}
	if err := unpack("env_binary", r.Env, r.EnvBinary); err != nil {
		return err
	}
	r.ArgvBinary, r.EnvBinary = nil, nil
	return nil
}

func pack(list []string) ([]string, map[int]string) {
	var binary map[int]string
	for i, s := range list {
		if utf8.ValidString(s) {
			continue
		}
		if binary == nil {
			binary = make(map[int]string)
			list = append([]string(nil), list...)
		}
		binary[i] = base64.StdEncoding.EncodeToString([]byte(s))
		list[i] = ""
	}
	return list, binary
}

func unpack(field string, list []string, binary map[int]string) error {
	for i, text := range binary {
		if i < 0 || i >= len(list) {
			return &FieldError{field, fmt.Sprintf("there is no entry %d", i)}
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return &FieldError{field, fmt.Sprintf("entry %d: %v", i, err)}
		}
		list[i] = string(b)
	}
	return nil
}
