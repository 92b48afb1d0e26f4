package tracer

// fieldTable is where the fields of a Buffer stood in all 82 releases from
// 0.59.0rc58 to 0.81.1, from the base: the object's own +0x10 up to 0.78.0,
// what its +0x10 points to from 0.79.0 on. With each field are the functions of
// the runtime that show it, and how; every release has at least two for each.
var fieldTable = []struct {
	name   string
	offset uint32
	size   int
	// member is its name in the runtime's source, by which DWARF has it.
	member string
	by     []shown
}{
	// status first: what else there is to see depends on it.
	{"status", 0x38, 1, "allocation_status_", []shown{
		{"_ZNK2tt8tt_metal6Buffer12is_allocatedEv", compared},
		{allocateOld, marked(false)},
		{allocateNew, marked(false)},
	}},
	{"device", 0x00, 8, "device_", []shown{
		{"_ZNK2tt8tt_metal6Buffer6deviceEv", returned},
		{deallocateOld, called},
		{deallocateNew, called},
		{allocateOld, called},
		{allocateNew, called},
	}},
	{"page_size", 0x48, 8, "page_size_", []shown{
		{"_ZNK2tt8tt_metal6Buffer9page_sizeEv", returned},
		{"_ZNK2tt8tt_metal6Buffer9num_pagesEv", divisor},
	}},
	{"size", 0x08, 8, "size_", []shown{
		{"_ZNK2tt8tt_metal6Buffer4sizeEv", returned},
		{"_ZNK2tt8tt_metal6Buffer9num_pagesEv", dividend},
		{"_ZNK2tt8tt_metal6Buffer15is_valid_regionERKNS0_12BufferRegionE", compared},
	}},
	{"type", 0x10, 4, "buffer_type_", []shown{
		{"_ZNK2tt8tt_metal6Buffer11buffer_typeEv", returned},
		{"_ZNK2tt8tt_metal6Buffer7is_dramEv", compared},
		{"_ZNK2tt8tt_metal6Buffer9alignmentEv", passed("get_alignment", 1)},
	}},
	{"layout", 0x14, 4, "buffer_layout_", []shown{
		{"_ZNK2tt8tt_metal6Buffer13buffer_layoutEv", returned},
		{"_ZNK2tt8tt_metal6Buffer9num_coresEv", decides},
		{"_ZNK2tt8tt_metal6Buffer13num_dev_pagesEv", decides},
	}},
	{"allocator", 0x30, 8, "allocator_", []shown{
		{"_ZNK2tt8tt_metal6Buffer9allocatorEv", followed},
		{"_ZNK2tt8tt_metal6Buffer9alignmentEv", passed("get_alignment", 0)},
		{allocateOld, passed("15allocate_buffer", 0)},
		{allocateNew, passed("15allocate_buffer", 0)},
	}},
	{"hooked", 0x39, 1, "hooked_allocation_", []shown{
		{allocateOld, marked(true)},
		{allocateNew, marked(true)},
		{deallocateOld, spares},
		{deallocateNew, spares},
	}},
	{"address", 0x40, 4, "address_", []shown{
		{"_ZNK2tt8tt_metal6Buffer7addressEv", returned},
		{allocateOld, stored},
		{allocateNew, stored},
	}},
}

// The functions that give a buffer its memory and take it back, up to 0.78.0
// and from 0.79.0 on. The newer ones are of the object with the fields.
const (
	allocateOld   = "_ZN2tt8tt_metal6Buffer13allocate_implEv"
	allocateNew   = "_ZN2tt8tt_metal10BufferImpl13allocate_implERNS0_6BufferE"
	deallocateOld = "_ZN2tt8tt_metal6Buffer15deallocate_implEv"
	deallocateNew = "_ZN2tt8tt_metal10BufferImpl15deallocate_implERNS0_6BufferE"
)

// mustShow are the fields that a library has to show by itself before the
// table is believed about the others.
var mustShow = []string{"status", "page_size", "size", "type", "address"}
