package fakestepd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
)

// jobScript plays `stepd spank prolog|epilog`. What it does is in the job
// control environment:
//
//	PLUGIN_prolog=fail TEXT   fail with TEXT; so PLUGIN_epilog
//	PLUGIN_prolog=crash PATH  an optional plugin crashes
//	PLUGIN_prolog=hang        never end
//	PLUGIN_OUT=PATH           append the word and the plugins' environ to PATH
//	HOOKS=A,B                 the hooks of the stack; none without it
func jobScript() error {
	var job stepapi.JobScript
	if err := json.NewDecoder(os.NewFile(stepapi.FDSpec, "job")).Decode(&job); err != nil {
		return err
	}
	word := os.Args[2]
	res := stepapi.JobScriptResult{Schema: step.Schema, Hooks: []string{}}
	var todo, out string
	for _, e := range job.JobControl {
		name, value, _ := strings.Cut(string(e), "=")
		switch name {
		case "PLUGIN_" + word:
			todo = value
		case "PLUGIN_OUT":
			out = value
		case "HOOKS":
			res.Hooks = strings.Split(value, ",")
		}
	}
	if out != "" {
		if err := note(out, word, job.Env); err != nil {
			return err
		}
	}
	verb, rest, _ := strings.Cut(todo, " ")
	switch verb {
	case "fail":
		res.Failure = rest
	case "crash":
		res.Crashes = []step.PluginCrash{{Path: rest, Hook: "slurm_spank_job_" + word}}
	case "hang":
		time.Sleep(time.Hour)
	}
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		return err
	}
	if res.Failure != "" {
		return errors.New(res.Failure)
	}
	return nil
}

func note(path, word string, env [][]byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var b strings.Builder
	for _, e := range env {
		fmt.Fprintf(&b, " %s", e)
	}
	_, err = fmt.Fprintf(f, "plugins %s%s\n", word, b.String())
	return err
}
