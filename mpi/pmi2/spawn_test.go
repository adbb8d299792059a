package pmi2

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// block1 is one command of a PMI-1 spawn as MPICH writes it.
func block1(total, sofar, nprocs int, command string, args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mcmd=spawn\nnprocs=%d\nexecname=%s\ntotspawns=%d\nspawnssofar=%d\n", nprocs, command, total, sofar)
	for i, a := range args {
		fmt.Fprintf(&b, "arg%d=%s\n", i+1, a)
	}
	fmt.Fprintf(&b, "argcnt=%d\npreput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\npreput_val_0=tag#0$port=1 x$\n", len(args))
	b.WriteString("info_num=1\ninfo_key_0=wdir\ninfo_val_0=/a dir\nendcmd")
	return b.String()
}

func TestSpawn(t *testing.T) {
	preput := []step.KeyValue{{Key: "PARENT_ROOT_PORT_NAME", Value: []byte("tag#0$port=1 x$")}}
	info := []step.KeyValue{{Key: "wdir", Value: []byte("/a dir")}}
	want := launch.SpawnRequest{
		Rank: 1, MPI: "pmi2", Preput: preput,
		Apps: []launch.SpawnApp{
			{Argv: []string{"./a b", "x=y z", ""}, NTasks: 2, Info: info},
			{Argv: []string{"/bin/c"}, NTasks: 1, Info: info},
		},
	}
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("PMI-", version), func(t *testing.T) {
			w := newWorld(t, 2, step.PMI2Conf{})
			w.ranks[0].init1()
			f := w.ranks[1]
			if version == 1 {
				f.init1()
				f.say(block1(2, 1, 2, "./a b", "x=y z", ""))
				f.ask(block1(2, 2, 1, "/bin/c"), "cmd=spawn_result rc=0 jobid=12.4 errcodes=0,0,0")
			} else {
				f.init2()
				f.ask("cmd=spawn;thrid=9;ncmds=2;preputcount=1;ppkey0=PARENT_ROOT_PORT_NAME;ppval0=tag#0$port=1 x$;"+
					"subcmd=./a b;maxprocs=2;argc=2;argv0=x=y z;argv1=;infokeycount=1;infokey0=wdir;infoval0=/a dir;"+
					"subcmd=/bin/c;maxprocs=1;argc=0;infokeycount=1;infokey0=wdir;infoval0=/a dir;",
					"cmd=spawn-response;thrid=9;rc=0;jobid=12.4;errcodes=0,0,0;")
			}
			if got := w.job.last(); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			// What fails is told rank by rank, and may be tried again.
			w.job.answer = func(context.Context, launch.SpawnRequest) (step.ID, error) {
				return step.ID{}, &launch.SpawnError{ID: step.ID{Job: 12, Step: 5}, Failed: map[int]string{1: "x"}, Cause: "no such file"}
			}
			if version == 1 {
				f.ask(block1(1, 1, 2, "no"), "cmd=spawn_result rc=-1 msg=cannot_start_the_tasks_of_step_12.5_(rank_1):_no_such_file errcodes=0,14")
			} else {
				f.ask("cmd=spawn;ncmds=1;subcmd=no;maxprocs=2;",
					"cmd=spawn-response;rc=14;errmsg=cannot start the tasks of step 12.5 (rank 1): no such file;errcodes=0,14;")
			}
			w.wantLog("spawn:", "no such file")
			w.job.answer = nil
			if version == 1 {
				f.ask(block1(1, 1, 300, "many"), "cmd=spawn_result rc=0 jobid=12.4 errcodes="+strings.TrimSuffix(strings.Repeat("0,", 300), ","))
				f.ask(block1(1, 1, 1000, "more"), "cmd=spawn_result rc=0 jobid=12.4")
			}
		})
	}
}

// The universe is the job's CPUs on all its nodes, so that every rank has the same.
func TestUniverse(t *testing.T) {
	for _, c := range []struct {
		list           string
		all, per, want int
	}{
		{list: "0-7", per: 1, want: 8},
		{list: "0-7", per: 2, want: 4},
		{list: "0", all: 128, per: 1, want: 128},
		{want: 3},
	} {
		s := &step.Spec{JobCPUs: c.list, JobAllCPUs: c.all}
		s.NTasks, s.CPUsPerTask = 3, c.per
		if n := universe(s); n != c.want {
			t.Errorf("%+v: %d", c, n)
		}
	}
}

