package pmi2

import (
	"fmt"
	"strings"
	"testing"

	"stepd/step"
)

// The golden conversations: what one rank asks, and what it is told.
func TestTalkPMI1(t *testing.T) {
	w := newWorld(t, 1, step.PMI2Conf{})
	f := w.ranks[0].init1()
	for _, c := range [][2]string{
		{"cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=256 vallen_max=1024"},
		{"cmd=get_appnum", "cmd=appnum rc=0 appnum=0"},
		{"cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=12.3"},
		{"cmd=get_universe_size", "cmd=universe_size rc=0 size=1"},
		{"cmd=get kvsname=12.3 key=PMI_process_mapping", "cmd=get_result rc=0 value=(vector,(0,1,1))"},
		{"cmd=get kvsname=12.3 key=a", "cmd=get_result rc=-1 msg=key_not_found value=unknown"},
		{"cmd=put kvsname=12.3 key=a value=b=c;", "cmd=put_result rc=0"},
		{"cmd=get kvsname=12.3 key=a", "cmd=get_result rc=0 value=b=c;"},
		{"cmd=barrier_in", "cmd=barrier_out rc=0"},
		{"cmd=get kvsname=12.3 key=a", "cmd=get_result rc=0 value=b=c;"},
		{"cmd=put kvsname=99.0 key=a value=b", `cmd=put_result rc=-1 msg=key_value_space_"99.0"_is_not_this_step's`},
		{"cmd=put kvsname=12.3 key=PMI_process_mapping value=b", "cmd=put_result rc=-1 msg=key_PMI_process_mapping_is_the_server's"},
		{"cmd=put kvsname=12.3 value=b", "cmd=put_result rc=-1 msg=empty_key"},
		{"cmd=publish_name service=s port=p#1$x", "cmd=publish_result rc=0 info=ok"},
		{"cmd=publish_name service=s port=q", `cmd=publish_result rc=-1 msg=cannot_publish_"s":_it_is_published_in_job_12_already info=fail`},
		{"cmd=lookup_name service=s", "cmd=lookup_result rc=0 info=ok port=p#1$x"},
		{"cmd=unpublish_name service=s", "cmd=unpublish_result rc=0 info=ok"},
		{"cmd=unpublish_name service=s", `cmd=unpublish_result rc=-1 msg=cannot_unpublish_"s":_it_is_not_published_in_job_12 info=fail`},
		{"cmd=lookup_name service=broken", "cmd=lookup_result rc=-1 msg=noded_has_gone info=fail"},
		{"cmd=lookup_name service=s", `cmd=lookup_result rc=-1 msg=service_"s"_is_not_published info=fail`},
		{"cmd=init pmi_version=1 pmi_subversion=1", `cmd=response_to_init rc=-1 msg=command_"init"_is_out_of_order:_running`},
		{"cmd=finalize", "cmd=finalize_ack rc=0"},
	} {
		f.ask(c[0], c[1])
	}
	w.exit(0, 0)
	w.wantQuiet()
}

