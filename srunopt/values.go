package srunopt

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"

	"stepd/step"
)

// Limits on generic resources, in a request as in a site's files.
const (
	// gresMax is the highest number of entries in one request.
	gresMax = 64
	// gresNameMax bounds a name and a type, in bytes.
	gresNameMax = 63
)

// FormatGres writes entries as ParseGres reads them. None at all are "none",
// and nil is "".
func FormatGres(list []step.GresRequest) string {
	if list != nil && len(list) == 0 {
		return gresNone
	}
	var b strings.Builder
	for i, g := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(g.String())
	}
	return b.String()
}

// gresNone asks for none of what the job has.
const gresNone = "none"

// ParseGres reads the value of --gres: entries NAME[[:TYPE]:COUNT], parted by
// commas. The count is 1 where there is none, and may have a suffix as
// ParseGresCount reads it. "" is nil: nothing was asked for. "none" is an empty
// list that is not nil: asked for nothing.
//
// What follows the name is a count if it can be read as one, else a type: a
// type of digits alone needs a count behind it.
func ParseGres(s string) ([]step.GresRequest, error) {
	switch {
	case s == "":
		return nil, nil
	case strings.EqualFold(s, gresNone):
		return []step.GresRequest{}, nil
	case strings.Count(s, ",") >= gresMax:
		return nil, fmt.Errorf("cannot parse gres %.80q: more than %d entries", s, gresMax)
	}
	var out []step.GresRequest
	for item := range strings.SplitSeq(s, ",") {
		g, err := parseGresItem(item)
		if err != nil {
			return nil, fmt.Errorf("cannot parse gres %.80q: %w", s, err)
		}
		out = append(out, g)
	}
	if err := checkGres(out); err != nil {
		return nil, fmt.Errorf("cannot parse gres %.80q: %w", s, err)
	}
	return out, nil
}

func parseGresItem(item string) (step.GresRequest, error) {
	fields := strings.Split(item, ":")
	g := step.GresRequest{Name: fields[0], Count: 1}
	var err error
	switch {
	case len(fields) == 2 && isGresCount(fields[1]):
		g.Count, err = ParseGresCount(fields[1])
	case len(fields) == 2:
		g.Type = fields[1]
		err = checkGresType(g)
	case len(fields) == 3:
		g.Type = fields[1]
		if err = checkGresType(g); err == nil {
			g.Count, err = ParseGresCount(fields[2])
		}
	case len(fields) > 3:
		return g, fmt.Errorf("%.80q has more than NAME:TYPE:COUNT", item)
	}
	return g, err
}

// checkGresType refuses an empty type, which stands for any elsewhere.
func checkGresType(g step.GresRequest) error {
	if g.Type == "" {
		return fmt.Errorf("a type or a count of %.80q is missing", g.Name)
	}
	return CheckGresName(g.Type)
}

// checkGres refuses a list that ParseGres would not make: names and types that
// are none, entries told twice, and a name with a type beside the same without,
// since it would not be clear which devices are meant. A server calls it on what
// a client sends.
func checkGres(list []step.GresRequest) error {
	if len(list) > gresMax {
		return fmt.Errorf("more than %d entries", gresMax)
	}
	for i, g := range list {
		if err := CheckGresName(g.Name); err != nil {
			return err
		}
		if strings.EqualFold(g.Name, gresNone) {
			return fmt.Errorf("%q stands alone", g.Name)
		}
		if g.Type != "" {
			if err := CheckGresName(g.Type); err != nil {
				return err
			}
		}
		for _, h := range list[:i] {
			switch {
			case h.Name != g.Name:
			case h.Type == g.Type:
				return fmt.Errorf("%q is given twice", strings.TrimSuffix(g.Name+":"+g.Type, ":"))
			case h.Type == "" || g.Type == "":
				return fmt.Errorf("%q is given with and without a type", g.Name)
			}
		}
	}
	return nil
}

// CheckGresName says what keeps s from being the name or type of a generic
// resource: 1 to gresNameMax letters, digits and -_.+, the first a letter or a
// digit. The characters must not part a list, a path or a line of a log.
func CheckGresName(s string) error {
	if s == "" {
		return fmt.Errorf("a name is empty")
	}
	if len(s) > gresNameMax {
		return fmt.Errorf("the name %.80q has more than %d bytes", s, gresNameMax)
	}
	for i := range len(s) {
		c := s[i]
		letter := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || strings.IndexByte("-_.+", c) < 0) {
			return fmt.Errorf("%.80q is no name: it may have letters, digits and -_.+ in it", s)
		}
	}
	return nil
}

// gresSuffixes are powers of 1024.
const gresSuffixes = "KMGTP"

