package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
)

// newLog makes the log, on stderr.
func newLog(o options) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	switch o.logFormat {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: "2006-01-02T15:04:05.000000Z07:00"})
	default:
		return nil, fmt.Errorf("cannot log as %q: --log-format is text or json", o.logFormat)
	}
	if o.verbose {
		log.SetLevel(logrus.DebugLevel)
	}
	return log, nil
}

// openLogFile opens SlurmdLogFile for appending: a log that is there is never
// truncated, and a link that is there is root's own (rulings 21).
func openLogFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open log (SlurmdLogFile): %w", err)
	}
	return f, nil
}

// levelOf maps SlurmdDebug, a word or a number, to the log's levels.
func levelOf(debug string) (logrus.Level, bool) {
	switch strings.ToLower(debug) {
	case "quiet", "0":
		return logrus.PanicLevel, true
	case "fatal", "1":
		return logrus.FatalLevel, true
	case "error", "2":
		return logrus.ErrorLevel, true
	case "", "info", "3":
		return logrus.InfoLevel, true
	case "verbose", "4", "debug", "5", "debug2", "6", "debug3", "7", "debug4", "8", "debug5", "9":
		return logrus.DebugLevel, true
	}
	return logrus.InfoLevel, false
}
