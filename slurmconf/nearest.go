package slurmconf

import (
	"maps"
	"slices"
	"strings"
)

// nearest returns the key of the set that was probably meant: at most two
// letters away, and of at least six letters. "" if there is none. The answer
// is in lower case, as keys have no case.
func nearest(key string, keys keySet) string {
	key = strings.ToLower(key)
	best, distance := "", 3
	for _, known := range slices.Sorted(maps.Keys(keys)) {
		if len(known) < 6 || len(known)-len(key) > 2 || len(key)-len(known) > 2 {
			continue
		}
		if d := editDistance(key, known); d < distance {
			best, distance = known, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete or replace (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
