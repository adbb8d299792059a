// Package manual describes a command or a file once and writes it twice: as the
// help screen of a terminal (Text) and as a man page (Roff). So neither can say
// what the other does not.
//
// A Page of a command comes from its cobra.Command (Of), one of a configuration
// file from the tables of docs/configuration.md (Tables).
package manual

import "strings"

// Page is one command, or one file.
type Page struct {
	// Name is "stepctl run", or "stepd.conf"; Section the manual's: 1, 5, 8.
	Name    string
	Section int
	// Short is one line, without a full stop.
	Short string
	// Usage are the ways to call it; none of a file.
	Usage []string
	// About are the paragraphs; one whose lines begin with blanks is set as it is.
	About []string
	// Commands are those below this one.
	Commands []Entry
	Groups   []Group
	// Topics are further sections: exit codes, environment, files, examples.
	Topics []Topic
	// See are other pages, "stepctl-ps(1)".
	See []string
}

// Group is a theme of options, or of keys of a file.
type Group struct {
	Title   string
	Options []Entry
	// Text stands before the options, in paragraphs as About.
	Text []string
}

// Entry is a word and what it means: a verb, an exit code, or an option, as it is written
// ("-n, --ntasks=N").
type Entry struct{ Name, Text string }

// Topic is a section of its own. Entries come behind the paragraphs of Text.
type Topic struct {
	Title   string
	Text    []string
	Entries []Entry
}

// File is the page's name in a folder of man pages: "stepctl-run".
func (p *Page) File() string { return strings.ReplaceAll(p.Name, " ", "-") }

// Paragraphs parts a text at its empty lines.
func Paragraphs(text string) (out []string) {
	for part := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		if part = strings.Trim(part, "\n"); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// verbatim reports whether a paragraph is to be set as it is.
func verbatim(paragraph string) bool {
	return strings.HasPrefix(paragraph, " ") || strings.HasPrefix(paragraph, "\t")
}
