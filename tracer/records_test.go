package tracer

import (
	"testing"

	"tt-memtrace/bpf"
)

// What is lost of one hit does not become a part of another's.
func TestSentAhead(t *testing.T) {
	hit := func(pid, tid uint32, time uint64) origin { return origin{pid: pid, tid: tid, time: time} }
	for _, c := range []struct {
		name  string
		added []origin
		taken origin
		want  byte // the number of the record in added, from 1; 0: none
	}{
		{"none was sent", nil, hit(1, 1, 10), 0},
		{"its own", []origin{hit(1, 1, 10)}, hit(1, 1, 10), 1},
		{"the main record of an earlier hit was lost", []origin{hit(1, 1, 10), hit(1, 1, 20)}, hit(1, 1, 20), 2},
		{"and this one's own", []origin{hit(1, 1, 10)}, hit(1, 1, 20), 0},
		{"another thread's", []origin{hit(1, 2, 10)}, hit(1, 1, 10), 0},
		{"a thread of another process had this number", []origin{hit(1, 2, 10)}, hit(2, 2, 10), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sentAhead[[4]byte]{}
			for i, from := range c.added {
				s.add(from, []byte{byte(i + 1), 0, 0, 0})
			}
			got := s.take(c.taken)
			switch {
			case c.want == 0 && got != nil:
				t.Errorf("took record %d, want none", got[0])
			case c.want != 0 && (got == nil || got[0] != c.want):
				t.Errorf("took %v, want record %d", got, c.want)
			}
			if s.take(c.taken) != nil {
				t.Error("it was taken twice")
			}
		})
	}
	s := sentAhead[[4]byte]{}
	s.add(hit(1, 1, 10), []byte{1, 2, 3})
	if s.take(hit(1, 1, 10)) != nil {
		t.Error("a record that is too short was kept")
	}
	for tid := range uint32(5000) {
		s.add(hit(1, tid, 1), []byte{1, 0, 0, 0})
	}
	if len(s) > 1024 {
		t.Errorf("%d records are kept of threads that may have ended", len(s))
	}
}

// Each kind of record is taken by one feature.
func TestEveryRecordHasAFeature(t *testing.T) {
	r := runOf(newAttacher(&env{}), nil)
	takers := map[bpf.MemtraceTtKind]int{}
	for f := range featuresThat[recorder](r.core) {
		for _, k := range f.records() {
			takers[k.kind]++
		}
	}
	for kind := bpf.MemtraceTtKind(1); kind < bpf.MemtraceTtKindTT_KINDS; kind++ {
		if takers[kind] != 1 || r.kinds[kind].take == nil {
			t.Errorf("%d features take records of kind %d (%s)", takers[kind], kind, KindNames[kind])
		}
	}
}
