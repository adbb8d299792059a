package pmi2

import "testing"

func TestAbortCode2(t *testing.T) {
	for text, want := range map[string]int{
		"application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1":          7,
		"application called MPI_Abort(my, 9) - process 4 comm, 3) - process 0": 3,
		"application called MPI_Abort(MPI_COMM_WORLD, -1) - process 0":         -1,
		"application called MPI_Abort(MPI_COMM_WORLD, 0) - process 0":          0,
		"application called MPI_Abort(MPI_COMM_WORLD, 99999999999) - process":  1,
		"application called MPI_Abort() - process 0":                           1,
		"application called MPI_Abort(7) - process 0":                          1,
		"application called MPI_Abort(a, ) - process 0":                        1,
		"application called MPI_Abort(a, 7":                                    1,
		"application called MPI_Abort(":                                        1,
		"Fatal error in PMPI_Recv":                                             1,
		"":                                                                     1,
	} {
		if got := abortCode2(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
