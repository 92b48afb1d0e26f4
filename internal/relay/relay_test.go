package relay

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tt-memtrace/bpf"
)

const ring = 4096

func begin(t *testing.T) (*Users[int], *Inbox[int]) {
	t.Helper()
	u, started := &Users[int]{}, 0
	u.Begin(func() {}, func(*Inbox[int]) { started++ })
	if started != 1 || len(u.All()) != 1 {
		t.Fatalf("%d runs were started, there are %d", started, len(u.All()))
	}
	return u, u.All()[0]
}

// Records of any size come out as they went in.
func TestRecordsOfAParcel(t *testing.T) {
	var want [][]byte
	var records []byte
	for size := range 40 {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		want = append(want, b)
		records = Append(records, b)
		if len(records)%HeadBytes != 0 {
			t.Fatalf("after %d bytes, the next record is at %d", size, len(records))
		}
	}
	for _, b := range want {
		var got []byte
		if got, records = Next(records); !bytes.Equal(got, b) {
			t.Fatalf("%x, not %x", got, b)
		}
	}
	if len(records) != 0 {
		t.Errorf("%d bytes are left", len(records))
	}
}

// Each queue is bounded, and all queues together are. After a loss a queue takes no record until it is half empty, so
// that the lost records are consecutive.
func TestRoom(t *testing.T) {
	const kind, size = 2, 256
	u, in := begin(t)
	record := make([]byte, size)
	fill := func(in *Inbox[int]) (taken int) {
		for ; in.Room(0, size, ring, kind); taken++ {
			in.Hand(Parcel{Records: record})
		}
		return taken
	}
	if n := fill(in); n != ring/size {
		t.Errorf("%d records found room, not %d", n, ring/size)
	}
	list := in.Next(time.Time{})
	for i := range list {
		if full := in.queued.Load() > ring/2; in.Room(0, size, ring, kind) == full {
			t.Errorf("room with %d bytes: %v", in.queued.Load(), !full)
		}
		in.Takes(&list[i])
		in.Taken(&list[i])
	}
	lost := in.Lost()[kind]
	if lost == 0 || u.Lost()[kind] != lost {
		t.Errorf("%d records were lost here, %d of all", lost, u.Lost()[kind])
	}
	if bytes, since, stuck := in.Waiting(); bytes != 0 || since != 0 || stuck != 0 {
		t.Errorf("%d bytes wait, for %v, %v of it without progress", bytes, since, stuck)
	}
	all := 0
	for range 2 * maxQueues {
		other := NewInbox(u)
		all += fill(other)
	}
	if most := maxQueues * ring / size; all > most+1 || all < most {
		t.Errorf("%d records found room for all runs, not %d", all, most)
	}
}

// A pass that was asked for ends with a parcel, also if it found nothing. One that was not asked for does not.
func TestAsk(t *testing.T) {
	_, in := begin(t)
	if in.Begin() {
		t.Error("it was asked for")
	}
	in.End(Parcel{})
	asked := in.Ask()
	if !in.Begin() {
		t.Error("it was not asked for")
	}
	during := in.Ask() // what is in the ring by now may come after this pass
	in.End(Parcel{})
	list := in.Next(time.Time{})
	if len(list) != 1 || list[0].Passed != asked || during <= asked {
		t.Errorf("asked for %d and %d: %+v", asked, during, list)
	}
}

// Done is called when every run has settled, and once.
func TestSettle(t *testing.T) {
	var done atomic.Int32
	w := &Wanted{Done: func() { done.Add(1) }}
	w.Need(2)
	if w.Settle(); done.Load() != 0 {
		t.Error("one of two was enough")
	}
	if w.Settle(); done.Load() != 1 {
		t.Errorf("it was told %d times", done.Load())
	}
}

// A run that takes nothing in is stuck; one that goes on is behind.
func TestStuck(t *testing.T) {
	_, in := begin(t)
	in.Hand(Parcel{Records: Append(nil, make([]byte, 8))})
	list := in.Next(time.Time{})
	in.Takes(&list[0])
	in.Waiting() // the drain looks, too
	wait := time.NewTimer(50 * time.Millisecond)
	defer wait.Stop()
	<-wait.C
	if _, since, stuck := in.Waiting(); since < 50*time.Millisecond || stuck < 50*time.Millisecond {
		t.Errorf("it waits for %v, %v of it without progress", since, stuck)
	}
	in.GoesOn()
	if _, since, stuck := in.Waiting(); since < 50*time.Millisecond || stuck >= since {
		t.Errorf("it goes on: it waits for %v, %v of it without progress", since, stuck)
	}
}

// A fork has its parent's run, and any other process its user's. Users beyond maxRuns share one.
func TestUsers(t *testing.T) {
	u, first := begin(t)
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = child.Wait()
	}()
	own := u.Of(uint32(os.Getpid()))
	if os.Geteuid() == 0 && own != first {
		t.Error("root has two runs")
	}
	if in := u.Of(uint32(child.Process.Pid)); in != own || u.Another(uint32(child.Process.Pid), own) {
		t.Error("a process of the same user has another run")
	}
	u.mu.Lock()
	for id := range uint32(2 * maxRuns) {
		u.byUser(1000 + id)
	}
	if a, b := u.byUser(1000+maxRuns), u.byUser(1001+maxRuns); a != b || a == u.byUser(1000) {
		t.Error("who shares a run is wrong")
	}
	runs := len(u.inboxes)
	u.mu.Unlock()
	if runs != maxRuns+1 || !slices.Contains(u.All(), own) {
		t.Errorf("%d runs", runs)
	}
	u.End()
	u.Ended(uint32(child.Process.Pid))
	if u.Of(uint32(child.Process.Pid)) != first {
		t.Error("after the end, a run was started")
	}
}

// Kinds that are unknown are not counted, and do no harm.
func TestLossOfAnUnknownKind(t *testing.T) {
	u, in := begin(t)
	for in.Room(ring, 1, ring, uint8(bpf.MemtraceTtKindTT_KINDS)) {
		t.Error("it found room")
	}
	if u.Lost() != [bpf.MemtraceTtKindTT_KINDS]uint64{} {
		t.Errorf("%v", u.Lost())
	}
}
