package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"stepd/step"
)

// bcastName is where a program goes that is sent without a name, as in Slurm.
const bcastName = "slurm_bcast_%j.%s_%N"

// bcastOptions say what is sent to the nodes.
type bcastOptions struct {
	dest, libs, compress string
	flags                *pflag.FlagSet

	files []sentFile // in the order of the request's
	lz4   bool
	moved progressed
}

func (o *bcastOptions) bind(f *pflag.FlagSet) {
	o.flags = f
	f.StringVar(&o.dest, "bcast", "", "send the program to every node: to this path, or to a file in this directory/")
	f.Lookup("bcast").NoOptDefVal = bcastName
	f.StringVar(&o.libs, "send-libs", "no", "with --bcast: send its libraries as well, but for those of the system: yes or no")
	f.Lookup("send-libs").NoOptDefVal = "yes"
	f.StringVar(&o.compress, "compress", "none", "with --bcast: compress what is sent: lz4 or none")
	f.Lookup("compress").NoOptDefVal = "lz4"
}

// set puts the files into the request.
func (o *bcastOptions) set(r *step.Request) error {
	if o.libs != "yes" && o.libs != "no" {
		return fmt.Errorf("--send-libs=%s: want yes or no", o.libs)
	}
	if !o.flags.Changed("bcast") {
		return nil
	}
	o.setCompress()
	if len(r.Apps) > 0 {
		return exclude("bcast", "multi-prog")
	}
	program, err := findProgram(r.Argv[0], r.Cwd)
	if err != nil {
		return fmt.Errorf("--bcast: cannot send %q: %w", r.Argv[0], err)
	}
	paths := []string{program}
	if o.libs == "yes" {
		libs, err := libraries(program)
		if err != nil {
			return fmt.Errorf("--send-libs: %w", err)
		}
		paths = append(paths, libs...)
	}
	return o.describe(r, paths)
}

// describe puts the digests of what is sent into the request.
func (o *bcastOptions) describe(r *step.Request, paths []string) error {
	o.moved.begin(paths)
	for i, path := range paths {
		f, sent, err := describe(path, &o.moved)
		if err != nil {
			return fmt.Errorf("--bcast: %w", err)
		}
		if sent.Path = filepath.Base(path); i == 0 {
			if sent.Path = o.dest; strings.HasSuffix(o.dest, "/") {
				sent.Path += bcastName
			}
		}
		o.files, r.Sent = append(o.files, f), append(r.Sent, sent)
	}
	return nil
}

// setCompress reads --compress. As in Slurm what is not known compresses nothing.
func (o *bcastOptions) setCompress() {
	switch strings.ToLower(o.compress) {
	case "lz4":
		o.lz4 = true
	case "", "none":
	default:
		say("--compress=%s: only lz4 and none are known: nothing is compressed", o.compress)
	}
}

// findProgram is the file that the tasks would run here.
func findProgram(name, cwd string) (string, error) {
	path := name
	switch {
	case !strings.Contains(name, "/"):
		found, err := exec.LookPath(name)
		if err != nil {
			return "", errors.New("no directory of PATH has it")
		}
		path = found
	case !filepath.IsAbs(name):
		path = filepath.Join(cwd, name)
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !st.Mode().IsRegular():
		return "", errors.New("it is no regular file")
	case st.Mode()&0o111 == 0:
		return "", errors.New("it is not executable")
	}
	return path, nil
}

// systemDirs have what every node has: it is not sent (BcastExclude's default).
var systemDirs = []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"}

// libraries are those that the program, and they, ask for, but for the system's.
// The files are read, nothing of them is run.
func libraries(program string) ([]string, error) {
	seen := make(map[string]bool)
	var found []string
	todo := []string{program}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		f, err := elf.Open(path)
		if err != nil {
			var format *elf.FormatError
			if errors.As(err, &format) || errors.Is(err, io.EOF) {
				continue // a script has none
			}
			return nil, err
		}
		names, dirs, err := needs(f, path)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("cannot read what %q needs: %w", path, err)
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			// What is not found is the system's, or the loader's to miss.
			if lib := findLibrary(name, dirs); lib != "" {
				found, todo = append(found, lib), append(todo, lib)
			}
		}
	}
	if len(found) >= step.SentMax {
		return nil, fmt.Errorf("%q needs %d libraries: the limit is %d", program, len(found), step.SentMax-1)
	}
	return found, nil
}

// needs are the names of the libraries that a file asks for, and the directories
// in which the loader looks for them, in its order (ld.so(8)).
func needs(f *elf.File, path string) (names, dirs []string, err error) {
	if names, err = f.ImportedLibraries(); err != nil {
		return nil, nil, err
	}
	rpath, _ := f.DynString(elf.DT_RPATH)
	runpath, _ := f.DynString(elf.DT_RUNPATH)
	if len(runpath) > 0 {
		rpath = nil
	}
	for _, list := range slices.Concat(rpath, []string{os.Getenv("LD_LIBRARY_PATH")}, runpath) {
		for _, dir := range strings.Split(list, ":") {
			origin := filepath.Dir(path)
			dir = strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin).Replace(dir)
			if dir != "" {
				dirs = append(dirs, dir)
			}
		}
	}
	return names, append(dirs, "/usr/local/lib"), nil
}

// findLibrary is the library's file, "" where it is the system's or not found.
func findLibrary(name string, dirs []string) string {
	if strings.Contains(name, "/") {
		return ""
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			continue
		}
		for _, system := range systemDirs {
			if dir == system || strings.HasPrefix(dir, system+"/") {
				return ""
			}
		}
		return path
	}
	return ""
}
