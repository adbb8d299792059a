package node

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"stepd/srunopt"
	"stepd/step"
)

// groupsMax is NGROUPS_MAX of limits.h: setgroups(2) takes no more.
const groupsMax = 65536

// parseUser reads the answer of `spankhost --lookup`: lines key=value, of
// which uid, gid and name must be there. Unknown keys are ignored.
func parseUser(b []byte) (step.User, error) {
	var u step.User
	seen := make(map[string]bool)
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return step.User{}, fmt.Errorf("cannot parse line %.80q of the lookup: want key=value", line)
		}
		if seen[key] {
			return step.User{}, fmt.Errorf("cannot parse the lookup: %.80q comes twice", key)
		}
		seen[key] = true
		if err := setUser(&u, key, value); err != nil {
			return step.User{}, fmt.Errorf("cannot parse %.80q of the lookup: %w", key, err)
		}
	}
	for _, key := range []string{"uid", "gid", "name"} {
		if !seen[key] {
			return step.User{}, fmt.Errorf("cannot parse the lookup: it has no %q", key)
		}
	}
	// initgroups(3) adds the primary group; so must its stand-in.
	if !slices.Contains(u.Groups, u.GID) {
		u.Groups = append([]uint32{u.GID}, u.Groups...)
	}
	return u, nil
}

func setUser(u *step.User, key, value string) (err error) {
	switch key {
	case "uid":
		u.UID, err = parseNumericID(value)
	case "gid":
		u.GID, err = parseNumericID(value)
	case "name":
		if value == "" {
			return errors.New("is empty")
		}
		u.Name, err = value, checkWord(value)
	case "groups":
		u.Groups, err = parseGroups(value)
	}
	return err
}

func parseGroups(s string) ([]uint32, error) {
	if s == "" {
		return nil, nil
	}
	if n := strings.Count(s, ",") + 1; n > groupsMax {
		return nil, fmt.Errorf("%d groups: the kernel takes at most %d", n, groupsMax)
	}
	var groups []uint32
	for _, f := range strings.Split(s, ",") {
		g, err := parseNumericID(f)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// parseNumericID reads a uid or gid; -1 means "leave as it is" to the kernel
// and is none.
func parseNumericID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || uint32(n) == ^uint32(0) {
		return 0, fmt.Errorf("%.20q is not a user or group id", s)
	}
	return uint32(n), nil
}

// checkWord refuses what would forge lines in logs and listings.
func checkWord(s string) error {
	if len(s) > srunopt.PathMax || strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return fmt.Errorf("%.80q is too long or holds a control character", s)
	}
	return nil
}
