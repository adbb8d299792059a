package pmi2

import (
	"io"
	"testing"
	"time"

	"stepd/step"
)

// FuzzConnection lets rank 0 send anything at all. The others put, get and
// fence: their own keys are right, and they never hang without a word: either
// their fence ends, or the step is ended.
func FuzzConnection(f *testing.F) {
	init1 := "cmd=init pmi_version=1 pmi_subversion=1\n"
	init2 := "cmd=init pmi_version=2 pmi_subversion=0\n    25cmd=fullinit;pmirank=0;\x00\x00"
	for _, seed := range []string{
		"", "\n", "cmd=init pmi_version=3\n", "\x00\xff\xfe",
		init1 + "cmd=put key=a value=b\ncmd=get key=a\ncmd=barrier_in\n",
		init1 + "cmd=put key=mine1 value=stolen\ncmd=finalize\n",
		init1 + "mcmd=spawn\ntotspawns=1\nspawnssofar=1\nendcmd\ncmd=abort exitcode=3\n",
		init1 + "cmd=publish_name service=a port=b\ncmd=barrier_in\ncmd=barrier_in\n",
		init2 + "    14cmd=kvs-fence;", init2 + "    45cmd=ring;ring-count=1;ring-left=a;ring-right=b;",
		init2 + "    38cmd=info-getnodeattr;key=x;wait=TRUE;x    13cmd=finalize;",
		init2 + "    41cmd=info-putnodeattr;key=x;value=1;;;    x", init2 + "999999",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t, 3, step.PMI2Conf{CloseGrace: time.Hour})
		go func() { // what is answered is read, as a real rank would
			_, _ = io.Copy(io.Discard, w.ranks[0].file)
		}()
		_, _ = w.ranks[0].file.Write(data) // cut off in the middle is fine
		one, two := w.ranks[1].init1(), w.ranks[2].init2()
		for _, rank := range []*fake{one, two} {
			rank.put("mine"+itoa(rank.n), "value")
			rank.get("mine"+itoa(rank.n), "value")
		}
		one.say("cmd=barrier_in")
		two.say("cmd=kvs-fence;")
		w.plugin.TaskExited(0, step.ExitedWith(1))

		passed := make(chan string, 2)
		go func() { passed <- one.receive() }()
		go func() { passed <- two.receive() }()
		for range 2 {
			select {
			case <-w.aborts:
				w.close()
				<-passed
				return
			case <-passed:
			case <-time.After(10 * time.Second):
				t.Fatalf("the ranks hang after %q", data)
			}
		}
	})
}
