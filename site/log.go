package site

import (
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"stepd/eventlog"
)

// NewLog makes the log, on stderr.
func NewLog(o Options) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	switch o.LogFormat {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: eventlog.LogTime})
	default:
		return nil, fmt.Errorf("cannot log as %q: --log-format is text or json", o.LogFormat)
	}
	if o.Verbose {
		log.SetLevel(logrus.DebugLevel)
	}
	return log, nil
}

// openLogFile opens SlurmdLogFile for appending: an existing log is never
// truncated, and an existing link is root's own.
func openLogFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open log (SlurmdLogFile): %w", err)
	}
	return f, nil
}

// levelOf maps a word of SlurmdDebug to the log's levels.
func levelOf(debug string) logrus.Level {
	switch debug {
	case "quiet":
		return logrus.PanicLevel
	case "fatal":
		return logrus.FatalLevel
	case "error":
		return logrus.ErrorLevel
	case "info", "verbose":
		return logrus.InfoLevel
	}
	return logrus.DebugLevel // debug to debug5
}

const (
	// slowAfter is how long something may take in silence that asks file systems.
	slowAfter = 2 * time.Second
	// slowEvery is how often it is reported again.
	slowEvery = 30 * time.Second
)

// Told does f, and says so in the log and to systemd as long as f does not end: a
// file system whose server is gone holds each caller, and an
// administrator must not have to guess which.
func Told(log *logrus.Logger, what, remedy string, f func() error) error {
	return toldEvery(log, what, remedy, slowAfter, slowEvery, f)
}

func toldEvery(log *logrus.Logger, what, remedy string, after, every time.Duration, f func() error) error {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began := time.Now()
		timer := time.NewTimer(after)
		defer timer.Stop()
		for said := false; ; said = true {
			select {
			case <-done:
				if said {
					log.Infof("%s has answered after %v", what, time.Since(began).Round(time.Second))
				}
				return
			case <-timer.C:
				log.Errorf("%s has not answered for %v: %s", what, time.Since(began).Round(time.Second), remedy)
				// An error could only say that no service manager listens.
				_, _ = daemon.SdNotify(false, fmt.Sprintf("STATUS=waiting for %s", what))
				timer.Reset(every)
			}
		}
	}()
	err := f()
	close(done)
	<-ended
	return err
}
