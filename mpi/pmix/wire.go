package pmix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"stepd/internal/wire"
)

// writer appends fields in the form of pmixhost/protocol.h.
type writer struct{ wire.Writer }

// i32 is for statuses, which are negative.
func (w *writer) i32(n int) { w.U32(uint32(int32(n))) }

func (w *writer) flag(set bool) {
	var n uint32
	if set {
		n = 1
	}
	w.U32(n)
}

func (w *writer) proc(p proc) {
	w.Str(p.nspace)
	w.U32(p.rank)
}

// list appends a count and that many elements.
func list[T any](w *writer, all []T, one func(T)) {
	w.U32(uint32(len(all)))
	for _, e := range all {
		one(e)
	}
}

// reader takes fields from a frame; the first one that is missing sets err and
// all later ones are zero.
type reader struct {
	wire.Reader
	// spend is asked before so many infos are read, which take far more room than
	// their bytes; nil allows them all.
	spend func(infos int) error
}

func (r *reader) i32() int { return int(int32(r.U32())) }

func (r *reader) str() string {
	s := string(r.Bytes())
	if strings.IndexByte(s, 0) >= 0 && r.Err == nil {
		r.Err = fmt.Errorf("a string of it holds a zero")
	}
	return s
}

func (r *reader) proc() proc { return proc{r.str(), r.U32()} }

// count is what elements would read as their count, which it leaves where it is.
func (r *reader) count() uint32 {
	if r.Err != nil || len(r.B) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(r.B)
}

// done is the error of a frame that was read to its end.
func (r *reader) done() error {
	if r.Err == nil && len(r.B) > 0 {
		return fmt.Errorf("%d bytes are left over", len(r.B))
	}
	return r.Err
}

// elements reads a count and that many elements of at least size bytes each.
func elements[T any](r *reader, size int, one func() T) []T {
	n := r.U32()
	if r.Err == nil && uint64(n)*uint64(size) > uint64(len(r.B)) {
		r.Err = wire.ErrShort
	}
	if r.Err != nil || n == 0 {
		return nil
	}
	all := make([]T, 0, n)
	for range n {
		all = append(all, one())
		if r.Err != nil {
			return nil
		}
	}
	return all
}

func (r *reader) strs() []string { return elements(r, 4, r.str) }
func (r *reader) procs() []proc  { return elements(r, 8, r.proc) }

// proc names a process: the step that it is of, and its rank there.
type proc struct {
	nspace string
	rank   uint32
}

func (p proc) String() string {
	if p.rank == rankWildcard {
		return p.nspace + ":*"
	}
	return fmt.Sprintf("%s:%d", p.nspace, p.rank)
}

// info is a key with its value (pmix_info_t).
type info struct {
	key   string
	flags uint32
	value value
}

// flagRequired: who gave the info wants an error where it is not understood
// (PMIX_INFO_REQD).
const flagRequired = 1

// value is a typed value. Which of the fields counts depends on typ; what the
// protocol does not carry has none.
type value struct {
	typ   uint16
	num   uint64 // every kind of number, signed ones in two's complement; bools
	text  string
	bytes []byte
	proc  proc
	pinfo procInfo
	usec  uint64 // of a vTimeval
	// bare: it came without a value, of a type that the protocol has no form for.
	bare  bool
	array array
}

// array is the value of a vDataArray: one of the lists, by elem.
type array struct {
	elem  uint16
	infos []info
	procs []proc
	texts []string
	pinfo []procInfo
	nums  []uint32
}

// procInfo is a row of a table of processes (pmix_proc_info_t).
type procInfo struct {
	proc     proc
	host     string
	program  string
	pid      int64
	exitCode int64
	state    uint32
}

func boolean(b bool) value {
	v := value{typ: vBool}
	if b {
		v.num = 1
	}
	return v
}

func text(s string) value       { return value{typ: vString, text: s} }
func number32(n int) value      { return value{typ: vUint32, num: uint64(n)} }
func number16(n int) value      { return value{typ: vUint16, num: uint64(n)} }
func rankOf(n uint32) value     { return value{typ: vProcRank, num: uint64(n)} }
func procOf(p proc) value       { return value{typ: vProc, proc: p} }
func infosOf(all ...info) value { return value{typ: vDataArray, array: array{elem: vInfo, infos: all}} }
func table(all []procInfo) value {
	return value{typ: vDataArray, array: array{elem: vProcInfo, pinfo: all}}
}
func kv(key string, v value) info { return info{key: key, value: v} }