func TestTalkPMI2(t *testing.T) {
	w := newWorld(t, 1, step.PMI2Conf{})
	f := w.ranks[0].hello2()
	for _, c := range [][2]string{
		{"cmd=kvs-fence;", `cmd=kvs-fence-response;rc=1;errmsg=command "kvs-fence" is out of order: before fullinit;`},
		{"cmd=fullinit;pmijobid=12.3;pmirank=0;threaded=FALSE;",
			"cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=0;size=1;appnum=0;debugged=FALSE;pmiverbose=FALSE;"},
		{"cmd=fullinit;pmirank=0;", `cmd=fullinit-response;rc=1;errmsg=command "fullinit" is out of order: running;`},
		{"cmd=job-getid;thrid=0x7f01;", "cmd=job-getid-response;thrid=0x7f01;rc=0;jobid=12.3;"},
		{"cmd=kvs-get;jobid=12.3;srcid=-1;key=a;", "cmd=kvs-get-response;rc=0;found=FALSE;"},
		{"cmd=kvs-put;key=a;value=b;;=c;", "cmd=kvs-put-response;rc=0;"},
		{"cmd=kvs-fence;thrid=1;", "cmd=kvs-fence-response;thrid=1;rc=0;"},
		{"cmd=kvs-get;jobid=12.3;srcid=-1;key=a;", "cmd=kvs-get-response;rc=0;found=TRUE;value=b;;=c;"},
		{"cmd=kvs-get;key=a;\x00", "cmd=kvs-get-response;rc=0;found=TRUE;value=b;;=c;"},
		{"cmd=kvs-get;jobid=1.0;key=a;", `cmd=kvs-get-response;rc=3;errmsg=job "1.0" is not this step;`},
		{"cmd=kvs-get;key=PMI_process_mapping;", "cmd=kvs-get-response;rc=0;found=TRUE;value=(vector,(0,1,1));"},
		{"cmd=info-getnodeattr;key=x;wait=FALSE;", "cmd=info-getnodeattr-response;rc=0;found=FALSE;"},
		{"cmd=info-putnodeattr;key=x;value=1;", "cmd=info-putnodeattr-response;rc=0;"},
		{"cmd=info-putnodeattr;key=x;value=2;", "cmd=info-putnodeattr-response;rc=0;"},
		{"cmd=info-getnodeattr;key=x;wait=TRUE;", "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=2;"},
		{"cmd=info-getnodeattr;key=localRanks;", "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=0;"},
		{"cmd=info-putnodeattr;key=localRanks;value=2;", "cmd=info-putnodeattr-response;rc=4;errmsg=attribute localRanks is the server's;"},
		{"cmd=info-getjobattr;key=PMI_process_mapping;", "cmd=info-getjobattr-response;rc=0;found=TRUE;value=(vector,(0,1,1));"},
		{"cmd=info-getjobattr;key=universeSize;", "cmd=info-getjobattr-response;rc=0;found=TRUE;value=1;"},
		{"cmd=info-getjobattr;key=hasNameServ;", "cmd=info-getjobattr-response;rc=0;found=TRUE;value=TRUE;"},
		{"cmd=info-getjobattr;key=x;", "cmd=info-getjobattr-response;rc=0;found=FALSE;"},
		{"cmd=name-publish;name=s;port=p;infokeycount=0;", "cmd=name-publish-response;rc=0;"},
		{"cmd=name-lookup;name=s;infokeycount=0;", "cmd=name-lookup-response;rc=0;value=p;port=p;"},
		{"cmd=name-unpublish;name=s;infokeycount=0;", "cmd=name-unpublish-response;rc=0;"},
		{"cmd=name-lookup;name=s;infokeycount=0;", `cmd=name-lookup-response;rc=3;errmsg=service "s" is not published;`},
		{"cmd=ring;ring-count=1;ring-left=l;ring-right=r;", "cmd=ring-response;rc=0;ring-count=0;ring-left=r;ring-right=l;"},
		{"cmd=finalize;", "cmd=finalize-response;rc=0;"},
	} {
		f.ask(c[0], c[1])
	}
	w.exit(0, 0)
	w.wantQuiet()
}

