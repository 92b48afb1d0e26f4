package metal

// fieldTable has the offsets of a Buffer's fields, from the base, in all 82 releases from 0.59.0rc58 to 0.81.1. The
// base is the object's +0x10 up to 0.78.0, and what +0x10 points to from 0.79.0 on. Each field lists the runtime's
// functions that show it, and how; every release has at least two for each field.
var fieldTable = []struct {
	name   string
	offset uint32
	size   int
	by     []witness
}{
	// The status comes first, because the other fields depend on it.
	{"status", 0x38, 1, []witness{
		{bufferIsAllocated, compared},
		{allocateOld, marked(false)},
		{allocateNew, marked(false)},
	}},
	{"device", 0x00, 8, []witness{
		{bufferDevice, returned},
		{deallocateOld, called},
		{deallocateNew, called},
		{allocateOld, called},
		{allocateNew, called},
	}},
	{"page_size", 0x48, 8, []witness{
		{bufferPageSize, returned},
		{bufferNumPages, divisor},
	}},
	{"size", 0x08, 8, []witness{
		{bufferSize, returned},
		{bufferNumPages, dividend},
		{bufferIsValidRegion, compared},
	}},
	{"type", 0x10, 4, []witness{
		{bufferBufferType, returned},
		{bufferIsDram, compared},
		{bufferAlignment, passed("get_alignment", 1)},
	}},
	{"layout", 0x14, 4, []witness{
		{bufferBufferLayout, returned},
		{bufferNumCores, decides},
		{bufferNumDevPages, decides},
	}},
	{"allocator", 0x30, 8, []witness{
		{bufferAllocator, followed},
		{bufferAlignment, passed("get_alignment", 0)},
		{allocateOld, passed("15allocate_buffer", 0)},
		{allocateNew, passed("15allocate_buffer", 0)},
	}},
	{"hooked", 0x39, 1, []witness{
		{allocateOld, marked(true)},
		{allocateNew, marked(true)},
		{deallocateOld, spares},
		{deallocateNew, spares},
	}},
	{"address", 0x40, 4, []witness{
		{BufferAddress, returned},
		{allocateOld, stored},
		{allocateNew, stored},
	}},
}

// mustShow are the fields that a library itself has to show before the table counts for the others.
var mustShow = []string{"status", "page_size", "size", "type", "address"}