// integer is the number that the value is, whatever its width; ok is false for
// what is none, or does not fit.
func (v value) integer() (n int, ok bool) {
	switch v.typ {
	case vByte, vSize, vUint, vUint8, vUint16, vUint32, vUint64, vProcRank, vPersist, vDataRange, vProcState, vScope:
		return int(v.num), v.num <= math.MaxInt
	case vPID, vInt, vInt8, vInt16, vInt32, vInt64, vStatus, vTime:
		return int(int64(v.num)), true
	}
	return 0, false
}

func (w *writer) info(i info) {
	w.Str(i.key)
	w.U32(i.flags)
	w.value(i.value)
}

func (w *writer) infos(all []info) { list(w, all, w.info) }

func (w *writer) value(v value) {
	w.U16(v.typ)
	w.Sized(func() {
		if v.bare {
			return
		}
		switch v.typ {
		case vUndef:
		case vString, vProcNspace:
			w.Str(v.text)
		case vByteObject:
			w.Bytes(v.bytes)
		case vProc:
			w.proc(v.proc)
		case vProcInfo:
			w.procInfo(v.pinfo)
		case vDataArray:
			w.array(v.array)
		case vTimeval:
			w.U64(v.num)
			w.U64(v.usec)
		case vEnvar:
			name, val, _ := strings.Cut(v.text, "=")
			w.Str(name)
			w.Str(val)
			w.U32(uint32(v.num))
		default:
			w.U64(v.num)
		}
	})
}

func (w *writer) procInfo(p procInfo) {
	w.proc(p.proc)
	w.Str(p.host)
	w.Str(p.program)
	w.U64(uint64(p.pid))
	w.U64(uint64(p.exitCode))
	w.U32(p.state)
}

func (w *writer) array(a array) {
	w.U16(a.elem)
	switch a.elem {
	case vInfo:
		w.infos(a.infos)
	case vProc:
		list(w, a.procs, w.proc)
	case vString:
		list(w, a.texts, w.Str)
	case vProcInfo:
		list(w, a.pinfo, w.procInfo)
	case vUint32, vProcRank:
		list(w, a.nums, w.U32)
	default:
		w.U32(0)
	}
}

// The least that an info and a procInfo take in a frame.
const (
	infoMin     = 14
	procInfoMin = 36
)

func (r *reader) infos() []info { return r.infosAt(0) }

func (r *reader) infosAt(depth int) []info {
	if n := int(r.count()); r.spend != nil && r.Err == nil && n <= len(r.B)/infoMin {
		r.Err = r.spend(n)
	}
	return elements(r, infoMin, func() info {
		i := info{key: r.str(), flags: r.U32()}
		i.value = r.value(depth)
		return i
	})
}

// value reads one; depth counts the arrays around it. A type that the protocol
// has no form for has a place without a value.
func (r *reader) value(depth int) value {
	v := value{typ: r.U16()}
	in := reader{Reader: wire.Reader{B: r.Bytes(), Err: r.Err}, spend: r.spend}
	if in.Err != nil || len(in.B) == 0 {
		v.bare = in.Err == nil && v.typ != vUndef
		return v
	}
	switch v.typ {
	case vUndef:
	case vString, vProcNspace:
		v.text = in.str()
	case vByteObject:
		v.bytes = in.Bytes()
	case vProc:
		v.proc = in.proc()
	case vProcInfo:
		v.pinfo = in.procInfo()
	case vDataArray:
		v.array = in.array(depth + 1)
	case vTimeval:
		v.num, v.usec = in.U64(), in.U64()
	case vEnvar:
		v.text = in.str() + "=" + in.str()
		v.num = uint64(in.U32())
	default:
		v.num = in.U64()
	}
	if err := in.done(); err != nil && r.Err == nil {
		r.Err = err
	}
	return v
}

func (r *reader) procInfo() procInfo {
	return procInfo{
		proc: r.proc(), host: r.str(), program: r.str(),
		pid: int64(r.U64()), exitCode: int64(r.U64()), state: r.U32(),
	}
}

var errDeep = errors.New("its arrays are too deep")

func (r *reader) array(depth int) array {
	if depth > pmixhostDepthMax && r.Err == nil {
		r.Err = errDeep
	}
	a := array{elem: r.U16()}
	switch a.elem {
	case vInfo:
		a.infos = r.infosAt(depth)
	case vProc:
		a.procs = r.procs()
	case vString:
		a.texts = r.strs()
	case vProcInfo:
		a.pinfo = elements(r, procInfoMin, r.procInfo)
	case vUint32, vProcRank:
		a.nums = elements(r, 4, r.U32)
	default:
		r.U32()
	}
	return a
}

// find is the first info of a key.
func find(all []info, key string) (value, bool) {
	for _, i := range all {
		if i.key == key {
			return i.value, true
		}
	}
	return value{}, false
}