// A spawned step knows who has spawned it, and finds what it was given.
func TestSpawnedStep(t *testing.T) {
	parent := step.ID{Job: 12}
	w := newWorldOf(t, step.PMI2Conf{}, func(s *step.Spec) {
		s.NTasks, s.Parent = 3, &parent
		s.Preput = []step.KeyValue{{Key: "port", Value: []byte("p 1")}}
		s.JobCPUs = "0-7"
		s.Apps = []step.App{{NTasks: 2, Argv: step.Raw([]string{"a"})}, {NTasks: 1, Argv: step.Raw([]string{"b"})}}
	})
	if env := w.tasks.TaskEnv[2]; !strings.Contains(strings.Join(env, " "), "PMI_SPAWNED=1") {
		t.Errorf("environment %q", env)
	}
	one, two := w.ranks[0].init1(), w.ranks[2].hello2()
	two.ask("cmd=fullinit;pmirank=2;", "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=2;size=3;appnum=1;spawner-jobid=12.0;debugged=FALSE;pmiverbose=FALSE;")
	one.ask("cmd=get_appnum", "cmd=appnum rc=0 appnum=0")
	one.ask("cmd=get_universe_size", "cmd=universe_size rc=0 size=8")
	two.ask("cmd=kvs-get;key=port;", "cmd=kvs-get-response;rc=0;found=TRUE;value=p 1;")
	one.ask("cmd=get key=port", "cmd=get_result rc=0 value=p 1")
	// It is charged to no rank, and a rank may put its own in place of it.
	one.ask("cmd=put key=port value=mine", "cmd=put_result rc=0")
	one.ask("cmd=get key=port", "cmd=get_result rc=0 value=mine")
}

