package options

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Peeked is what must be known of a command line before it can be parsed.
type Peeked struct {
	Socket     string // --socket
	Standalone bool   // --standalone
	Help       bool   // --help or -h
	Topic      string // an option whose value is "help"
	Job        uint32 // --jobid, else of $SLURM_JOB_ID; 0: none
}

// Peek reads the options that are known. Behind a long option that is not, a
// word that begins with a dash is the next option; at any other it stops: that
// may be the option's argument or the command.
func Peek(c *cobra.Command, args []string) (seen Peeked) {
	job := os.Getenv("SLURM_JOB_ID")
	defer func() {
		n, _ := strconv.ParseUint(job, 10, 32) // what is no number is refused when the options are parsed
		seen.Job = uint32(n)
	}()
	for i := 0; i < len(args); i++ {
		word, long := strings.CutPrefix(args[i], "--")
		switch {
		case word == "" || !strings.HasPrefix(args[i], "-") || args[i] == "-":
			return seen
		case !long:
			more, help := short(c, args[i][1:])
			i, seen.Help = i+more, seen.Help || help
			continue
		}
		name, text, set := strings.Cut(word, "=")
		f := c.Flag(name)
		switch {
		case name == "help":
			seen.Help = true
			continue
		case f == nil && (set || i+1 < len(args) && strings.HasPrefix(args[i+1], "-")):
			continue
		case f == nil:
			return seen
		case !set && f.NoOptDefVal != "":
			text = f.NoOptDefVal
		case !set:
			if i++; i == len(args) {
				return seen
			}
			text = args[i]
		}
		switch name {
		case "socket":
			seen.Socket = text
		case "jobid":
			job = text
		case "standalone":
			seen.Standalone = text == "true"
		default:
			if strings.EqualFold(text, "help") && HelpOn(name) != "" {
				seen.Topic = name
				return seen
			}
		}
	}
	return seen
}

// short reads a cluster of short options: how many words behind it are its last
// one's argument, and whether -h is among them.
func short(c *cobra.Command, cluster string) (more int, help bool) {
	for i := range len(cluster) {
		f := c.Flags().ShorthandLookup(cluster[i : i+1])
		switch {
		case f == nil:
			help = help || cluster[i] == 'h'
		case f.NoOptDefVal != "":
		case i+1 < len(cluster):
			return 0, help
		default:
			return 1, help
		}
	}
	return 0, help
}

// WrittenOut writes out the arguments that hang on a short option which may be
// without one: -K1 is --kill-on-bad-exit=1, as in srun. What is behind the options
// stays as it is.
func WrittenOut(c *cobra.Command, args []string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out); i++ {
		word := out[i]
		if word == "--" || word == "-" || !strings.HasPrefix(word, "-") {
			return out // the command, or an option's argument that is not known here
		}
		if name, long := strings.CutPrefix(word, "--"); long {
			name, _, set := strings.Cut(name, "=")
			f := c.Flag(name)
			if f != nil && !set && f.NoOptDefVal == "" {
				i++
			}
			continue
		}
		f := c.Flags().ShorthandLookup(word[1:2])
		if f != nil && f.NoOptDefVal != "" && f.Value.Type() == "string" && len(word) > 2 {
			out[i] = "--" + f.Name + "=" + strings.TrimPrefix(word[2:], "=")
			continue
		}
		more, _ := short(c, word[1:])
		i += more
	}
	return out
}

// setFlags are the flags that a command line has set, in the order of their names.
func setFlags(c *cobra.Command) (set []*pflag.Flag) {
	c.Flags().Visit(func(f *pflag.Flag) { set = append(set, f) })
	return set
}
