package manual

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func command() *cobra.Command {
	c := &cobra.Command{
		Use: "eat THING", Short: "eat a thing", Long: "Eat it\nwhole.\n\n  as it stands:\n    here\n\n.first dot, 'quote' and \\backslash `code`.",
		Run: func(*cobra.Command, []string) {},
	}
	f := c.Flags()
	f.IntP("count", "n", 3, "how many")
	f.String("where", "", "the `PLACE` to eat at")
	f.String("maybe", "", "perhaps")
	f.Lookup("maybe").NoOptDefVal = "1"
	f.Bool("salt", false, "with "+strings.Repeat("much ", 30)+"salt")
	f.Bool("hidden", false, "not told")
	_ = f.MarkHidden("hidden")
	f.String("plug", "", "a plugin's")
	f.Lookup("plug").Annotations = map[string][]string{OwnGroup: {"Options of plugin x"}, Written: {"--plug[=X]"}}
	c.InitDefaultHelpFlag()
	return c
}

func page() *Page {
	p := Of(command(), 1, []Theme{{"Amounts", []string{"count", "where"}}, {"General", []string{"help"}}}, map[string]string{"maybe": "0|1"})
	p.Topics = []Topic{{Title: "Exit codes", Entries: []Entry{{"0", "done"}}}}
	p.See = []string{"drink(1)"}
	return p
}

// TestText: every option is in its group, written as it is used, and no line is wider
// than the terminal.
func TestText(t *testing.T) {
	for _, width := range []int{40, 80, 200} {
		text := page().Text(Style{Width: width})
		for line := range strings.SplitSeq(text, "\n") {
			if n := utf8.RuneCountInString(line); n > width || n > widthMax {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
		at := -1
		for _, want := range []string{
			"Eat a thing\n", "eat [options] THING\n", "Eat it whole.\n", "\n  as it stands:\n    here\n", "\nAmounts:\n", "-n, --count=N", "--where=PLACE",
			"\nOther options:\n", "--maybe[=0|1]", "\nOptions of plugin x:\n", "      --plug[=X]", "\nGeneral:\n", "-h, --help", "\nExit codes:\n", "drink(1)",
		} {
			next := strings.Index(text, want)
			if next < at || next < 0 {
				t.Errorf("width %d: %q is not there, or not behind what comes before it:\n%s", width, want, text)
			}
			at = max(at, next)
		}
		if strings.Contains(text, "hidden") || strings.Contains(text, "\x1b") {
			t.Errorf("width %d: it tells a hidden option, or has escapes:\n%s", width, text)
		}
	}
	if text := page().Text(Style{Bold: true}); !strings.Contains(text, "\x1b[1mAmounts:\x1b[0m\n") {
		t.Errorf("no heading is bold:\n%s", text)
	}
}

// TestRoff: groff takes it without a warning, and no text is taken for a request.
func TestRoff(t *testing.T) {
	source := page().Roff()
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	cmd := exec.Command(groff, "-man", "-ww", "-Tutf8", "-P-cbou")
	cmd.Stdin = strings.NewReader(source)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || said.Len() > 0 {
		t.Fatalf("%v: %s\n%s", err, &said, source)
	}
	for _, want := range []string{".first dot, 'quote' and \\backslash code.", "--plug[=X]", "SEE ALSO"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// TestKeys: each item of a list with a name in bold, and each row of a table, is a key with
// all that the document says about it.
func TestKeys(t *testing.T) {
	const document = "# x\n\n## a.conf\n\nSome [words](x.md).\n- one\n\n- **`Key`**, **`Other`** †: `a|b` (default none). Does\n  it ([more](y.md)).\n- **`Bare`**\n\n" +
		"| event | value | meaning |\n|---|---|---|\n| `end` | `a\\|b` | it ends |\n\n## b.conf\n\n- **`No`**: none\n"
	p, err := Keys(&Page{Name: "a.conf", Section: 5}, document, "a.conf")
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{{"Key, Other †", "`a|b` (default none). Does it (more)."}, {Name: "Bare"}, {"end", "Value: `a|b`. It ends."}}
	if len(p.Groups) != 1 || !slices.Equal(p.Groups[0].Options, want) {
		t.Fatalf("groups %+v", p.Groups)
	}
	if _, err := Keys(&Page{Name: "c"}, document, "c.conf"); err == nil {
		t.Error("a missing section is no error")
	}
}
