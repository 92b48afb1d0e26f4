package record

import (
	"reflect"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// A recording names its types and fields, and a reader finds them by these names.
// They must not follow renames in Go: files made earlier would then be read without the
// renamed field. So a field's name is its tag `rec:"Name"`, and a type's name is in this
// table. testdata/header.txt has the names, and testdata/*.ttm are recordings made earlier.
var typeNames = map[reflect.Type]string{
	reflect.TypeFor[aggregator.Agreement]():        "Agreement",
	reflect.TypeFor[aggregator.Banks]():            "Banks",
	reflect.TypeFor[aggregator.CBUsage]():          "CBUsage",
	reflect.TypeFor[aggregator.Capture]():          "Capture",
	reflect.TypeFor[aggregator.Chip]():             "Chip",
	reflect.TypeFor[aggregator.ChipSnapshot]():     "ChipSnapshot",
	reflect.TypeFor[aggregator.CircularBuffer]():   "CircularBuffer",
	reflect.TypeFor[aggregator.Comparison]():       "Comparison",
	reflect.TypeFor[aggregator.Core]():             "Core",
	reflect.TypeFor[aggregator.CoreRange]():        "CoreRange",
	reflect.TypeFor[aggregator.Counters]():         "Counters",
	reflect.TypeFor[aggregator.Event]():            "Event",
	reflect.TypeFor[aggregator.Exit]():             "Exit",
	reflect.TypeFor[aggregator.Extent]():           "Extent",
	reflect.TypeFor[aggregator.Frame]():            "Frame",
	reflect.TypeFor[aggregator.StaleEntry]():       "StaleEntry",
	reflect.TypeFor[aggregator.StaleEntries]():     "StaleEntries",
	reflect.TypeFor[aggregator.HostMemory]():       "HostMemory",
	reflect.TypeFor[aggregator.Kernel]():           "Kernel",
	reflect.TypeFor[aggregator.KernelTally]():      "KernelUsage",
	reflect.TypeFor[aggregator.Opened]():           "Opened",
	reflect.TypeFor[aggregator.Process]():          "Process",
	reflect.TypeFor[aggregator.ProcessTally]():     "ProcessCounters",
	reflect.TypeFor[aggregator.ProcessSnapshot]():  "ProcessSnapshot",
	reflect.TypeFor[exact.Quantity]():              "Quantity",
	reflect.TypeFor[aggregator.Reason]():           "Reason",
	reflect.TypeFor[aggregator.FailedAllocation](): "FailedAllocation",
	reflect.TypeFor[aggregator.ConfigRing]():       "ConfigRing",
	reflect.TypeFor[aggregator.Snapshot]():         "Snapshot",
	reflect.TypeFor[aggregator.Stack]():            "Stack",
	reflect.TypeFor[aggregator.RuntimeTotals]():    "RuntimeTotals",
	reflect.TypeFor[aggregator.Unsafe]():           "Unsafe",
	reflect.TypeFor[aggregator.UnsafeTally]():      "UnsafeUsage",
	reflect.TypeFor[aggregator.Usage]():            "Usage",
}

// typeName is what files call a struct.
func typeName(t reflect.Type) string {
	name, ok := typeNames[t]
	if !ok {
		panic("record: " + t.String() + " has no name in typeNames")
	}
	return name
}

// fieldName is what files call a field of a struct.
func fieldName(t reflect.Type, f reflect.StructField) string {
	name := f.Tag.Get("rec")
	if name == "" {
		panic("record: " + t.String() + "." + f.Name + ` has no tag rec:"Name"`)
	}
	return name
}

// isRecorded reports whether a field is in recordings.
func isRecorded(f reflect.StructField) bool { return f.Tag.Get("rec") != "-" }

// fieldNamed finds a field by the name that files call it, -1 where there is none.
func fieldNamed(t reflect.Type, name string) int {
	for i := range t.NumField() {
		if f := t.Field(i); isRecorded(f) && fieldName(t, f) == name {
			return i
		}
	}
	return -1
}
