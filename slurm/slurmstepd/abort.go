package slurmstepd

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"time"

	"stepd/slurm/spec"
	"stepd/step"
)

// abortPatience bounds the exchange with srun about an abort's code.
const abortPatience = 2 * time.Second

// agent is where srun waits for one of the step daemon's connections, HOST:PORT; "" where it
// does not: srun says so in the tasks' environment.
func agent(env []string, port string) string {
	host, port := spec.Variable(env, "SLURM_SRUN_COMM_HOST"), spec.Variable(env, port)
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
	to := agent(d.stream.Launch.Env, "SLURM_PMIXP_ABORT_AGENT_PORT")
	if to == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, abortPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
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
