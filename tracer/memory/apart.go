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

// forSearch, as the number of parts, asks a reader to search a process: that of the vptrs to whose objects pointers are
// looked for follows, and the vptrs, one word each. Its answer is how many bytes are in the buffer, and what they are. Each further
// request, whatever it says, has it go on.
const (
	forSearch         = 1<<32 - 1
	searchAnswerBytes = 16
)

// maxVptrs is for how many classes a process is searched at a time.
const maxVptrs = 16

const (
	searchGoesOn = iota // objects and pointers, and more may follow
	searchEnded         // the last of them
	searchTimeUp        // the last that there was time for
	searchFailed        // why
)

// searchedAlone is how much of the host's memory a process has that one thread searches: to have others begin, and end, takes
// longer than they would save.
const searchedAlone = 64 << 20

// objectBytes is what an object takes in an answer: its address, and above its bits the number
// of its vptr; for a pointer the number of vptrs.
const (
	objectBytes = 8
	addressBits = 48
)

// findApart has a reader search the process. That takes long: nobody in a hurry asks for it.
func (p *Process) findApart(block uint64, vptrs []uint64) (found Objects, pointers []uint64, err error) {
	if p.hung.now.Load() {
		return nil, nil, ErrHung
	}
	var refused error
	err = p.user.searches.ask(&Process{state: p.state}, func(r *reader) (err error) {
		found, pointers, refused, err = r.search(p.pid, block, vptrs)
		return err
	}, &p.hung)
	if err := p.answered(err); err != nil {
		return nil, nil, err
	}
	return found, pointers, refused
}

// search is refused where the process cannot be searched, or not in time. An error is the
// reader's own.
func (r *reader) search(pid uint32, block uint64, vptrs []uint64) (found Objects, pointers []uint64, refused, err error) {
	if len(vptrs) > maxVptrs {
		return nil, nil, fmt.Errorf("searching for objects of %d classes at once", len(vptrs)), nil
	}
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, forSearch)
	for _, v := range append([]uint64{block}, vptrs...) {
		r.request = binary.NativeEndian.AppendUint64(r.request, v)
	}
	found = Objects{}
	// First the kernel lists the process's memory, which takes as long as it is large.
	patience := SearchTime + Patience()
	for {
		var answer [searchAnswerBytes]byte
		if err := r.answer(answer[:], patience); err != nil {
			return nil, nil, nil, err
		}
		patience = Patience()
		b := r.buffer[:min(binary.NativeEndian.Uint64(answer[:]), maxBytes)]
		state := binary.NativeEndian.Uint64(answer[8:])
		if state == searchFailed {
			return nil, nil, errors.New(string(b)), nil
		}
		for ; len(b) >= objectBytes; b = b[objectBytes:] {
			w := binary.NativeEndian.Uint64(b)
			switch of, at := w>>addressBits, w&(1<<addressBits-1); {
			case of < uint64(len(vptrs)):
				found[vptrs[of]] = append(found[vptrs[of]], at)
			case of == uint64(len(vptrs)):
				pointers = append(pointers, at)
			}
		}
		switch state {
		case searchEnded:
			return found, pointers, nil, nil
		case searchTimeUp:
			return found, pointers, ErrSearchTime, nil
		}
	}
}

// serveSearch searches, and says that it does so now and then. Where no one asks it to go
// on it ends the process.
func serveSearch(pid uint32, words, buffer []byte) {
	var vptrs []uint64
	for ; len(words) >= 8 && len(vptrs) <= maxVptrs; words = words[8:] {
		vptrs = append(vptrs, binary.NativeEndian.Uint64(words))
	}
	if len(vptrs) < 2 {
		os.Exit(1)
	}
	block, vptrs := vptrs[0], vptrs[1:]
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
	if bytes, known := proc.ResidentMemory(pid); !known || bytes > searchedAlone {
		runtime.GOMAXPROCS(min(maxSearchers, runtime.NumCPU()))
		defer runtime.GOMAXPROCS(1)
	}
	s := newSearch(Direct(pid), vptrs, proc.NewLimit(SearchTime, nil).Over)
	s.shared = block
	var said time.Time
	s.still = func() error {
		if time.Since(said) > Patience()/4 {
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
	put := func(of int, list []uint64) {
		for _, at := range list {
			if n == maxBytes {
				goOn(n)
				n = 0
			}
			binary.NativeEndian.PutUint64(buffer[n:], at|uint64(of)<<addressBits)
			n += objectBytes
		}
	}
	for i, v := range vptrs {
		put(i, s.objects[v])
	}
	put(len(vptrs), s.places())
	say(n, state)
	s.close()
	s = nil
	collect()
}
