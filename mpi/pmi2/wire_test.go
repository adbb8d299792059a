package pmi2

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func TestParseLine(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       message
		wantErr    string
	}{
		{name: "init", line: "cmd=init pmi_version=1 pmi_subversion=1",
			want: message{cmd: "init", pairs: []pair{{"pmi_version", "1"}, {"pmi_subversion", "1"}}}},
		{name: "no attributes", line: "cmd=barrier_in", want: message{cmd: "barrier_in"}},
		{name: "spaces around", line: "  cmd=get   key=a ", want: message{cmd: "get", pairs: []pair{{"key", "a"}}}},
		{name: "value with equals signs", line: "cmd=put key=a value=b=c==",
			want: message{cmd: "put", pairs: []pair{{"key", "a"}, {"value", "b=c=="}}}},
		{name: "empty value", line: "cmd=put key= value=x", want: message{cmd: "put", pairs: []pair{{"key", ""}, {"value", "x"}}}},
		{name: "bytes", line: "cmd=put key=\x00\x01\t\xff;", want: message{cmd: "put", pairs: []pair{{"key", "\x00\x01\t\xff;"}}}},
		{name: "multi", line: "mcmd=spawn", want: message{cmd: "spawn", multi: true}},
		{name: "empty", line: "", wantErr: "no command"},
		{name: "blank", line: "   ", wantErr: "no command"},
		{name: "no command", line: "key=a", wantErr: "does not begin with cmd="},
		{name: "empty command", line: "cmd= key=a", wantErr: "does not begin with cmd="},
		{name: "bare word first", line: "hello", wantErr: `cannot parse PMI-1 word "hello"`},
		{name: "bare word later", line: "cmd=put key=a value=b c", want: message{cmd: "put", pairs: []pair{{"key", "a"}, {"value", "b"}}},
			wantErr: `cannot parse PMI-1 word "c": want key=value`},
		{name: "no key", line: "cmd=put =b", want: message{cmd: "put"}, wantErr: `"=b"`},
		{name: "too many", line: "cmd=x a=1 b=2 c=3 d=4", want: message{cmd: "x", pairs: []pair{{"a", "1"}, {"b", "2"}, {"c", "3"}}},
			wantErr: "more than 3 attributes (PMI2Attributes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseLine(c.line, 3)
			checkParsed(t, got, err, c.want, c.wantErr)
		})
	}
}

func TestParseFrame(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		want        message
		wantErr     string
	}{
		{name: "fullinit", frame: "cmd=fullinit;pmijobid=1.0;pmirank=0;threaded=FALSE;",
			want: message{cmd: "fullinit", pairs: []pair{{"pmijobid", "1.0"}, {"pmirank", "0"}, {"threaded", "FALSE"}}}},
		{name: "bytes behind the end", frame: "cmd=finalize;\x00garbage", want: message{cmd: "finalize"}},
		{name: "doubled semicolons", frame: "cmd=kvs-put;key=a;;b;value=;;;;;",
			want: message{cmd: "kvs-put", pairs: []pair{{"key", "a;b"}, {"value", ";;"}}}},
		{name: "value ends in a semicolon", frame: "cmd=x;a=b;;;c=d;",
			want: message{cmd: "x", pairs: []pair{{"a", "b;"}, {"c", "d"}}}},
		{name: "value with equals signs", frame: "cmd=x;a==;", want: message{cmd: "x", pairs: []pair{{"a", "="}}}},
		{name: "every other byte", frame: "cmd=x;a=\x00\n \xff;", want: message{cmd: "x", pairs: []pair{{"a", "\x00\n \xff"}}}},
		{name: "empty", frame: "", wantErr: "no command that ends in ';'"},
		{name: "no end", frame: "cmd=finalize", wantErr: "no command that ends in ';'"},
		{name: "only semicolons", frame: ";;;;", wantErr: "no command"},
		{name: "empty pair", frame: "cmd=x;a=b; ;", want: message{cmd: "x", pairs: []pair{{"a", "b"}}}, wantErr: `cannot parse PMI-2 pair " "`},
		{name: "no command", frame: "key=a;cmd=x;", wantErr: "does not begin with cmd="},
		{name: "no key", frame: "cmd=x;=a;", want: message{cmd: "x"}, wantErr: `"=a"`},
		{name: "too many", frame: "cmd=x;a=1;b=2;c=3;d=4;", want: message{cmd: "x", pairs: []pair{{"a", "1"}, {"b", "2"}, {"c", "3"}}},
			wantErr: "more than 3 attributes (PMI2Attributes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseFrame(c.frame, 3)
			checkParsed(t, got, err, c.want, c.wantErr)
		})
	}
}

