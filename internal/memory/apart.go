package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// forSearch, as the number of parts, asks a reader to search a process. The vptr of the shared objects follows
// (pointers to these are searched for), then the other vptrs, one word each. The answer is how many bytes are in the
// buffer, and one of the states below. After a part of the results, any further request makes the reader go on.
const (
	forSearch         = 1<<32 - 1
	searchAnswerBytes = 16
)

// maxVptrs is how many classes one search can look for.
const maxVptrs = 16

const (
	searchGoesOn = iota // a sign of life, or a part of the objects and pointers; more may follow
	searchEnded         // the last of them
	searchTimeUp        // the last ones before the time was up
	searchFailed        // an error text
)

// searchedAlone is the resident size up to which one thread searches a process: more threads would take longer to
// start and end than they save.
const searchedAlone = 64 << 20

// objectBytes is the size of an object in an answer: its address in the low addressBits, and above them the number of
// its vptr. For a pointer that number is the count of vptrs.
const (
	objectBytes = 8
	addressBits = 48
)

// findApart has a reader search the process, which takes long.
func (p *Process) findApart(block uint64, vptrs []uint64) (found Objects, pointers []uint64, err error) {
	if p.hung.now.Load() {
		return nil, nil, ErrHung
	}
	var refused error
	err = p.user.searches.ask(p, func(r *reader) (err error) {
		found, pointers, refused, err = r.search(p.pid, block, vptrs)
		return err
	}, &p.hung)
	if err := p.answered(err); err != nil {
		return nil, nil, err
	}
	return found, pointers, refused
}

// search asks the reader to search a process. refused says why the process could not be searched, or that the time
// was up; err is a failure of the reader.
func (r *reader) search(pid uint32, block uint64, vptrs []uint64) (found Objects, pointers []uint64, refused, err error) {
	if len(vptrs) > maxVptrs {
		return nil, nil, fmt.Errorf("searching for objects of %d classes in one search", len(vptrs)), nil
	}
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, forSearch)
	for _, v := range append([]uint64{block}, vptrs...) {
		r.request = binary.NativeEndian.AppendUint64(r.request, v)
	}
	found = Objects{}
	// First the kernel lists the process's memory, which takes longer the larger it is.
	answer := make([]byte, searchAnswerBytes)
	err = r.answer(answer, SearchTime+Patience())
	for {
		if err != nil {
			return nil, nil, nil, err
		}
		n, state := binary.NativeEndian.Uint64(answer), binary.NativeEndian.Uint64(answer[8:])
		b := r.buffer[:min(n, maxBytes)]
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
		if n == 0 { // a sign of life
			err = r.await(answer, Patience())
		} else {
			err = r.answer(answer, Patience())
		}
	}
}

// serveSearch searches a process, and sends a sign of life now and then. If nobody takes its answers, it ends the
// reader process.
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
	// Otherwise the reader uses one CPU, as its other work is sequential.
	if bytes, known := proc.ResidentMemory(pid); !known || bytes > searchedAlone {
		runtime.GOMAXPROCS(min(maxSearchers, runtime.NumCPU()))
		defer runtime.GOMAXPROCS(1)
	}
	s := newSearch(Direct(pid), vptrs, proc.NewLimit(SearchTime, nil).Over)
	s.shared = block
	var said time.Time
	s.still = func() error {
		if time.Since(said) > Patience()/4 {
			say(0, searchGoesOn)
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
