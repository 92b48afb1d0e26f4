package aggregator

import (
	"reflect"
	"strings"
	"testing"

	"tt-memtrace/aggregator/exact"
)

// A snapshot shows numbers that reasons can make wrong as quantities alone: so none can be shown as 0 if it is unknown.
func TestShownNumbersAreQuantities(t *testing.T) {
	sure := map[string]bool{
		// What identifies something, and times.
		"PID": true, "InnerPID": true, "Started": true, "UniqueID": true,
		"ID": true, "Base": true, "Space": true, "Number": true,
		"Time": true, "Since": true, "Last": true, "LastLaunch": true, "At": true, "X": true, "Y": true, "PIDs": true,
		"Source": true, "Status": true, "Signal": true,
		// The size of a memory; its Known is read with it. What a comparison did, and what the tracer noticed.
		"Count": true, "Bytes": true, "Comparisons": true, "Compared": true, "Found": true, "Repaired": true,
		"UnmatchedFrees": true, "Replaced": true, "Odd": true,
		// The events themselves.
		"Events": true, "Lost": true, "Exited": true, "ExitedInexact": true, "Launches": true,
		// What the runtime's shared memory says of exited processes.
		"Requested": true, "CB": true,
	}
	var walk func(string, reflect.Type)
	walk = func(at string, typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(at, typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				if f := typ.Field(i); f.IsExported() && typ != reflect.TypeFor[exact.Quantity]() {
					walk(at+"."+f.Name, f.Type)
				}
			}
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			if name := at[strings.LastIndex(at, ".")+1:]; !sure[name] {
				t.Errorf("%s is a %s", at, typ)
			}
		}
	}
	walk("Snapshot", reflect.TypeFor[Snapshot]())
}

// Each counter that a process shows has a row: show fills it from the tally of the same name, and hide doubts it. A
// counter without a row would stay unknown, and one with a wrong row would show another's number.
func TestEveryCounterHasARow(t *testing.T) {
	var tally ProcessTally
	counted := reflect.ValueOf(&tally).Elem()
	for i := range counted.NumField() {
		if f := counted.Field(i); f.Kind() == reflect.Uint64 {
			f.SetUint(uint64(100 + i))
		}
	}
	rows := 0
	shown := reflect.TypeFor[ProcessCounters]()
	for i := range shown.NumField() {
		f := shown.Field(i)
		if f.Type != reflect.TypeFor[exact.Quantity]() {
			continue
		}
		rows++
		want := counted.FieldByName(f.Name)
		if !want.IsValid() {
			t.Errorf("%s has no tally of the same name", f.Name)
			continue
		}
		p := ProcessSnapshot{Info: Process{Source: Traced}, counters: tally}
		p.show()
		q := reflect.ValueOf(&p.Counters).Elem().Field(i).Addr().Interface().(*exact.Quantity)
		if !q.Is(want.Uint()) {
			t.Errorf("%s is shown as %v, not %d", f.Name, *q, want.Uint())
		}
		p.Info.Late = true
		p.hide()
		if q.Doubt() != exact.AtLeast {
			t.Errorf("%s of a process that is attached late is shown as %v", f.Name, *q)
		}
		for _, missed := range []ProcessTally{{MissedCalls: true}, {MissedLaunches: true}} {
			p := ProcessSnapshot{Info: Process{Source: Traced}, counters: missed}
			p.show()
			q := reflect.ValueOf(&p.Counters).Elem().Field(i).Addr().Interface().(*exact.Quantity)
			launches := strings.HasSuffix(f.Name, "Launches") || f.Name == "Replays"
			if launches == missed.MissedLaunches && q.Doubt() != exact.Unknown {
				t.Errorf("%s is shown as %v though some were missed", f.Name, *q)
			}
		}
	}
	if rows != len(counterRows) {
		t.Errorf("%d counters have %d rows", rows, len(counterRows))
	}
}
