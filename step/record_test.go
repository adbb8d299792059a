package step

import (
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Whose word a field of noded's record is.
const (
	nodeds  = "noded's"             // stepd's is ignored
	stepds  = "stepd's"             // from each record
	atEnd   = "stepd's, at its end" // and in the answer to Stat
	inStat  = "stepd's, in Stat"    // alone
	ruled   = "by a rule of its own"
	ofTasks = "stepd's, with all tasks" // as many as noded's record has
)

// whose classifies every field of a Record, and of its tasks: a new field is to be added
// here, and to Merge unless it is noded's.
var whose = map[string]string{
	"ID": nodeds, "IDName": nodeds, "Name": nodeds, "UID": nodeds, "User": nodeds, "Node": nodeds, "NTasks": nodeds,
	"Command": nodeds, "Submitted": nodeds, "MPI": nodeds, "CPUs": nodeds, "CPUsOwn": nodeds,
	"MemoryMB": nodeds, "Gres": nodeds, "GresOwn": nodeds, "TimeLimitS": nodeds,
	"StepdPID": nodeds, "StepdStart": nodeds, "LauncherPID": nodeds, "LauncherStart": nodeds, "BootID": nodeds,
	"Cgroup": nodeds, "CgroupTasks": nodeds, "CgroupV1": nodeds, "Array": nodeds, "Restarts": nodeds,
	"Parent": nodeds, "Stdout": nodeds, "Stderr": nodeds, "StepdLost": nodeds,

	"Reason": stepds, "ExitCode": stepds, "Signal": stepds, "Ended": stepds,
	"Aborted": stepds, "MPISilent": stepds, "Drain": stepds, "PluginCrash": stepds, "OOM": stepds, "HeldOpen": stepds,
	"Survivors": stepds, "SurvivorsTotal": stepds, "SuspendedSeconds": stepds,

	"Usage": atEnd, "StdoutBytes": atEnd, "StderrBytes": atEnd,
	"Host": inStat,

	"State": ruled, "Started": ruled, "Suspended": ruled, "SuspendedBy": ruled, "Tasks": ruled,

	"Tasks.Rank": ofTasks, "Tasks.LocalID": ofTasks, "Tasks.PID": ofTasks,
	"Tasks.State": ofTasks, "Tasks.ExitCode": ofTasks, "Tasks.Signal": ofTasks, "Tasks.Status": ofTasks,
	"Tasks.MaxRSSBytes": ofTasks, "Tasks.CPUSeconds": ofTasks, "Tasks.Usage": ofTasks,
	"Tasks.Stage": ofTasks, "Tasks.Errno": ofTasks, "Tasks.Object": ofTasks, "Tasks.Why": ofTasks,
	"Tasks.MPI": ofTasks, "Tasks.Doing": ofTasks,
}

// nonzero gives every field of v, however deep, a value that depends on n.
func nonzero(v reflect.Value, n int) {
	if at, is := v.Addr().Interface().(*time.Time); is {
		*at = time.Unix(int64(n), 0)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		nonzero(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				nonzero(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		nonzero(v.Index(0), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		nonzero(key, n)
		nonzero(value, n)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("n", n))
	case reflect.Bool:
		v.SetBool(n%2 == 1)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(n))
	default:
		panic(fmt.Sprintf("a field of kind %s", v.Kind()))
	}
}

// filled is a record without a zero in it.
func filled(n int, state State) *Record {
	rec := new(Record)
	nonzero(reflect.ValueOf(rec).Elem(), n)
	rec.State = state
	return rec
}

// TestMergeClassifies: every field of a record and of its tasks has an owner.
func TestMergeClassifies(t *testing.T) {
	var names []string
	for f := range reflect.TypeFor[Record]().Fields() {
		names = append(names, f.Name)
	}
	for f := range reflect.TypeFor[Task]().Fields() {
		names = append(names, "Tasks."+f.Name)
	}
	for _, name := range names {
		if whose[name] == "" {
			t.Errorf("whose word is %s? Add it to the table, and to Record.Merge unless it is noded's", name)
		}
	}
	for name := range whose {
		if !slices.Contains(names, name) {
			t.Errorf("there is no field %s", name)
		}
	}
}

// TestMerge: every field has the value that its class says.
func TestMerge(t *testing.T) {
	for name, c := range map[string]struct {
		state State
		merge func(own, told *Record)
		taken []string // the classes of which stepd's value counts
	}{
		"running": {Running, (*Record).Merge, []string{stepds}},
		"ended":   {Completed, (*Record).Merge, []string{stepds, atEnd}},
		"stat":    {Running, (*Record).MergeStat, []string{stepds, atEnd, inStat}},
	} {
		t.Run(name, func(t *testing.T) {
			own, was, told := filled(2, Starting), filled(2, Starting), filled(1, c.state)
			c.merge(own, told)
			for f := range reflect.TypeFor[Record]().Fields() {
				class := whose[f.Name]
				if class == ruled {
					continue
				}
				want := was
				if slices.Contains(c.taken, class) {
					want = told
				}
				got := reflect.ValueOf(own).Elem().FieldByIndex(f.Index).Interface()
				if w := reflect.ValueOf(want).Elem().FieldByIndex(f.Index).Interface(); !reflect.DeepEqual(got, w) {
					t.Errorf("%s, which is %s, is %v, want %v", f.Name, class, got, w)
				}
			}
			if !reflect.DeepEqual(own.Tasks, told.Tasks) || own.State != c.state {
				t.Errorf("state %s, tasks %+v", own.State, own.Tasks)
			}
		})
	}
}

// TestMergeRules are the fields with rules of their own.
func TestMergeRules(t *testing.T) {
	t.Run("state", func(t *testing.T) {
		own := filled(2, Completing)
		if own.Merge(filled(1, Running)); own.State != Completing {
			t.Errorf("an earlier state made it %s", own.State)
		}
	})
	t.Run("start", func(t *testing.T) {
		own, told := filled(2, Running), filled(1, Failed)
		was := own.Started
		told.Started = nil
		if own.Merge(told); own.Started != was {
			t.Error("a record without its start has taken it away")
		}
		told = filled(1, Failed)
		if own.Merge(told); own.Started != told.Started {
			t.Error("the start was not taken over")
		}
	})
	t.Run("tasks", func(t *testing.T) {
		own, told := filled(2, Running), filled(1, Running)
		was := own.Tasks
		told.Tasks = append(told.Tasks, Task{})
		if own.Merge(told); !reflect.DeepEqual(own.Tasks, was) {
			t.Error("a record of other tasks was taken over")
		}
	})
	t.Run("suspension", func(t *testing.T) {
		own, told := filled(2, Running), filled(1, Running)
		if own.Merge(told); own.Suspended != told.Suspended || own.SuspendedBy != told.SuspendedBy {
			t.Error("it was not taken over")
		}
		if own.Merge(filled(1, Failed)); own.Suspended != nil || own.SuspendedBy != nil {
			t.Error("a step that has ended is suspended")
		}
	})
}

// TestEndWords: a reason says why a task never ran where that is known, and else how it has ended.
func TestEndWords(t *testing.T) {
	exited := ExitedWith(2)
	for want, task := range map[string]Task{
		`task 3 never ran: no such file or directory: "/no/a\x1bb"`: {Rank: 3, State: TaskFailed, Stage: "exec", Errno: int(syscall.ENOENT), Object: "/no/a\x1bb", Status: &exited},
		"task 3: Exited with exit code 2":                           {Rank: 3, State: TaskFailed, Stage: "task_prolog", Status: &exited},
		"task 3 never ran its command":                              {Rank: 3, State: TaskFailed, Stage: "gate"},
		"task 0: Exited with exit code 2":                           {State: TaskExited, Status: &exited},
		"":                                                          {State: TaskRunning},
	} {
		if got := task.EndWords(); got != want {
			t.Errorf("%+v: got %q, want %q", task, got, want)
		}
	}
}
