package site

import (
	"fmt"
	"os"

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