func checkParsed(t *testing.T, got message, err error, want message, wantErr string) {
	t.Helper()
	if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
		t.Fatalf("error %v, want one with %q", err, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestGoldenAnswers(t *testing.T) {
	asked := message{cmd: "kvs-get", pairs: []pair{{"thrid", "0x7f"}}}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"line", line1("get_result", pair{"rc", "0"}, pair{"value", "a=b"}), "cmd=get_result rc=0 value=a=b\n"},
		{"refused line", error1("put_result", refuse(codeKey, "no\nway out")), "cmd=put_result rc=-1 msg=no_way_out\n"},
		{"frame", frame2("x", pair{"a", "b;c"}), "    13cmd=x;a=b;;c;"},
		{"response", respond2(asked, pair{"found", "TRUE"}), "    48cmd=kvs-get-response;thrid=0x7f;rc=0;found=TRUE;"},
		{"refused frame", error2(asked, refuse(5, "a;b")), "    49cmd=kvs-get-response;thrid=0x7f;rc=5;errmsg=a;;b;"},
		{"long command", error2(message{cmd: strings.Repeat("x", 5000)}, refuse(14, "no")), "    37cmd=unknown-response;rc=14;errmsg=no;"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
		}
	}
}

func TestReader(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		name, input string
		frames      bool
		want        []string
		wantErr     string
	}{
		{name: "lines", input: "a\n\nbc\n", want: []string{"a", "", "bc"}, wantErr: "EOF"},
		{name: "line of the limit", input: long + "\n", want: []string{long}, wantErr: "EOF"},
		{name: "line over the limit", input: long + "x\n", wantErr: "longer than 100 bytes (PMI2FrameBytes)"},
		{name: "endless line", input: strings.Repeat("y", 10000), wantErr: "longer than 100 bytes (PMI2FrameBytes)"},
		{name: "cut line", input: "a\nbc", want: []string{"a"}, wantErr: `cut after 2 bytes: "bc"`},
		{name: "frames", frames: true, input: "3     abc     1x000002yz", want: []string{"abc", "x", "yz"}, wantErr: "EOF"},
		{name: "frame of the limit", frames: true, input: "   100" + long, want: []string{long}, wantErr: "EOF"},
		{name: "frame over the limit", frames: true, input: "   101", wantErr: "cannot read PMI-2 frame of 101 bytes: want 1 to 100 (PMI2FrameBytes)"},
		{name: "largest length", frames: true, input: "999999", wantErr: "FrameBytes"},
		{name: "empty frame", frames: true, input: "     0", wantErr: "frame of 0 bytes"},
		{name: "no length", frames: true, input: "      ", wantErr: "want 6 decimal digits"},
		{name: "signed length", frames: true, input: "    +1x", wantErr: "want 6 decimal digits"},
		{name: "negative length", frames: true, input: "    -1x", wantErr: "want 6 decimal digits"},
		{name: "hex length", frames: true, input: "0x0001x", wantErr: "want 6 decimal digits"},
		{name: "length with a gap", frames: true, input: "1 0   ", wantErr: "want 6 decimal digits"},
		{name: "text", frames: true, input: "cmd=fullinit;", wantErr: `cannot parse PMI-2 frame length "cmd=fu"`},
		{name: "cut length", frames: true, input: "  3", wantErr: "cannot read PMI-2 frame length: cut after 3 bytes"},
		{name: "cut frame", frames: true, input: "     3ab", wantErr: "cannot read PMI-2 frame: cut after 8 bytes"},
	} {
		for _, source := range []struct {
			name string
			src  io.Reader
		}{
			{"whole", strings.NewReader(c.input)},
			{"bytewise", iotest.OneByteReader(strings.NewReader(c.input))},
			{"end with data", iotest.DataErrReader(strings.NewReader(c.input))},
		} {
			t.Run(c.name+" "+source.name, func(t *testing.T) {
				in := &reader{src: source.src, max: 100}
				next := in.line
				if c.frames {
					next = in.frame
				}
				var got []string
				for {
					text, err := next()
					if err != nil {
						if !strings.Contains(err.Error(), c.wantErr) {
							t.Errorf("error %v, want one with %q", err, c.wantErr)
						}
						break
					}
					got = append(got, text)
				}
				if !reflect.DeepEqual(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	}
}

// A reader that one large frame had grown is small again afterwards.
func TestReaderGivesBack(t *testing.T) {
	big := frame2("x", pair{"a", strings.Repeat("y", 60000)})
	in := &reader{src: bytes.NewReader(big), max: 64 << 10}
	if _, err := in.frame(); err != nil {
		t.Fatal(err)
	}
	if len(in.buf) > keptBuffer {
		t.Errorf("the buffer keeps %d bytes", len(in.buf))
	}
}

// As MPICH 4.0.2 sent them: each six bytes longer than it is.
func TestSlack(t *testing.T) {
	const fullinit = "cmd=fullinit;pmijobid=7.0;pmirank=0;threaded=FALSE;"
	for _, c := range []struct{ first, frame, want string }{
		{fullinit + "\x00\x00\x00\x00\x00\x00", "cmd=kvs-fence;\x00;valu", "cmd=kvs-fence;"},
		{fullinit + ";a=b;;", "cmd=kvs-put;key=P0;value=ifname#192.0.2.2$;PB\x18\x99\xff\x7f", "cmd=kvs-put;key=P0;value=ifname#192.0.2.2$;"},
		{fullinit + "\x00", "cmd=kvs-fence;\x00", "cmd=kvs-fence;"},
		{fullinit, "cmd=kvs-get;key=a;", "cmd=kvs-get;key=a;"}, // Slurm's is exact
		{fullinit + "123456", "cmd=kvs-get;key=abcdefg", "cmd=kvs-get;key=abcdefg"},
		{"cmd=fullinit;pmirank=0;\x00\x00", "cmd=kvs-get;key=a;\x00", "cmd=kvs-get;key=a;\x00"},
		{fullinit + "1234567", "a;", "a;"},
		{fullinit + "123456", ";", ";"},
	} {
		if got := trimSlack(c.frame, slackOf(c.first)); got != c.want {
			t.Errorf("after %q: %q is %q, want %q", c.first, c.frame, got, c.want)
		}
	}
}

func FuzzLine(f *testing.F) {
	for _, seed := range []string{"cmd=init pmi_version=1 pmi_subversion=1", "cmd=put kvsname=k key=a value=b=c", "mcmd=spawn", "", "=", "cmd==", " cmd=x  y=z "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseLine(line, 8)
		if len(m.pairs) > 8 {
			t.Fatalf("%d attributes", len(m.pairs))
		}
		if err != nil || m.multi || strings.Contains(line, "\n") {
			return
		}
		again, err := parseLine(strings.TrimSuffix(string(line1(m.cmd, m.pairs...)), "\n"), 8)
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v was written and read as %+v, %v", m, again, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, seed := range []string{"    10cmd=a;b=c;", "6     cmd=a;", "999999", "    13cmd=x;a=b;;c;", "     9cmd=a;\x00\x00\x00", "000001;"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &reader{src: bytes.NewReader(data), max: 4096}
		for {
			text, err := in.frame()
			if err != nil {
				return
			}
			m, err := parseFrame(text, 8)
			if len(m.pairs) > 8 {
				t.Fatalf("%d attributes", len(m.pairs))
			}
			if err != nil {
				continue
			}
			for _, p := range m.pairs {
				if strings.Contains(p.key, ";") {
					return // written unescaped: no key of ours holds one
				}
			}
			again := &reader{src: bytes.NewReader(frame2(m.cmd, m.pairs...)), max: 16384}
			text, err = again.frame()
			if err != nil {
				t.Fatal(err)
			}
			if back, err := parseFrame(text, 8); err != nil || !reflect.DeepEqual(back, m) {
				t.Fatalf("%+v was written and read as %+v, %v", m, back, err)
			}
		}
	})
}
