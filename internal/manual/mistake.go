package manual

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/internal/nearest"
)

// Mistake says in one line what is wrong with an option of a command, in the house's words for
// pflag's, with what was meant or where the options are described. path is the command: "stepctl
// run". Other errors it returns as they are.
func Mistake(path string, f *pflag.FlagSet, err error) error {
	help := "see " + path + " --help"
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if name := optionIn(e.GetSpecifiedName(), e.GetSpecifiedShortnames()); e.GetSpecifiedShortnames() != "" {
			return fmt.Errorf("unknown option %s: %s", name, help)
		}
		if near := nearest.Of(e.GetSpecifiedName(), namesOf(f)); near != "" {
			help = fmt.Sprintf("did you mean --%s?", near)
		}
		return fmt.Errorf("unknown option --%s: %s", e.GetSpecifiedName(), help)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("option %s needs a value: %s", optionIn(e.GetSpecifiedName(), e.GetSpecifiedShortnames()), help)
	}
	if e, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		return fmt.Errorf("%q is no option: %s", e.GetSpecifiedFlag(), help)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s=%s: %w", e.GetFlag().Name, e.GetValue(), valueMistake(e.Unwrap(), e.GetFlag().Value.Type()))
	}
	return err
}

// NoArguments refuses arguments, for a command that takes none.
func NoArguments(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q is one argument too many: %s", args[0], c.Use)
}

// optionIn is an option as it was written: of several letters behind one dash the one, and where
// it stands.
func optionIn(name, letters string) string {
	switch {
	case letters == "":
		return "--" + name
	case len(letters) == 1:
		return "-" + letters
	}
	return fmt.Sprintf("-%s in -%s", name, letters)
}

// valueMistake says what a number, or a switch, wants.
func valueMistake(err error, kind string) error {
	number, ok := errors.AsType[*strconv.NumError](err)
	switch {
	case !ok:
		return err
	case number.Func == "ParseBool" || kind == "bool":
		return errors.New("want true or false")
	case number.Func == "ParseFloat":
		return errors.New("want a number")
	case errors.Is(err, strconv.ErrSyntax):
		return errors.New("want a whole number")
	}
	return errors.New("that is no number that it can have")
}

func namesOf(f *pflag.FlagSet) (names []string) {
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	return names
}
