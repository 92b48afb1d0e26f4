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
