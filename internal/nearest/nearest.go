// Package nearest finds the word that a misspelt one was meant to be.
package nearest

// Of is the name which is a slip of the pen away from word, or the shortest that begins with
// it; "" where none is.
func Of(word string, names []string) (near string) {
	if len(word) < 2 || len(word) > 40 {
		return ""
	}
	best := 1 + max(1, len(word)/4)
	for _, name := range names {
		if d := Distance(word, name); d < best {
			best, near = d, name
		}
	}
	if near != "" {
		return near
	}
	for _, name := range names {
		if len(word) > 2 && len(name) > len(word) && name[:len(word)] == word && (near == "" || len(name) < len(near)) {
			near = name
		}
	}
	return near
}

// Distance is how many letters of a must be changed, left out, added or swapped with the
// next to make b of it (the distance of Damerau and Levenshtein, each place once).
func Distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
