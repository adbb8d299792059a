package spank

import (
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkReadStack is what each step pays for its plugin stack.
func BenchmarkReadStack(b *testing.B) {
	for _, c := range []struct {
		name  string
		files map[string]string
	}{
		{"one file", map[string]string{"plugstack.conf": "required /usr/lib/a.so x=1\n"}},
		{"include of 5", map[string]string{
			"plugstack.conf": "include d/*.conf\n", "d/1.conf": "required /a.so\n", "d/2.conf": "required /a.so\n",
			"d/3.conf": "required /a.so\n", "d/4.conf": "required /a.so\n", "d/5.conf": "required /a.so\n",
		}},
		{"20 plugins", map[string]string{"plugstack.conf": strings.Repeat("optional /usr/lib/a.so x=1 y=2\n", 20)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := stackDir(b, c.files)
			for b.Loop() {
				if _, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
