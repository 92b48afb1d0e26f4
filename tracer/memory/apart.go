package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// forSearch, as the number of parts, asks a reader to search a process: vptrs follow, one
// word each. Its answer is how many bytes are in the buffer, and what they are. Each further
// request, whatever it says, has it go on.
const (
	forSearch         = 1<<32 - 1
	searchAnswerBytes = 16
)

// MaxVptrs is for how many words a process is searched at a time.
const MaxVptrs = 2048

const (
	searchGoesOn = iota // objects, and more may follow
	searchEnded         // the last of them
	searchTimeUp        // the last that there was time for
	searchFailed        // why
)

// objectBytes is what an object takes in an answer: its address, and above its bits the number
// of its vptr.
const (
	objectBytes = 8
	addressBits = 48
)

// findApart has a reader search the process.
func (p *Process) findApart(vptrs []uint64) (found Objects, err error) {
	if p.hung.Load() {
		return nil, ErrHung
	}
	var refused error
	err = p.user.searches.ask(p, func(r *reader) (err error) {
		found, refused, err = r.search(p.pid, vptrs)
		return err
	})
	if err := p.answered(err); err != nil {
		return nil, err
	}
	return found, refused
}

// search is refused where the process cannot be searched, or not in time. An error is the
// reader's own.
func (r *reader) search(pid uint32, vptrs []uint64) (found Objects, refused, err error) {
	if len(vptrs) > MaxVptrs {
		return nil, fmt.Errorf("searching for objects of %d classes at once", len(vptrs)), nil
	}
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, forSearch)
	for _, v := range vptrs {
		r.request = binary.NativeEndian.AppendUint64(r.request, v)
	}
	found = Objects{}
	// First the kernel lists the process's memory, which takes as long as it is large.
	patience := searchTime + Patience
	for {
		var answer [searchAnswerBytes]byte
		if err := r.answer(answer[:], patience); err != nil {
			return nil, nil, err
		}
		patience = Patience
		b := r.buffer[:min(binary.NativeEndian.Uint64(answer[:]), maxBytes)]
		state := binary.NativeEndian.Uint64(answer[8:])
		if state == searchFailed {
			return nil, errors.New(string(b)), nil
		}
		for ; len(b) >= objectBytes; b = b[objectBytes:] {
			if w := binary.NativeEndian.Uint64(b); w>>addressBits < uint64(len(vptrs)) {
				v := vptrs[w>>addressBits]
				found[v] = append(found[v], w&(1<<addressBits-1))
			}
		}
		switch state {
		case searchEnded:
			return found, nil, nil
		case searchTimeUp:
			return found, ErrSearchTime, nil
		}
	}
}

// serveSearch searches, and says that it does so now and then. Where no one asks it to go
// on it ends the process.
func serveSearch(pid uint32, words, buffer []byte) {
	var vptrs []uint64
	for ; len(words) >= 8 && len(vptrs) < MaxVptrs; words = words[8:] {
		vptrs = append(vptrs, binary.NativeEndian.Uint64(words))
	}
	if len(vptrs) == 0 {
		os.Exit(1)
	}
	say := func(n, state int) {
		var answer [searchAnswerBytes]byte
		binary.NativeEndian.PutUint64(answer[:], uint64(n))
		binary.NativeEndian.PutUint64(answer[8:], uint64(state))
		if _, err := unix.Write(socketFD, answer[:]); err != nil {
			os.Exit(0)
		}
	}
	goOn := func(n int) {
		say(n, searchGoesOn)
		if receive(make([]byte, headBytes)) == 0 {
			os.Exit(0)
		}
	}
	// It has one otherwise: whatever else a reader does, it does alone.
	runtime.GOMAXPROCS(min(maxSearchers, runtime.NumCPU()))
	defer runtime.GOMAXPROCS(1)
	s := newSearch(Direct(pid), vptrs, proc.NewLimit(searchTime, nil).Over)
	var said time.Time
	s.still = func() error {
		if time.Since(said) > Patience/4 {
			goOn(0)
			said = time.Now()
		}
		return nil
	}
	state := searchEnded
	switch err := s.process(pid, false); {
	case errors.Is(err, ErrSearchTime):
		state = searchTimeUp
	case err != nil:
		say(copy(buffer, err.Error()), searchFailed)
		return
	}
	n := 0
	for i, v := range vptrs {
		for _, at := range s.found[v] {
			if n == maxBytes {
				goOn(n)
				n = 0
			}
			binary.NativeEndian.PutUint64(buffer[n:], at|uint64(i)<<addressBits)
			n += objectBytes
		}
	}
	say(n, state)
	// A reader collects no garbage while it reads.
	s = nil
	runtime.GC()
}
