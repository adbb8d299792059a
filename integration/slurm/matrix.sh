#!/bin/bash
# matrix.sh FILE: the table of `make slurm-matrix`, a row for each check and a column for
# each release, from go test's records.
sed -n 's/.*matrix\\t\([^\\]*\)\\t\([^\\]*\)\\t\([^\\]*\)\\t.*/\1 \2 \3/p' "$1" | awk '
	{ if (!($1 in release)) { release[$1] = 1; releases[++n] = $1 } if (!($2 in id)) { id[$2] = 1; ids[++m] = $2 } verdict[$2, $1] = $3; count[$1, $3]++ }
	END {
		printf "%-20s", "check"; for (i = 1; i <= n; i++) printf "%-10s", releases[i]; print ""
		for (j = 1; j <= m; j++) { printf "%-20s", ids[j]; for (i = 1; i <= n; i++) printf "%-10s", verdict[ids[j], releases[i]]; print "" }
		for (i = 1; i <= n; i++) printf "%s: %d same, %d intended, %d differ, %d not run\n", releases[i], count[releases[i], "same"], count[releases[i], "intended"], count[releases[i], "DIFFERS"], count[releases[i], "not-run"]
	}'