// isGresCount reports whether s has the form of a count: digits, and a suffix or
// none. It may still be too large.
func isGresCount(s string) bool {
	digits, _ := cutGresSuffix(s)
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

// ParseGresCount reads a count: digits, and K, M, G, T or P in either case for
// powers of 1024.
func ParseGresCount(s string) (uint64, error) {
	if !isGresCount(s) {
		return 0, fmt.Errorf("%.80q is no count: write digits, and K, M, G, T or P behind them", s)
	}
	digits, power := cutGresSuffix(s)
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || bits.LeadingZeros64(n) < 10*power {
		return 0, fmt.Errorf("the count %.80q is out of range", s)
	}
	return n << (10 * power), nil
}

// cutGresSuffix cuts a suffix off, and returns it as the power of 1024.
func cutGresSuffix(s string) (digits string, power int) {
	if s == "" {
		return "", 0
	}
	last := s[len(s)-1] &^ 0x20 // upper case of a letter
	if i := strings.IndexByte(gresSuffixes, last); i >= 0 {
		return s[:len(s)-1], i + 1
	}
	return s, 0
}

// FormatAllocs is a list of allocations as Slurm writes it: "gpu:a100:2(IDX:0-1)".
// "" is none.
func FormatAllocs(list []step.GresAlloc) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ",")
}

// MemoryMax bounds a request for memory, in MB: 1 EB.
const MemoryMax = 1 << 40

// ParseMemory reads a size as srun's --mem takes it: a number of MB, or one with
// the suffix K, M, G or T. Kilobytes are rounded up.
func ParseMemory(s string) (mb uint64, err error) {
	digits, power := cutGresSuffix(s) // K is 1, M 2, G 3, T 4
	power = cmp.Or(power, 2)
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || power > 4 {
		return 0, fmt.Errorf("%.40q is no size: want a number of MB, or one with K, M, G or T", s)
	}
	factor := uint64(1) << (10 * max(power-2, 0))
	if power == 1 {
		v = v>>10 + min(v&1023, 1)
	}
	if v > MemoryMax/factor {
		return 0, fmt.Errorf("%.40q is more than any machine has", s)
	}
	return v * factor, nil
}

// FormatMB is a number of MB for people: "23 GB", "1500 MB".
func FormatMB(mb uint64) string {
	switch {
	case mb >= 1<<20 && mb%(1<<20) == 0:
		return fmt.Sprintf("%d TB", mb>>20)
	case mb >= 1<<10 && mb%(1<<10) == 0:
		return fmt.Sprintf("%d GB", mb>>10)
	case mb >= 10<<10:
		return fmt.Sprintf("%.1f GB", float64(mb)/1024)
	}
	return fmt.Sprintf("%d MB", mb)
}

const (
	// timeLimitMax is the longest time limit, in seconds: a year, as Slurm's.
	timeLimitMax = 365 * 24 * 3600
	// warnBeforeMax is the most seconds between the warning and the end, as in Slurm.
	warnBeforeMax = 65535
	// warnBefore is when the warning comes where its time is not told, as in Slurm.
	warnBefore = 60
)

// ParseTime reads a time limit in the forms of srun(1): minutes,
// minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
// days-hours:minutes:seconds. It returns seconds; 0 is no limit, for which
// "infinite", "unlimited", "-1" and "0" are written, too.
func ParseTime(text string) (seconds int, err error) {
	switch strings.ToLower(text) {
	case "infinite", "unlimited", "-1":
		return 0, nil
	}
	wrong := fmt.Errorf("write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS")
	days, clock, dayed := strings.Cut(text, "-")
	if !dayed {
		days, clock = "0", text
	}
	parts := append([]string{days}, strings.Split(clock, ":")...)
	numbers := make([]int64, len(parts))
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return 0, wrong
		}
		numbers[i] = int64(n)
	}
	d, n := numbers[0], numbers[1:]
	if len(n) > 3 {
		return 0, wrong
	}
	units := [][]int64{{60}, {60, 1}, {3600, 60, 1}}[len(n)-1] // of minutes, m:s and h:m:s
	if dayed {
		units = []int64{3600, 60, 1}
	}
	total := d * 24 * 3600
	for i := range n {
		total += n[i] * units[i]
	}
	if total > timeLimitMax {
		return 0, fmt.Errorf("%d s is more than %d days", total, timeLimitMax/(24*3600))
	}
	return int(total), nil
}

// ParseWarning reads --signal: [{R|B}:]SIGNAL[@SECONDS]. R: is for reservations,
// of which there are none here. signal reads a signal's name or number.
func ParseWarning(text string, signal func(string) (int, error)) (*step.Warning, error) {
	w := &step.Warning{BeforeS: warnBefore}
	rest := text
	if flags, after, ok := strings.Cut(rest, ":"); ok {
		for _, c := range strings.ToUpper(flags) {
			switch c {
			case 'B':
				w.Batch = true
			case 'R':
			default:
				return nil, fmt.Errorf("%q: write B: or R: before the signal", flags)
			}
		}
		rest = after
	}
	name, before, timed := strings.Cut(rest, "@")
	if timed {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > warnBeforeMax {
			return nil, fmt.Errorf("%q: want 0 to %d seconds before the end", before, warnBeforeMax)
		}
		w.BeforeS = int(n)
	}
	var err error
	if w.Signal, err = signal(name); err != nil {
		return nil, err
	}
	return w, nil
}

// LimitPrefix begins the variables by which resource limits travel to the tasks.
const LimitPrefix = "SLURM_RLIMIT_"

