package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// It is a line that names the server, followed by the first bytes of records. A record that creates an object is
// written before it is sent, and one that frees it afterwards. So the journal has all objects that the server may
// hold, and perhaps a few more.
type journal struct {
	path string
	lock *os.File
	file *os.File
	// server is the serverInstance that the entries were sent to.
	server string
	// size of the file, and how large it may grow, bytes.
	size, limit int64
}

// journalKey names what a server holds.
type journalKey struct {
	kind   Type // Alloc, CBAlloc, KernelLoad; Response for what others hold
	device int32
	id     uint64
}

const (
	journalMagic = "tt-memtrace forward 1 "
	// journalSlack is how much a journal may hold that is not true any more, bytes.
	journalSlack = 1 << 20
	// maxJournal is the largest that is read, bytes: some twenty million records.
	maxJournal = 1 << 30
)

// errForwarding is wrapped where another forwarder sends to the same server.
var errForwarding = errors.New("another tt-memtrace forwards to this server already")

// openJournal reads what an earlier forwarder has left. No path means none is kept.
func openJournal(path string) (j *journal, left map[journalKey]Record, err error) {
	j = &journal{path: path}
	if path == "" {
		return j, nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	if j.lock, err = os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600); err != nil {
		return nil, nil, err
	}
	if err := unix.Flock(int(j.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		j.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errForwarding
		}
		return nil, nil, err
	}
	left, err = j.read()
	if err != nil {
		j.close()
		return nil, nil, err
	}
	return j, left, nil
}

func (j *journal) read() (map[journalKey]Record, error) {
	f, err := os.OpenFile(j.path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j.server = ""
	left, server, err := readJournal(io.LimitReader(f, maxJournal))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", j.path, err)
	}
	j.server = server
	return left, nil
}

// readJournal returns what, by a journal, a server may hold. An incomplete last record was never sent.
func readJournal(r io.Reader) (left map[journalKey]Record, server string, err error) {
	in := bufio.NewReader(r)
	line, err := in.ReadString('\n')
	server, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), journalMagic)
	if err != nil || !ok {
		return nil, "", nil // none, or one that was never finished
	}
	left = map[journalKey]Record{}
	var b [prefix]byte
	for {
		if _, err := io.ReadFull(in, b[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return left, server, nil
			}
			return nil, "", err
		}
		var r Record
		r.decodePrefix(b[:])
		switch r.Type {
		case Alloc, CBAlloc, KernelLoad, Response:
			left[r.journalKey()] = r
		case Free, CBFree, KernelUnload:
			delete(left, r.journalKey())
		}
	}
}

// makes returns the type of the message that creates the object of a message.
func (t Type) makes() Type {
	switch t {
	case Free:
		return Alloc
	case CBFree:
		return CBAlloc
	case KernelUnload:
		return KernelLoad
	}
	return t
}

func (r *Record) journalKey() journalKey { return journalKey{r.Type.makes(), r.Device, r.ID} }

// appendJournal appends the record as the journal has it.
func (r *Record) appendJournal(b []byte) []byte {
	return r.Append(b, Sizes[0])[:len(b)+prefix]
}

// begin starts a new journal, for a server that holds what all yields.
func (j *journal) begin(server string, all func(yield func(*Record) bool)) error {
	j.server = server
	if j.path == "" {
		return nil
	}
	f, err := os.OpenFile(j.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	n, _ := w.WriteString(journalMagic + server + "\n")
	size := int64(n)
	var b []byte
	for r := range all {
		b = r.appendJournal(b[:0])
		w.Write(b)
		size += prefix
	}
	err = w.Flush()
	if err == nil {
		err = os.Rename(j.path+".new", j.path)
	}
	if err != nil {
		f.Close()
		return err
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size, j.limit = f, size, 2*size+journalSlack
	return nil
}

// write appends entries in one call.
func (j *journal) write(b []byte) error {
	if j.file == nil || len(b) == 0 {
		return nil
	}
	j.size += int64(len(b))
	_, err := j.file.Write(b)
	return err
}

// full is whether it is time to begin again.
func (j *journal) full() bool { return j.file != nil && j.size > j.limit }

func (j *journal) close() {
	if j.file != nil {
		j.file.Close()
	}
	if j.lock != nil {
		j.lock.Close()
	}
}
