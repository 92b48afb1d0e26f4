package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"tt-memtrace/ui/widget"
)

// store reads and writes the file with a user's settings.
type store struct {
	path   string
	loaded settings
	// broken means that the file is invalid or cannot be read, so it is not overwritten.
	broken bool
}

// file is the form of the settings in the file. Fields that this version does not have are not kept.
type file struct {
	Version   int                 `json:"version"`
	View      string              `json:"view,omitempty"`
	Requested bool                `json:"requested,omitempty"`
	Exact     bool                `json:"exact,omitempty"`
	ASCII     bool                `json:"ascii,omitempty"`
	Palette   string              `json:"palette,omitempty"`
	Sort      string              `json:"sort,omitempty"`
	Hidden    map[string][]string `json:"hidden_columns,omitempty"`
	Ordered   map[string]string   `json:"sorted_by,omitempty"`
}

// fileVersion increases when the meaning of a field changes.
const fileVersion = 1

// maxFile is more than the settings can take, bytes.
const maxFile = 64 << 10

// sortNames are the names in the file of the columns of the overview's processes. Those of growth have none, so they
// are not kept.
var sortNames = map[columnID]string{
	byDRAM: "dram", byL1: "l1", byL1Small: "l1_small", byTrace: "trace", byCB: "cb", byBuffers: "buffers", byAllocs: "allocs",
	byFrees: "frees", byRate: "rate", bySince: "since", byPID: "pid", byCommand: "process", byChips: "chips",
}

// load reads the settings. It returns no error if the file is missing. It ignores an invalid or unreadable file, and
// returns an error.
func (s *store) load() (settings, error) {
	if s.path == "" {
		return settings{}, nil
	}
	err := s.read()
	if err != nil {
		s.broken, s.loaded = true, settings{}
		return settings{}, fmt.Errorf("settings ignored, and not kept until this is fixed: %w", err)
	}
	return s.loaded, nil
}

func (s *store) read() error {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	s.loaded, err = parseSettings(b)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

// parseSettings returns the settings in a file, or what is wrong with it.
func parseSettings(b []byte) (settings, error) {
	var in file
	if len(b) > maxFile {
		return settings{}, errors.New("too large")
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return settings{}, err
	}
	if in.Version != fileVersion {
		return settings{}, fmt.Errorf("version %d is not known", in.Version)
	}
	o := settings{requested: in.Requested, Settings: widget.Settings{Exact: in.Exact, ASCII: in.ASCII}}
	if in.View != "" {
		id := slices.Index(pageNames[:], in.View)
		if id < 0 {
			return settings{}, fmt.Errorf("no view is called %q", in.View)
		}
		o.view = pageID(id)
	}
	if in.Palette != "" {
		if _, ok := widget.Palettes[in.Palette]; !ok {
			return settings{}, fmt.Errorf("no palette is called %q", in.Palette)
		}
		o.palette = in.Palette
	}
	if in.Sort != "" {
		found := false
		for id, name := range sortNames {
			if name == in.Sort {
				o.sort, found = id, true
			}
		}
		if !found {
			return settings{}, fmt.Errorf("no column is called %q", in.Sort)
		}
	}
	// Unknown names of tables and columns have no effect.
	o.Hidden, o.Ordered = in.Hidden, in.Ordered
	return o, nil
}

// same reports whether two settings have the same form in the file.
func (o settings) same(p settings) bool {
	return o.requested == p.requested && o.Exact == p.Exact && o.ASCII == p.ASCII && o.sort == p.sort && o.palette == p.palette &&
		o.view == p.view && maps.Equal(o.Ordered, p.Ordered) && maps.EqualFunc(o.Hidden, p.Hidden, slices.Equal)
}

// ErrSettings means that the settings could not be saved. Everything else went well.
var ErrSettings = errors.New("keeping the settings")

// save writes the settings if they changed and the file is not broken. The file then has all of them or the old ones.
func (s *store) save(o settings) error {
	if s.path == "" || s.broken || o.same(s.loaded) {
		return nil
	}
	out := file{
		Version: fileVersion, View: pageNames[o.view], Requested: o.requested, Exact: o.Exact, ASCII: o.ASCII, Palette: o.palette,
		Sort: sortNames[o.sort], Hidden: o.Hidden, Ordered: o.Ordered,
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err == nil {
		err = writeWhole(s.path, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	s.loaded = o
	return nil
}

// writeWhole replaces a file in one step, by renaming.
func writeWhole(path string, b []byte) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".ui-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
