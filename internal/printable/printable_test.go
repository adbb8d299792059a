package printable

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A user's words cannot move the cursor of who lists them, or hide in what is listed.
func TestLine(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		room int
		want string
	}{
		"plain":               {"plain text", 0, "plain text"},
		"letters":             {"naïve 日本 🙂", 0, "naïve 日本 🙂"},
		"escape sequence":     {"a\x1b[2Jb\n", 10, "a?[2Jb?"},
		"tab and return":      {"a\tb\rc", 0, "a?b?c"},
		"NUL and DEL":         {"a\x00b\x7f", 0, "a?b?"},
		"C1":                  {"a\u009b31mb\u0085", 0, "a?31mb?"},
		"direction (Cf)":      {"a\u202egpj.exe\u2066\u200f", 0, "a?gpj.exe??"},
		"unseen (Cf)":         {"a\u200bb\u00adc\ufeff\U000e0041", 0, "a?b?c??"},
		"line ends (Zl, Zp)":  {"a\u2028b\u2029c", 0, "a?b?c"},
		"no UTF-8":            {"a\xff\xc3b", 0, "a??b"},
		"no characters":       {"a\ufffe\uffff\ufffd", 0, "a???"},
		"no-break space":      {"a\u00a0b", 0, "a\u00a0b"},
		"as long as the room": {"abcd", 4, "abcd"},
		"too long":            {strings.Repeat("x", 30), 10, "xxxxxxxxx…"},
		"too long in runes":   {"éééé", 3, "éé…"},
		"room for one":        {"ab", 1, "…"},
		"two columns each":    {"日本語", 5, "日本…"},
		"as wide as the room": {"日本語", 6, "日本語"},
		"a column left":       {"a日本", 4, "a日…"},
		"pictures":            {"🙂🙂🙂", 4, "🙂…"},
		"accents":             {"e\u0301e\u0301", 2, "e\u0301e\u0301"},
		"empty":               {"", 1, ""},
	} {
		if got := Line(c.in, c.room); got != c.want {
			t.Errorf("%s: Line(%q, %d) = %q, want %q", name, c.in, c.room, got, c.want)
		}
	}
}

// TestWidth: what terminals show in two columns, and in none.
func TestWidth(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "aé": 2, "e\u0301": 1, "日本": 4, "ｗ": 2, "한": 2, "🚀": 2, "🧪": 2, "🫠": 2, "🟢": 2, "✅": 2, "❌": 2, "⏳": 2, "⚡": 2, "⭐": 2,
		"🆗": 2, "🈁": 2, "→…█": 3, "✓": 1, "☺": 1,
	} {
		if got := Width(s); got != want {
			t.Errorf("Width(%q) = %d, want %d", s, got, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b[2J\u202e", 4)
	f.Add("\xff", 0)
	f.Fuzz(func(t *testing.T, s string, room int) {
		got := Line(s, room)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, Control) {
			t.Errorf("Line(%q, %d) = %q", s, room, got)
		}
		if room > 0 && Width(got) > room {
			t.Errorf("Line(%q, %d) = %q: too long", s, room, got)
		}
	})
}

// TestFirst: a line's part of a text, and the rest: no word of it is twice, and none is lost.
func TestFirst(t *testing.T) {
	for _, c := range []struct {
		text        string
		width       int
		first, rest string
	}{
		{"all of it fits here", 20, "all of it fits here", ""},
		{"not all of it fits here", 20, "not all of it …", "… fits here"},
		{"日本日本 日本日本日本", 20, "日本日本 …", "… 日本日本日本"},
		{"one-word-that-is-longer-than-that", 20, "one-word-that-is-l …", "… onger-than-that"},
		{"too narrow a screen for a cut", 19, "too narrow a screen for a cut", ""},
		{"", 80, "", ""},
	} {
		if first, rest := First(c.text, c.width); first != c.first || rest != c.rest {
			t.Errorf("%q in %d: got %q and %q, want %q and %q", c.text, c.width, first, rest, c.first, c.rest)
		}
	}
}
