package step

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DependKind is what a batch job waits for, in sbatch's words (--dependency).
type DependKind string

const (
	DependAfter     DependKind = "after"      // the job was started, or cancelled before
	DependAfterAny  DependKind = "afterany"   // it has ended
	DependAfterOK   DependKind = "afterok"    // it has ended well
	DependNotOK     DependKind = "afternotok" // it has ended otherwise
	DependAfterCorr DependKind = "aftercorr"  // its task of the same number has ended well
	DependSingleton DependKind = "singleton"  // the user's earlier jobs of this name have ended
)

const (
	// DependenciesMax bounds what one job waits for.
	DependenciesMax = 1000
	// dependTextMax bounds what it is written in, in bytes.
	dependTextMax = 32 << 10
	// dependDelayMax is the longest delay behind a start, in minutes: a year.
	dependDelayMax = 366 * 24 * 60
)

// Dependency is one thing that a batch job waits for.
type Dependency struct {
	Kind DependKind `json:"kind"`
	// Job is the one that it is about, 0 of a singleton. Of an array that is all of its
	// tasks, or the one that Task names.
	Job  uint32  `json:"job,omitempty"`
	Task *uint32 `json:"task,omitempty"`
	// DelayMin are the minutes from the job's start on; 0 is none. Only DependAfter has
	// them.
	DelayMin int `json:"delay_min,omitempty"`
}

// Dependencies are all of them. The zero value is none.
type Dependencies struct {
	List []Dependency
	// Any: one of them is enough ("?"); else all are to come (",").
	Any bool
}

var errDependency = errors.New("write KIND:JOB[:JOB...] with kinds after, afterany, afterok, afternotok and aftercorr, or singleton; all of them parted by commas, or any of them by question marks")

// ParseDependencies reads sbatch's form: "afterok:12:13_4,after:14+30,singleton". What is
// there twice counts once.
func ParseDependencies(text string) (*Dependencies, error) {
	if len(text) > dependTextMax {
		return nil, fmt.Errorf("%d bytes: %d is the limit", len(text), dependTextMax)
	}
	d := &Dependencies{Any: strings.Contains(text, "?")}
	sep := ","
	if d.Any {
		sep = "?"
		if strings.Contains(text, ",") {
			return nil, errors.New("all of them are parted by commas, any of them by question marks: not both")
		}
	}
	for _, item := range strings.Split(text, sep) {
		if err := d.add(item); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// add reads "KIND:JOB[:JOB...]".
func (d *Dependencies) add(item string) error {
	word, jobs, named := strings.Cut(item, ":")
	kind := DependKind(strings.ToLower(word))
	switch kind {
	case DependSingleton:
		if named {
			return fmt.Errorf("%.40q: singleton names no job", item)
		}
		return d.put(Dependency{Kind: kind})
	case DependAfter, DependAfterAny, DependAfterOK, DependNotOK, DependAfterCorr:
	default:
		return fmt.Errorf("%.40q is no kind of dependency: %w", word, errDependency)
	}
	if !named {
		return fmt.Errorf("%q names no job: %w", word, errDependency)
	}
	for _, text := range strings.Split(jobs, ":") {
		one, err := dependencyJob(kind, text)
		if err == nil {
			err = d.put(one)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Dependencies) put(one Dependency) error {
	if slices.ContainsFunc(d.List, one.equal) {
		return nil
	}
	if len(d.List) == DependenciesMax {
		return fmt.Errorf("more than %d jobs: that is the limit", DependenciesMax)
	}
	d.List = append(d.List, one)
	return nil
}

func (d Dependency) equal(o Dependency) bool {
	return d.Kind == o.Kind && d.Job == o.Job && d.DelayMin == o.DelayMin && (d.Task == nil) == (o.Task == nil) && (d.Task == nil || *d.Task == *o.Task)
}

// dependencyJob reads "JOB", "JOB_TASK" and, of after, "JOB+MINUTES".
func dependencyJob(kind DependKind, text string) (Dependency, error) {
	d := Dependency{Kind: kind}
	name, delay, delayed := strings.Cut(text, "+")
	number, task, ofArray := strings.Cut(name, "_")
	job, err := strconv.ParseUint(number, 10, 32)
	if err != nil || job == 0 {
		return d, fmt.Errorf("%.40q is no number of a job: %w", text, errDependency)
	}
	d.Job = uint32(job)
	if ofArray {
		n, err := strconv.ParseUint(task, 10, 32)
		if err != nil {
			return d, fmt.Errorf("%.40q is no task of an array: write JOB_TASK", text)
		}
		t := uint32(n)
		d.Task = &t
	}
	if !delayed {
		return d, nil
	}
	if kind != DependAfter {
		return d, fmt.Errorf("%.40q: only after:JOB may have minutes behind it", text)
	}
	if d.DelayMin, err = strconv.Atoi(delay); err != nil || d.DelayMin < 0 || d.DelayMin > dependDelayMax || delay[0] == '+' {
		return d, fmt.Errorf("%.40q: want minutes behind +, %d at most", text, dependDelayMax)
	}
	return d, nil
}

// String is its form in --dependency.
func (d Dependency) String() string {
	if d.Job == 0 {
		return string(d.Kind)
	}
	s := fmt.Sprintf("%s:%d", d.Kind, d.Job)
	if d.Task != nil {
		s += fmt.Sprintf("_%d", *d.Task)
	}
	if d.DelayMin > 0 {
		s += fmt.Sprintf("+%d", d.DelayMin)
	}
	return s
}

// String is the form that ParseDependencies reads.
func (d *Dependencies) String() string {
	words := make([]string, len(d.List))
	for i, one := range d.List {
		words[i] = one.String()
	}
	if d.Any {
		return strings.Join(words, "?")
	}
	return strings.Join(words, ",")
}
