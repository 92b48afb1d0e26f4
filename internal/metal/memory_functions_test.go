package metal

import "testing"

// A function whose name says that it hands out memory is unknown unless the table has it or its class.
func TestUnknownMemoryFunctions(t *testing.T) {
	for mangled, want := range map[string]string{
		"_ZN2tt8tt_metal13AllocatorImpl15allocate_bufferEPNS0_6BufferE":                  "",
		"_ZNK2tt8tt_metal9allocator11FreeListOpt19allocated_addressesEv":                 "",
		"_ZN2tt8tt_metal12DriscL1Arena8allocateEmm":                                      "",
		"_ZN2tt8tt_metal8NewArena8allocateEmm":                                           "NewArena::allocate",
		"_ZN2tt8tt_metal8internal7Service19reserve_l1_for_coreEm":                        "Service::reserve_l1_for_core",
		"_ZN2tt8tt_metal6detail11ProgramImpl20allocate_new_buffersEv":                    "ProgramImpl::allocate_new_buffers",
		"_ZN2tt8tt_metal7Tracker14track_allocateEPKNS0_6BufferE":                         "",
		"_ZN2tt9tt_fabric5Plane8allocateEv":                                              "",
		"_ZN2tt8tt_metal99allocate":                                                      "",
		"_ZNSt6vectorIN2tt8tt_metal6BufferESaIS2_EE7reserveEm_reserve_allocate":          "",
		"_ZN2tt8tt_metal12experimental16NewServiceMemory26mirror_lockstep_allocationEmm": "NewServiceMemory::mirror_lockstep_allocation",
	} {
		if got := unknownMemoryFunction(mangled); got != want {
			t.Errorf("%s: %q, want %q", mangled, got, want)
		}
	}
}
