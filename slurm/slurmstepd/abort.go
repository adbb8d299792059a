package slurmstepd

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"time"

	"stepd/step"
)

// abortPatience bounds the exchange with srun about an abort's code.
const abortPatience = 2 * time.Second

// abortAgent is where srun waits for the code of a PMIx_Abort, "" where it does not: srun's
// half of mpi/pmix says so in the tasks' environment.
func abortAgent(env []string) string {
	var host, port string
	for _, e := range env {
		switch name, value, _ := strings.Cut(e, "="); name {
		case "SLURM_SRUN_COMM_HOST":
			host = value
		case "SLURM_PMIXP_ABORT_AGENT_PORT":
			port = value
		}
	}
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// tellAbort tells srun the code that a task has aborted with: srun ends with it. It sends the
// code back.
func (d *daemon) tellAbort(ctx context.Context, rec *step.Record) {
	if !rec.Aborted || rec.ExitCode == nil || d.stream.Launch == nil || !strings.HasPrefix(d.spec.MPI, "pmix") {
		return
	}
	agent := abortAgent(d.stream.Launch.Env)
	if agent == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, abortPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", agent)
	if err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		_, err = conn.Write(binary.BigEndian.AppendUint32(nil, uint32(*rec.ExitCode)))
	}
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	if err != nil {
		d.log.Errorf("cannot tell srun the abort's code %d: %v", *rec.ExitCode, err)
	}
}
