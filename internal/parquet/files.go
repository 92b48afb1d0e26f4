package parquet

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	pq "github.com/parquet-go/parquet-go"
)

// closer is a table of any rows.
type closer interface {
	began(time.Time) error
	finish() error
	publish() error
	discard()
}

// table is the files of a table, one a day.
type table[T any] struct {
	dir, name string
	days      map[string]*day[T]
	// undated rows wait for the day on which the recording began.
	undated []T
}

// day is a file that is being written.
type day[T any] struct {
	path    string
	file    *os.File
	writer  *pq.GenericWriter[T]
	pending []T
}

const (
	// rowsAtOnce are handed to the writer at a time, and groupRows are a row group.
	rowsAtOnce = 1024
	groupRows  = 1 << 17
	// maxDays of one recording, each of which has files open.
	maxDays = 400
)

func newTable[T any](o *Options, name string) *table[T] {
	host := url.PathEscape(o.Host)
	if host == "" {
		host = "__HIVE_DEFAULT_PARTITION__" // a reader has null
	}
	return &table[T]{dir: filepath.Join(o.Dir, name, "host="+host), name: url.PathEscape(o.Recording) + ".parquet", days: map[string]*day[T]{}}
}

// write adds a row of the day that at, µs since 1970, is in.
func (t *table[T]) write(at *int64, row *T) error {
	if at == nil {
		t.undated = append(t.undated, *row)
		return nil
	}
	d, err := t.day(time.UnixMicro(*at))
	if err != nil {
		return err
	}
	if d.pending = append(d.pending, *row); len(d.pending) < rowsAtOnce {
		return nil
	}
	return d.flush()
}

// day is the file of the day that a time is in.
func (t *table[T]) day(at time.Time) (*day[T], error) {
	name := at.UTC().Format(time.DateOnly)
	if d := t.days[name]; d != nil {
		return d, nil
	}
	if len(t.days) >= maxDays {
		return nil, fmt.Errorf("writing Parquet: events of more than %d days in one recording", maxDays)
	}
	dir := filepath.Join(t.dir, "day="+name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("writing Parquet: %w", err)
	}
	path := filepath.Join(dir, t.name)
	f, err := os.Create(path + ".part")
	if err != nil {
		return nil, fmt.Errorf("writing Parquet: %w", err)
	}
	d := &day[T]{path: path, file: f, writer: pq.NewGenericWriter[T](f, pq.Compression(&pq.Zstd), pq.KeyValueMetadata(schemaKey, strconv.Itoa(Schema)), pq.MaxRowsPerRowGroup(groupRows))}
	t.days[name] = d
	return d, nil
}

func (d *day[T]) flush() error {
	if _, err := d.writer.Write(d.pending); err != nil {
		return fmt.Errorf("writing %s: %w", d.path, err)
	}
	d.pending = d.pending[:0]
	return nil
}

// began dates the rows that have no time of their own. A table without rows gets a file
// as well, so that a query finds it.
func (t *table[T]) began(at time.Time) error {
	first := at.UnixMicro()
	for i := range t.undated {
		if err := t.write(&first, &t.undated[i]); err != nil {
			return err
		}
	}
	t.undated = nil
	if len(t.days) == 0 {
		_, err := t.day(at)
		return err
	}
	return nil
}

// finish writes the ends of the files.
func (t *table[T]) finish() error {
	for _, d := range t.days {
		if err := d.flush(); err != nil {
			return err
		}
		if err := errors.Join(d.writer.Close(), d.file.Close()); err != nil {
			return fmt.Errorf("writing %s: %w", d.path, err)
		}
	}
	return nil
}

// publish gives the files their names.
func (t *table[T]) publish() error {
	for _, d := range t.days {
		if err := os.Rename(d.path+".part", d.path); err != nil {
			return fmt.Errorf("writing Parquet: %w", err)
		}
	}
	return nil
}

func (t *table[T]) discard() {
	for _, d := range t.days {
		d.file.Close()
		os.Remove(d.path + ".part")
	}
}
