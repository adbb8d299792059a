package manual

import (
	"errors"
	"io"
	"testing"

	"github.com/spf13/pflag"
)

// own is a value whose errors are the house's.
type own struct{}

func (own) String() string   { return "" }
func (own) Type() string     { return "size" }
func (own) Set(string) error { return errors.New("want a size, such as 4G") }

// TestMistake: none of pflag's words reaches a user.
func TestMistake(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--ntask=2"}, "unknown option --ntask: did you mean --ntasks?"},
		{[]string{"--xyzzy"}, "unknown option --xyzzy: see stepctl run --help"},
		{[]string{"--secre"}, "unknown option --secre: see stepctl run --help"},
		{[]string{"-y"}, "unknown option -y: see stepctl run --help"},
		{[]string{"-yl"}, "unknown option -y in -yl: see stepctl run --help"},
		{[]string{"--ntasks"}, "option --ntasks needs a value: see stepctl run --help"},
		{[]string{"-n"}, "option -n needs a value: see stepctl run --help"},
		{[]string{"-ln"}, "option -n needs a value: see stepctl run --help"},
		{[]string{"--=1"}, `"--=1" is no option: see stepctl run --help`},
		{[]string{"-n", "many"}, "--ntasks=many: want a whole number"},
		{[]string{"-n99999999999999999999"}, "--ntasks=99999999999999999999: that is no number that it can have"},
		{[]string{"--label=perhaps"}, "--label=perhaps: want true or false"},
		{[]string{"--mem=much"}, "--mem=much: want a size, such as 4G"},
	} {
		f := pflag.NewFlagSet("run", pflag.ContinueOnError)
		f.SetOutput(io.Discard)
		f.IntP("ntasks", "n", 1, "")
		f.BoolP("label", "l", false, "")
		f.Var(own{}, "mem", "")
		f.Bool("secret", false, "")
		_ = f.MarkHidden("secret") // it exists
		if err := Mistake("stepctl run", f, f.Parse(c.args)); err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
	if err := errors.New("another"); Mistake("stepctl run", pflag.NewFlagSet("run", pflag.ContinueOnError), err) != err {
		t.Error("another error is not left as it is")
	}
}
