package report

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// UntilSignalled ends with the first signal that ends the step's daemon, which is called
// program: the host's going down, with an administrator's stopping of the scope, is the usual
// reason for one. Its cause names the signal.
func UntilSignalled(program string) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1) // the first one counts
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go func() {
		select {
		case got := <-signals:
			cancel(fmt.Errorf("%s got %s: the host goes down, or %s was stopped", program, unix.SignalName(got.(syscall.Signal)), program))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
