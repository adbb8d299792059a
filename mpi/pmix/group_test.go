package pmix

import "testing"

// A group has a number of its own where it asks for one, and its members by name.
func TestGroup(t *testing.T) {
	p := unstarted(t)
	construct := func(op uint32, who proc, infos ...info) (int, []info) {
		return asked(t, p, upGroup, func(w *writer) {
			w.U32(op)
			w.Str("g")
			list(w, []proc{who}, w.proc)
			w.infos(infos)
		})
	}
	all := proc{p.world.nspace, rankWildcard}
	numbers := map[uint64]bool{}
	for range 3 {
		code, got := construct(groupConstruct, all, kv(keyGroupAssign, boolean(true)), kv(keyGroupData, value{typ: vByteObject, bytes: []byte("ends")}))
		number, _ := find(got, keyGroupContext)
		members, _ := find(got, keyGroupMembers)
		data, _ := find(got, keyGroupData)
		if code != stSuccess || number.typ != vSize || len(members.array.procs) != 4 || string(data.bytes) != "ends" {
			t.Errorf("status %d, %+v", code, got)
		}
		numbers[number.num] = true
	}
	if len(numbers) != 3 {
		t.Errorf("three groups have the numbers %v", numbers)
	}
	if code, got := construct(groupConstruct, all); code != stSuccess || len(got) != 1 {
		t.Errorf("without a number: status %d, %+v", code, got)
	}
	if code, got := construct(1, all); code != stSuccess || len(got) != 0 {
		t.Errorf("its end: status %d, %+v", code, got)
	}
	if code, _ := construct(groupConstruct, proc{"slurm.pmix.12.4", 0}); code != stNotSupported {
		t.Errorf("of another step: status %d", code)
	}
	// Each node adds its part, and the first one's number counts.
	part := func(number uint64, data string) []byte {
		w := &writer{}
		w.U64(number)
		w.Bytes([]byte(data))
		return w.B
	}
	got, err := (meetings{p}).groupInfos([][]byte{part(7, "a"), part(9, "b")}, []proc{all}, true)
	number, _ := find(got, keyGroupContext)
	data, _ := find(got, keyGroupData)
	if err != nil || number.num != 7 || string(data.bytes) != "ab" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := (meetings{p}).groupInfos([][]byte{{1}}, nil, true); err == nil {
		t.Error("a part that is cut short was taken")
	}
}
