package slurmstepd

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/sirupsen/logrus"

	"stepd/slurm/wire"
	"stepd/step"
)

// TestTellAbort: srun hears the code of a PMIx_Abort, and of nothing else.
func TestTellAbort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan uint32, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4)
			_, _ = io.ReadFull(c, b)
			heard <- binary.BigEndian.Uint32(b)
			_, _ = c.Write(b)
			c.Close()
		}
	}()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	env := []string{"SLURM_SRUN_COMM_HOST=" + host, "SLURM_PMIXP_ABORT_AGENT_PORT=" + port}
	for _, tt := range []struct {
		mpi     string
		env     []string
		aborted bool
		told    bool
	}{
		{"pmix_v4", env, true, true}, {"pmix", env, false, false}, {"pmi2", env, true, false}, {"pmix", env[:1], true, false},
	} {
		d := &daemon{log: logrus.New(), spec: &step.Spec{}, stream: &wire.Stream{Launch: &wire.Launch{Env: tt.env}}}
		d.spec.MPI = tt.mpi
		d.tellAbort(context.Background(), &step.Record{Aborted: tt.aborted, ExitCode: new(7)})
		var got uint32
		select {
		case got = <-heard:
		default: // it returns when srun has answered
		}
		if want := map[bool]uint32{true: 7}[tt.told]; got != want {
			t.Errorf("%s, aborted %v, %d variables: srun hears %d", tt.mpi, tt.aborted, len(tt.env), got)
		}
	}
}