func TestSpawnRefused(t *testing.T) {
	long := strings.Repeat("k", 65)
	for _, c := range []struct {
		name, say, want string
	}{
		{"no blocks", "mcmd=spawn\nendcmd", "no_totspawns_and_spawnssofar_that_fit"},
		{"block 2 first", block1(2, 2, 1, "a"), "block_2_of_2_came_after_0"},
		{"other total", block1(2, 1, 1, "a") + "\n" + block1(3, 2, 1, "a"), "block_2_of_3_came_after_1_of_2"},
		{"beyond the total", block1(1, 2, 1, "a"), "that_fit"},
		{"too many", block1(2000, 1, 1, "a"), "cannot_spawn_2000_commands:_the_limit_is_1024"},
		{"no command", block1(1, 1, 1, ""), "there_is_no_execname"},
		{"no tasks", block1(1, 1, 0, "a"), "nprocs_is_no_number_from_1_to_65533"},
		{"too many tasks", block1(1, 1, 70000, "a"), "nprocs_is_no_number"},
		{"argument missing", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\narg1=x\nargcnt=2\nendcmd", "arg2_is_missing"},
		{"argument twice", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\narg1=x\narg1=y\nargcnt=2\nendcmd", "comes_twice"},
		{"argument 0", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\narg0=x\nargcnt=1\nendcmd", "beyond_the_1"},
		{"huge count", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=2000000000\nendcmd", "and_there_are_5_attributes"},
		{"values without keys", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\npreput_num=1\npreput_val_0=x\nendcmd", "preput_key_0_is_missing"},
		{"a key too long", "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\npreput_num=1\npreput_key_0=" + strings.Repeat("k", 257) + "\npreput_val_0=x\nendcmd", "more_than_256_(PMI1KeyBytes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, step.PMI2Conf{})
			f := w.ranks[0].init1()
			f.say(c.say)
			if got := f.receive(); !strings.HasPrefix(got, "cmd=spawn_result rc=-1 msg=") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			f.ask(block1(1, 1, 1, "a"), "cmd=spawn_result rc=0 jobid=12.4 errcodes=0") // the rank goes on
		})
	}
	t.Run("all blocks", func(t *testing.T) {
		w := newWorld(t, 1, step.PMI2Conf{FrameBytes: 2048})
		f := w.ranks[0].init1()
		for i := 1; i < 40; i++ {
			f.say(block1(100, i, 1, "a", strings.Repeat("x", 1000)))
		}
		if got := f.receive(); !strings.Contains(got, "more_than_32768_bytes_(16_times_PMI2FrameBytes)") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("blocks of many ranks", func(t *testing.T) {
		w := newWorld(t, 3, step.PMI2Conf{FrameBytes: 2048, TotalBytes: 8192})
		held := func() int {
			w.plugin.state.mu.Lock()
			defer w.plugin.state.mu.Unlock()
			return w.plugin.state.bytes
		}
		a, b := w.ranks[0].init1(), w.ranks[1].init1()
		for i := 1; i <= 5; i++ {
			a.say(block1(100, i, 1, "a", strings.Repeat("x", 1000)))
		}
		a.ask("cmd=get_appnum", "cmd=appnum rc=0 appnum=0") // they were read
		b.say(block1(100, 1, 1, "a", strings.Repeat("x", 1000)))
		b.say(block1(100, 2, 1, "a", strings.Repeat("x", 1000)))
		b.say(block1(100, 3, 1, "a", strings.Repeat("x", 1000)))
		if got := b.receive(); !strings.Contains(got, "pass_the_limit_8192_(PMI2TotalBytes)") {
			t.Errorf("got %q, %d bytes are held", got, held())
		}
		w.exit(0, step.ExitedWith(0)) // what has come of its spawn goes with it
		w.wantAbort(0, 1, "had not finalized")
		if n := held(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
	})
	for _, c := range [][2]string{
		{"cmd=spawn;ncmds=2;subcmd=a;maxprocs=1;", "1 commands, and ncmds says otherwise"},
		{"cmd=spawn;ncmds=0;", "0 commands"},
		{"cmd=spawn;subcmd=a;maxprocs=1;", "ncmds says otherwise"},
		{"cmd=spawn;ncmds=1;subcmd=a;", "maxprocs is no number"},
		{"cmd=spawn;ncmds=1;preputcount=1;ppkey0=" + long + ";ppval0=x;subcmd=a;maxprocs=1;", "more than 64 (PMI2KeyBytes)"},
		{"cmd=spawn;ncmds=1;subcmd=a;maxprocs=1;infokeycount=1;infokey0=a;", "infoval0 is missing"},
	} {
		w := newWorld(t, 1, step.PMI2Conf{})
		f := w.ranks[0].init2()
		f.say(c[0])
		if got := f.receive(); !strings.HasPrefix(got, "cmd=spawn-response;rc=") || strings.Contains(got, "rc=0") || !strings.Contains(got, c[1]) {
			t.Errorf("%q: got %q, want %q", c[0], got, c[1])
		}
	}
}

// A rank that ends while noded is asked for it holds up no other rank, nor Close.
func TestSpawnOfAnEndedRank(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{WaitsPerRank: 2})
	begun, ended := make(chan struct{}, 4), make(chan struct{}, 4)
	w.job.answer = func(ctx context.Context, _ launch.SpawnRequest) (step.ID, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return step.ID{}, context.Cause(ctx)
	}
	f := w.ranks[0].init2()
	for i := range 2 {
		f.say(fmt.Sprintf("cmd=spawn;thrid=%d;ncmds=1;subcmd=a;maxprocs=1;", i))
		<-begun
	}
	f.ask("cmd=spawn;thrid=3;ncmds=1;subcmd=a;maxprocs=1;", "cmd=spawn-response;thrid=3;rc=2;errmsg=rank 0 waits for 2 answers of noded: the limit (PMI2WaitsPerRank);")
	f.ask("cmd=kvs-put;key=a;value=b;", "cmd=kvs-put-response;rc=0;") // others of its threads go on
	w.exit(0, step.ExitedWith(3))
	for range 2 {
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("a spawn outlives its rank")
		}
	}
	w.wantAbort(0, 3, "had not finalized")
	g := w.ranks[1].init2()
	g.say("cmd=spawn;ncmds=1;subcmd=a;maxprocs=1;")
	<-begun
	w.close() // ends it
	<-ended
}

func TestNoServices(t *testing.T) {
	w := newWorld(t, 1, step.PMI2Conf{})
	w.plugin.job.Job = nil
	f := w.ranks[0].init2()
	for _, c := range []string{"spawn;ncmds=1;subcmd=a;maxprocs=1", "name-publish;name=a;port=b", "name-lookup;name=a"} {
		verb, _, _ := strings.Cut(c, ";")
		f.ask("cmd="+c+";", "cmd="+verb+"-response;rc=14;errmsg=there is no noded to ask;")
	}
}

// FuzzSpawn: blocks that are read are whole: what was announced is present.
func FuzzSpawn(f *testing.F) {
	f.Add("nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\narg1=x\nargcnt=1")
	f.Add("ncmds=1\nsubcmd=a\nmaxprocs=1\nargc=1\nargv0=x\ninfokeycount=1\ninfokey0=k\ninfoval0=v")
	f.Add("preputcount=1\nppkey0=a\nppval0=b\nncmds=1\nsubcmd=a\nmaxprocs=65533")
	f.Fuzz(func(t *testing.T, text string) {
		m := message{cmd: "spawn"}
		for line := range strings.SplitSeq(text, "\n") {
			if key, value, ok := strings.Cut(line, "="); ok {
				m.pairs = append(m.pairs, pair{key, value})
			}
		}
		conf := withDefaults(step.PMI2Conf{})
		one, two := &spawnRequest{}, &spawnRequest{}
		_, err1 := one.take1(m, &conf)
		for _, c := range []struct {
			s   *spawnRequest
			err error
		}{{one, err1}, {two, two.take2(m)}} {
			if c.err != nil {
				continue
			}
			if len(c.s.apps) == 0 || c.s.ntasks() < 1 || len(c.s.preput) > len(m.pairs) {
				t.Fatalf("%q: %+v", text, c.s)
			}
			for _, a := range c.s.apps {
				if a.Argv[0] == "" || len(a.Argv) > len(m.pairs)+1 {
					t.Fatalf("%q: %+v", text, a)
				}
			}
		}
	})
}