// ResourceLimits are the limits that Slurm propagates, without RLIMIT_.
func ResourceLimits() []string {
	return []string{"AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK"}
}

// Earlier is the time limit that comes first; 0 is none.
func Earlier(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// ParseAcctgFreq reads srun's --acctg-freq: a number of seconds, or a list of
// TYPE=SECONDS of which "task" counts; energy, filesystem and network sample
// nothing here. nil is that the tasks' frequency is not told.
func ParseAcctgFreq(s string) (*int, error) {
	const want = "want SECONDS or task=SECONDS"
	if len(s) > NameMax {
		return nil, fmt.Errorf("%d bytes: %s", len(s), want)
	}
	var task *int
	for item := range strings.SplitSeq(s, ",") {
		kind, value, named := strings.Cut(item, "=")
		if !named {
			kind, value = "task", item
		}
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n > acctgFreqMax {
			return nil, fmt.Errorf("%q is no number of seconds up to %d: %s", value, acctgFreqMax, want)
		}
		switch strings.ToLower(kind) {
		case "task":
			task = new(int(n))
		case "energy", "filesystem", "network":
		default:
			return nil, fmt.Errorf("%q is none of task, energy, filesystem and network: %s", kind, want)
		}
	}
	return task, nil
}

// MPIType is the MPI plugin that a word of --mpi, SLURM_MPI_TYPE or MpiDefault means: Slurm has
// names of pmix by the library's release, "pmix_v4", and openmpi for none.
func MPIType(word string) string {
	word = strings.TrimPrefix(word, "mpi/")
	switch {
	case strings.HasPrefix(word, "pmix_v"):
		return "pmix"
	case word == "openmpi":
		return "none"
	}
	return word
}

// pathMax is PATH_MAX: a longer name cannot be opened.
const pathMax = 4096

// ExpandPattern makes a file name of srun's pattern (srun(1), IO redirection):
// %j the job id, %A its array's, %a the array task, %J "job.step", %s the step, %N the
// node's name, %n its number, %t the rank, %u the user, %x the job's name, %%.
// A number between % and the letter pads with zeros, to ten digits at most. A
// backslash anywhere keeps all of the pattern as it is, but for the backslashes: each
// makes the byte behind it an ordinary one.
func ExpandPattern(pattern string, s *step.Spec, rank int) (string, error) {
	var b strings.Builder
	if isEscaped(pattern) {
		for i := 0; i < len(pattern); i++ {
			if pattern[i] == '\\' {
				if i++; i == len(pattern) {
					break
				}
			}
			b.WriteByte(pattern[i])
		}
		return checkName(pattern, b.String())
	}
	for part, letter := range patternParts(pattern) {
		if letter != 0 {
			width, _ := strconv.Atoi(part[1 : len(part)-1])
			part = expandLetter(letter, min(width, 10), part, s, rank)
		}
		b.WriteString(part)
	}
	return checkName(pattern, b.String())
}

// patternParts yields what a pattern consists of: text with the letter 0, and each %[WIDTH]LETTER.
func patternParts(pattern string) iter.Seq2[string, byte] {
	return func(yield func(string, byte) bool) {
		for rest := pattern; rest != ""; {
			text, after, found := strings.Cut(rest, "%")
			width := len(after) - len(strings.TrimLeft(after, "0123456789"))
			if !found || width == len(after) { // no letter ends it
				yield(rest, 0)
				return
			}
			end := len(text) + 1 + width + 1
			if !yield(text, 0) || !yield(rest[len(text):end], after[width]) {
				return
			}
			rest = rest[end:]
		}
	}
}

func isEscaped(pattern string) bool { return strings.IndexByte(pattern, '\\') >= 0 }

func checkName(pattern, name string) (string, error) {
	if len(name) >= pathMax || strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("cannot expand file name pattern %.64q: the name is longer than %d bytes or holds a zero byte", pattern, pathMax)
	}
	return name, nil
}

// expandLetter gives the text for one letter; whole is returned as it is for
// an unknown one.
func expandLetter(letter byte, width int, whole string, s *step.Spec, rank int) string {
	job, task := s.ID.Job, uint32(4294967294) // NO_VAL: the job is no array
	if s.Array != nil {
		job, task = s.Array.Job, s.Array.Task
	}
	numbers := map[byte]uint32{'j': s.ID.Job, 'A': job, 'a': task, 's': s.ID.Step, 'n': uint32(s.NodeID), 't': uint32(s.SeenRank(rank))}
	if n, ok := numbers[letter]; ok {
		return fmt.Sprintf("%0*d", width, n)
	}
	words := map[byte]string{'J': s.ID.Key(), 'N': s.NodeName, 'u': s.User.Name, 'x': s.Name, '%': "%"}
	if word, ok := words[letter]; ok {
		return word
	}
	return whole
}

// PatternHas reports whether one of the letters occurs in a pattern: "t" makes it a
// name for each task, "tnN" one for each task or node.
func PatternHas(pattern, letters string) bool {
	if isEscaped(pattern) {
		return false
	}
	for _, letter := range patternParts(pattern) {
		if letter != 0 && strings.IndexByte(letters, letter) >= 0 {
			return true
		}
	}
	return false
}