// What is refused is logged too, where the site may want to know.
func TestTalkRefusedAndLogged(t *testing.T) {
	for _, c := range []struct {
		name      string
		version   int
		say, want string
		log       string
	}{
		{"spawn 1", 1, "mcmd=spawn\nendcmd", "cmd=spawn_result rc=-1 msg=cannot_read_spawn:_it_has_no_totspawns_and_spawnssofar_that_fit", "cannot read spawn"},
		{"unknown 1", 1, "cmd=frobnicate x=y", "cmd=frobnicate_result rc=-1 msg=unknown_command", `unknown PMI-1 command "frobnicate"`},
		{"create_kvs", 1, "cmd=create_kvs", "cmd=newkvs rc=-1 msg=unknown_command", `"create_kvs"`},
		{"bare word", 1, "cmd=put key=a value=b c", `cmd=put_result rc=-1 msg=cannot_parse_PMI-1_word_"c":_want_key=value`, `word "c"`},
		{"spawn 2", 2, "cmd=spawn;ncmds=1;subcmd=/bin/true;maxprocs=0;", `cmd=spawn-response;rc=3;errmsg=cannot spawn "/bin/true": maxprocs is no number from 1 to 65533;`, "cannot spawn"},
		{"connect 2", 2, "cmd=job-connect;jobid=1.0;", "cmd=job-connect-response;rc=14;errmsg=job-connect is not supported by mpi/pmi2;", "not supported"},
		{"unknown 2", 2, "cmd=\x1b[31m;thrid=7;", "cmd=\x1b[31m-response;thrid=7;rc=14;errmsg=unknown command;", `unknown PMI-2 command "\x1b[31m"`},
		{"bad pair", 2, "cmd=kvs-put;key;", `cmd=kvs-put-response;rc=3;errmsg=cannot parse PMI-2 pair "key": want key=value;;;`, `pair "key"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, step.PMI2Conf{})
			f := w.ranks[0]
			if c.version == 1 {
				f.init1()
			} else {
				f.init2()
			}
			f.ask(c.say, c.want)
			w.wantLog("mpi/pmi2: rank 0: ", c.log)
			if c.version == 1 { // and the rank goes on
				f.ask("cmd=finalize", "cmd=finalize_ack rc=0")
			} else {
				f.ask("cmd=finalize;", "cmd=finalize-response;rc=0;")
			}
			w.exit(0, 0)
			w.wantQuiet()
		})
	}
}

// Each limit's error names the limit.
func TestTalkLimits(t *testing.T) {
	conf := step.PMI2Conf{KeyBytes1: 8, KeyBytes2: 6, ValueBytes: 10, KeysPerRank: 3, TotalBytes: 4*entryOverhead + 20, WaitsPerRank: 1}
	long := strings.Repeat("v", 11)
	t.Run("PMI-1", func(t *testing.T) {
		w := newWorld(t, 2, conf)
		f, g := w.ranks[0].init1(), w.ranks[1].init1()
		f.ask("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=8 vallen_max=10")
		f.ask("cmd=put key=123456789 value=b", "cmd=put_result rc=-1 msg=key_of_9_bytes:_more_than_8_(PMI1KeyBytes)")
		f.ask("cmd=put key=a value="+long, "cmd=put_result rc=-1 msg=value_of_11_bytes:_more_than_10_(PMI2ValueBytes)")
		f.ask("cmd=publish_name service=s port="+long, "cmd=publish_result rc=-1 msg=value_of_11_bytes:_more_than_10_(PMI2ValueBytes) info=fail")
		f.ask("cmd=put key=a value=1", "cmd=put_result rc=0")
		f.ask("cmd=put key=b value=1", "cmd=put_result rc=0")
		f.ask("cmd=put key=s value=1", "cmd=put_result rc=0")
		full := "cmd=put_result rc=-1 msg=rank_0_holds_3_keys:_the_limit_(PMI2KeysPerRank)"
		f.ask("cmd=put key=c value=1", full)
		f.ask("cmd=put key=a value=2", "cmd=put_result rc=0") // a new value is no new key
		g.ask("cmd=put key=d value=1", "cmd=put_result rc=0")
		g.ask("cmd=put key=e value=1", fmt.Sprintf(
			"cmd=put_result rc=-1 msg=the_step's_ranks_store_%d_bytes:_%d_more_pass_the_limit_%d_(PMI2TotalBytes)",
			4*entryOverhead+8, entryOverhead+2, 4*entryOverhead+20))
		g.ask("cmd=get key=d", "cmd=get_result rc=0 value=1")
	})
	t.Run("PMI-2", func(t *testing.T) {
		w := newWorld(t, 1, conf)
		f := w.ranks[0].init2()
		f.ask("cmd=kvs-put;key=1234567;value=b;", "cmd=kvs-put-response;rc=5;errmsg=key of 7 bytes: more than 6 (PMI2KeyBytes);")
		f.ask("cmd=kvs-put;key=a;value="+long+";", "cmd=kvs-put-response;rc=7;errmsg=value of 11 bytes: more than 10 (PMI2ValueBytes);")
		f.ask("cmd=info-putnodeattr;key=1234567;value=b;", "cmd=info-putnodeattr-response;rc=5;errmsg=key of 7 bytes: more than 6 (PMI2KeyBytes);")
		f.ask("cmd=ring;ring-left="+long+";ring-right=;", "cmd=ring-response;rc=7;errmsg=ring value of 11 bytes: more than 10 (PMI2ValueBytes);")
		f.say("cmd=info-getnodeattr;key=x;wait=TRUE;thrid=1;")
		f.ask("cmd=info-getnodeattr;key=y;wait=TRUE;thrid=2;",
			"cmd=info-getnodeattr-response;thrid=2;rc=2;errmsg=rank 0 waits for 1 attributes: the limit (PMI2WaitsPerRank);")
		// Another thread of the same rank can still put what the first waits for.
		f.say("cmd=info-putnodeattr;key=x;value=1;thrid=3;")
		f.want("cmd=info-getnodeattr-response;thrid=1;rc=0;found=TRUE;value=1;")
		f.want("cmd=info-putnodeattr-response;thrid=3;rc=0;")
	})
}

// Keys and values hold every byte that their protocol can carry.
func TestTalkEveryByte(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	one, two := w.ranks[0].init1(), w.ranks[1].init2()
	for b := range 256 {
		char := string([]byte{byte(b)})
		if char != " " && char != "\n" {
			one.ask("cmd=put key=k"+char+" value=v"+char, "cmd=put_result rc=0")
			one.ask("cmd=get key=k"+char, "cmd=get_result rc=0 value=v"+char)
		}
		if char == ";" {
			char = ";;"
		}
		two.ask("cmd=kvs-put;key="+char+";value="+char+";", "cmd=kvs-put-response;rc=0;")
		two.ask("cmd=kvs-get;key="+char+";", "cmd=kvs-get-response;rc=0;found=TRUE;value="+char+";")
	}
	w.wantQuiet()
}

// What cuts a rank off: the log names the rank and shows what it sent.
func TestTalkCutOff(t *testing.T) {
	init1 := "cmd=init pmi_version=1 pmi_subversion=1\n"
	init2 := "cmd=init pmi_version=2 pmi_subversion=0\n"
	full := "    25cmd=fullinit;pmirank=0;\x00\x00"
	for _, c := range []struct{ name, send, log string }{
		{"garbage", "\x00\xff\x1b[2J\n", `cannot parse PMI-1 word "\x00\xff\x1b[2J"`},
		{"no init", "cmd=get_maxes\n", `cannot begin with PMI command "get_maxes": want cmd=init`},
		{"multi-line init", "mcmd=init\n", "cannot begin with"},
		{"version 3", "cmd=init pmi_version=3\n", `cannot speak PMI version "3": want 1 or 2`},
		{"no version", "cmd=init\n", `cannot speak PMI version ""`},
		{"huge version", "cmd=init pmi_version=99999999999\n", "cannot speak PMI version"},
		{"endless line", strings.Repeat("x", 70000), "longer than 65536 bytes (PMI2FrameBytes)"},
		{"cut line", "cmd=in", `cannot read PMI-1 line: cut after 6 bytes: "cmd=in"`},
		{"unreadable line", init1 + "hello\n", `cannot parse PMI-1 word "hello"`},
		{"after finalize", init1 + "cmd=finalize\ncmd=get_maxes\n", `PMI-1 command "get_maxes" after finalize`},
		{"barrier twice", init1 + "cmd=barrier_in\ncmd=barrier_in\n", "rank 0 waits in a fence already"},
		{"cut spawn", init1 + "mcmd=spawn\nnprocs=1\n", ""},
		{"bad spawn", init1 + "mcmd=spawn\nnprocs\nendcmd\n", `cannot parse PMI-1 spawn line "nprocs"`},
		{"long spawn", init1 + "mcmd=spawn\n" + strings.Repeat("arg="+strings.Repeat("x", 1000)+"\n", 70), "more than 65536 bytes (PMI2FrameBytes)"},
		{"many lines", init1 + "mcmd=spawn\n" + strings.Repeat("a=b\n", 1025), "more than 1024 lines (PMI2Attributes)"},
		{"length that is text", init2 + "cmd=fullinit;", `cannot parse PMI-2 frame length "cmd=fu"`},
		{"length over the limit", init2 + "065537", "cannot read PMI-2 frame of 65537 bytes: want 1 to 65536 (PMI2FrameBytes)"},
		{"cut frame", init2 + "    20cmd=fullinit;", "cannot read PMI-2 frame: cut after 19 bytes"},
		{"frame without a command", init2 + "     4a=b;", "does not begin with cmd="},
		{"after finalize 2", init2 + full + "    13cmd=finalize;    14cmd=job-getid;", `PMI-2 command "job-getid" after finalize`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2, step.PMI2Conf{})
			f, other := w.ranks[0], w.ranks[1].init1()
			go func() { // a pipe of garbage may be longer than the socket takes
				_, _ = f.file.WriteString(c.send)
				w.plugin.TaskExited(0, step.ExitedWith(1))
			}()
			if c.log != "" {
				w.wantLog("rank 0: connection closed: ", c.log)
			}
			other.ask("cmd=get_appnum", "cmd=appnum rc=0 appnum=0")
		})
	}
}

// A rank cannot be another one, nor of another step; a second, honest try is
// taken.
func TestTalkIdentity(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	f := w.ranks[0].hello2()
	f.ask("cmd=fullinit;pmijobid=12.3;pmirank=1;", `cmd=fullinit-response;rc=3;errmsg=rank 0 claims to be rank "1";`)
	w.wantLog(`rank 0 claims to be rank "1"`)
	f.ask("cmd=fullinit;pmijobid=12.3;pmirank=00;", `cmd=fullinit-response;rc=3;errmsg=rank 0 claims to be rank "00";`)
	w.wantLog(`"00"`)
	f.ask("cmd=fullinit;pmijobid=1.0;pmirank=0;", `cmd=fullinit-response;rc=3;errmsg=rank 0 claims to be of job "1.0", not 12.3;`)
	w.wantLog(`job "1.0"`)
	f.say("cmd=fullinit;pmijobid=12.3;pmirank=0;")
	if got := f.receive(); !strings.Contains(got, ";rc=0;") {
		t.Errorf("an honest rank got %q", got)
	}
	w.wantQuiet()
}

// A rank's complaints cannot fill the log.
func TestTalkLogIsBounded(t *testing.T) {
	w := newWorld(t, 1, step.PMI2Conf{})
	f := w.ranks[0].init1()
	for range 100 {
		f.ask("cmd=x", "cmd=x_result rc=-1 msg=unknown_command")
	}
	w.close()
	if n := len(w.logs); n != logsPerRank {
		t.Errorf("%d lines, want %d", n, logsPerRank)
	}
	for range logsPerRank - 1 {
		<-w.logs
	}
	if last := <-w.logs; !strings.Contains(last, "further messages of this rank are dropped") {
		t.Errorf("the last line is %q", last)
	}
}
