package x86eval_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/internal/x86eval"
)

// libEnv names a libtt_metal.so to probe.
const libEnv = "TT_MEMTRACE_TEST_LIB"

func libHooks(symbol string) (x86eval.Hook, bool) {
	if strings.Contains(symbol, "tt_throw") {
		return x86eval.Throw(symbol), true
	}
	return x86eval.Libc(symbol)
}

func openLib(t *testing.T) *x86eval.Image {
	path := os.Getenv(libEnv)
	if path == "" {
		t.Skipf("%s is not set", libEnv)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	img, err := x86eval.NewImage(f, 0x7f00_0000_0000)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestLibBuffer finds out where a real library's Buffer keeps its fields.
func TestLibBuffer(t *testing.T) {
	img := openLib(t)
	for _, getter := range []string{"size", "address", "page_size", "buffer_type", "device", "allocator"} {
		symbol := fmt.Sprintf("_ZNK2tt8tt_metal6Buffer%d%sEv", len(getter), getter)
		fn, ok := img.Symbol(symbol)
		if !ok {
			t.Errorf("%s is missing", symbol)
			continue
		}
		probe := x86eval.NewSymbolicMemory(img)
		this := probe.Root()
		m := x86eval.New(probe, x86eval.WithSlots(img.SlotFunc(libHooks)))
		v, err := m.Call(fn, this)
		// A getter may insist on a flag. Set bytes that it looked at until it is happy.
		for i := 0; err != nil && i < len(probe.Loads()); i++ {
			l := probe.Loads()[i]
			if l.Size != 1 {
				continue
			}
			addr := l.Path.Root
			for _, offset := range l.Path.Offsets {
				addr = probe.Child(addr + uint64(offset))
			}
			probe.Set(addr+uint64(l.Path.Tail), 1)
			v, err = m.Call(fn, this)
		}
		if err != nil {
			t.Errorf("%s: %v", getter, err)
			continue
		}
		path, ok := probe.Path(v)
		t.Logf("%-12s value %#x path %x known %t loads %v", getter, v, path.Offsets, ok, probe.Loads())
		if len(probe.Loads()) == 0 {
			t.Errorf("%s loads nothing", getter)
		}
	}
}

// TestLibAllocator evaluates getters which branch on their argument, index a
// table of member pointers or a jump table, and lock a mutex through the PLT.
func TestLibAllocator(t *testing.T) {
	img := openLib(t)
	for _, getter := range []string{"get_num_banks", "get_bank_size"} {
		fn, ok := img.Symbol("_ZNK2tt8tt_metal13AllocatorImpl13" + getter + "ERKNS0_10BufferTypeE")
		if !ok {
			t.Errorf("%s is missing", getter)
			continue
		}
		seen := map[string]bool{}
		for typ := range uint32(6) {
			probe := x86eval.NewSymbolicMemory(img)
			this := probe.Root()
			m := x86eval.New(probe, x86eval.WithSlots(img.SlotFunc(libHooks)))
			arg, err := m.Alloc(4)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.WriteU32(arg, typ); err != nil {
				t.Fatal(err)
			}
			v, err := m.Call(fn, this, arg)
			path, known := probe.Path(v)
			t.Logf("%s(%d) = %#x path %x known %t err %v", getter, typ, v, path.Offsets, known, err)
			if err == nil {
				key := ""
				for _, l := range probe.Loads() {
					key += fmt.Sprint(l.Path.Tail, " ")
				}
				seen[key] = true
			}
		}
		if len(seen) < 4 {
			t.Errorf("%s: only %d of 4 kinds of memory distinguished", getter, len(seen))
		}
	}
}

// TestLibMeshDevice evaluates a function that copies a vector into a hidden
// argument. The first attempt shows where the vector is, by the two loads from
// adjoining fields; the second is with a vector of two elements there.
func TestLibMeshDevice(t *testing.T) {
	img := openLib(t)
	fn, ok := img.Symbol("_ZNK2tt8tt_metal11distributed10MeshDevice11get_devicesEv")
	if !ok {
		t.Fatal("get_devices is missing")
	}
	probe := x86eval.NewSymbolicMemory(img)
	this := probe.Root()
	m := x86eval.New(probe, x86eval.WithSlots(img.SlotFunc(libHooks)))
	result, err := m.Alloc(24)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Call(fn, result, this)
	t.Logf("first attempt: %v, loads %v", err, probe.Loads())
	// What it then copies of the elements is not of its fields.
	loads := slices.DeleteFunc(slices.Clone(probe.Loads()), func(l x86eval.Load) bool { return l.Size != 8 })
	if len(loads) < 2 {
		t.Fatal("too few loads")
	}
	last := loads[len(loads)-1].Path
	if before := loads[len(loads)-2].Path; before.Tail != last.Tail-8 {
		t.Fatalf("last loads are not of adjoining fields: %v, %v", before, last)
	}
	owner := last.Root
	for _, offset := range last.Offsets {
		owner = probe.Child(owner + uint64(offset))
	}
	end := owner + uint64(last.Tail)
	begin := probe.Child(end - 8)
	probe.Set(end, binary.LittleEndian.AppendUint64(nil, begin+16)...)

	if _, err := m.Call(fn, result, this); err != nil {
		t.Fatal(err)
	}
	var v [3]uint64
	for i := range v {
		if v[i], err = m.ReadU64(result + 8*uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if v[1] != v[0]+16 || v[2] != v[1] {
		t.Errorf("result is %x", v)
	}
	for i := range uint64(2) {
		device, err := m.ReadU64(v[0] + 8*i)
		path, ok := probe.Path(device)
		want := append(slices.Clone(last.Offsets), last.Tail-8, int64(8*i))
		if err != nil || !ok || !slices.Equal(path.Offsets, want) {
			t.Errorf("device %d is %#x with path %v, %v", i, device, path, err)
		}
	}
}

// TestLibKernelCopy evaluates a function that finds a shared pointer in a std::unordered_map and copies it into a
// hidden argument, with one that has an element for a device. The pointer has no owners: whether these are counted
// atomically says libc, which is not here.
func TestLibKernelCopy(t *testing.T) {
	const program, device, buffer = 0xc00, 0x1000, 0x1234_5678 // bytes of the first two
	img := openLib(t)
	fn, ok := img.Symbol("_ZNK2tt8tt_metal6detail11ProgramImpl18get_kernels_bufferEPNS0_7IDeviceE")
	vtable, also := img.Symbol("_ZTVN2tt8tt_metal6DeviceE")
	if !ok || !also {
		t.Fatal("get_kernels_buffer or a vtable is missing")
	}
	// with evaluates it for a program that has a buffer for a device of that number in a map at an offset; it is asked for device 0.
	with := func(offset, key uint64) (found uint64, err error) {
		m := x86eval.New(img, x86eval.WithSlots(img.SlotFunc(libHooks)))
		at := map[string]uint64{}
		for name, size := range map[string]uint64{"result": 16, "program": program, "device": device, "node": 32, "buckets": 8} {
			if at[name], err = m.Alloc(size); err != nil {
				return 0, err
			}
		}
		table := at["program"] + offset
		for address, v := range map[uint64]uint64{
			at["device"]:    vtable + 16,
			at["node"] + 8:  key,
			at["node"] + 16: buffer,
			table:           at["buckets"], table + 8: 1, table + 16: at["node"], table + 24: 1,
			at["buckets"]: table + 16,
		} {
			if err := m.WriteU64(address, v); err != nil {
				return 0, err
			}
		}
		if _, err := m.Call(fn, at["result"], at["program"], at["device"]); err != nil {
			return 0, err
		}
		return m.ReadU64(at["result"])
	}
	places := 0
	for offset := uint64(0); offset < program-32; offset += 8 {
		found, err := with(offset, 0)
		if err != nil || found == 0 {
			continue // the map is elsewhere
		}
		places++
		t.Logf("the map is at %#x", offset)
		if none, err := with(offset, 1); err != nil || none != 0 || found != buffer {
			t.Errorf("it returns %#x, and for another device %#x, %v", found, none, err)
		}
	}
	if places == 0 {
		t.Error("it finds no buffer wherever the map is")
	}
}
