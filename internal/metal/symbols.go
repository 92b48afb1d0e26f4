package metal

import "slices"

// All mangled names of the runtime that tracing rests on are in this file: those of
// functions that are probed, evaluated or followed, and of the classes of objects.
// If releases differ, the newest name is the first. One that ends in * is a prefix.

// Parts of mangled names.
const (
	nameSpace    = "2tt8tt_metal"
	ofBuffer     = nameSpace + "6Buffer"
	ofBufferImpl = nameSpace + "10BufferImpl"
	ofCluster    = "_ZNK2tt7Cluster"
	ofAssert     = "_ZN2tt6assert"
	vtableOf     = "_ZTVN"
)

// allocateInBlock: bank space taken.
var allocateInBlock = []string{"_ZN2tt8tt_metal9allocator11FreeListOpt17allocate_in_blockEmmm"}

// trackDeallocate: buffer freed.
var trackDeallocate = []string{"_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"}

// The process-wide observers of buffers, in releases to come.
var (
	notifyAllocated   = []string{"_ZN2tt8tt_metal23notify_buffer_allocatedEPKNS0_6BufferE"}
	notifyDeallocated = []string{"_ZN2tt8tt_metal25notify_buffer_deallocatedEPNS0_6BufferE"}
)

// keepBuffer puts a Buffer* into a std::unordered_set, as an allocator does when it has
// found a place: instances of two templates of libstdc++, newest first.
var keepBuffer = []string{
	bufferSet + "15_M_emplace_uniqIJRKS3_EEESt4pairINS5_14_Node_iteratorIS3_Lb1ELb0EEEbEDpOT_",
	bufferSet + "16_M_insert_uniqueIRKS3_SJ_NS5_10_AllocNodeISaINS5_10_Hash_nodeIS3_Lb0EEEEEEEESt4pairINS5_14_Node_iteratorIS3_Lb1ELb0EEEbEOT_OT0_RKT1_",
}

const bufferSet = "_ZNSt10_HashtableIPN2tt8tt_metal6BufferES3_SaIS3_ENSt8__detail9_IdentityESt8equal_toIS3_ESt4hashIS3_E" +
	"NS5_18_Mod_range_hashingENS5_20_Default_ranged_hashENS5_20_Prime_rehash_policyENS5_17_Hashtable_traitsILb0ELb1ELb1EEEE"

// deallocateBuffer: an allocator frees one buffer.
var deallocateBuffer = []string{
	"_ZN2tt8tt_metal13AllocatorImpl17deallocate_bufferEPNS0_6BufferE",
	"_ZN2tt8tt_metal9Allocator17deallocate_bufferEPNS0_6BufferE",
}

// deallocateBlock frees a block of a bank, by its address.
const deallocateBlock = "_ZN2tt8tt_metal9allocator11FreeListOpt10deallocateEm"

// What a buffer asks each bank for, a list of blocks, and a block that it gives.
const (
	sizePerBank = "_ZNK2tt8tt_metal6Buffer21aligned_size_per_bankEv"
	makeBlocks  = "_ZN2tt8tt_metal9allocator11FreeListOptC1EmmmmNS2_12SearchPolicyE"
	giveBlock   = "_ZN2tt8tt_metal9allocator11FreeListOpt8allocateEmbm"
)

// deallocateBuffers: all buffers freed.
var deallocateBuffers = []string{
	"_ZN2tt8tt_metal13AllocatorImpl18deallocate_buffersEv",
	"_ZN2tt8tt_metal9Allocator18deallocate_buffersEv",
}

// destroyAllocator: allocator destroyed.
var destroyAllocator = []string{"_ZN2tt8tt_metal13AllocatorImplD2Ev", "_ZN2tt8tt_metal9AllocatorD2Ev"}

// resizeAllocator: a memory of an allocator becomes smaller, or as large as it was.
var resizeAllocator = []string{
	"_ZN2tt8tt_metal13AllocatorImpl21shrink_allocator_sizeERKNS0_10BufferTypeEmb",
	"_ZN2tt8tt_metal13AllocatorImpl20reset_allocator_sizeERKNS0_10BufferTypeE",
	"_ZN2tt8tt_metal9Allocator21shrink_allocator_sizeERKNS0_10BufferTypeEmb",
	"_ZN2tt8tt_metal9Allocator20reset_allocator_sizeERKNS0_10BufferTypeE",
}

// PersistentRanges lists what is taken of such an arena on any core, as pairs of addresses, and changePersistent
// changes it.
const PersistentRanges = "_ZNK2tt8tt_metal17PersistentL1Arena15occupied_rangesEv"

// PersistentTop returns the end of what is taken of it on some cores.
const PersistentTop = "_ZNK2tt8tt_metal17PersistentL1Arena15high_water_markERKNS0_12CoreRangeSetE"

var changePersistent = []string{
	"_ZN2tt8tt_metal17PersistentL1Arena8allocateERKNS0_12CoreRangeSetEmm",
	"_ZN2tt8tt_metal17PersistentL1Arena10deallocateEm",
}

// destroyPersistent ends an arena of L1 that outlasts programs, which no allocation of buffers shows.
const destroyPersistent = "_ZN2tt8tt_metal17PersistentL1ArenaD1Ev"

// ofBankManager is in the names of the functions of an allocator's banks.
const ofBankManager = "11BankManager"

// subDeviceManagers are symbols of every release that has sub-device managers.
var subDeviceManagers = []string{MeshManager}

// initializeDevice: device opened.
var initializeDevice = []string{
	"_ZN2tt8tt_metal6Device10initializeE*",
	"_ZN2tt8tt_metal11distributed10MeshDevice10initializeE*",
}

// closeDevice: device closed.
var closeDevice = []string{
	"_ZN2tt8tt_metal6Device5closeEv",
	"_ZN2tt8tt_metal11distributed10MeshDevice5closeEv",
}

// trackAllocateCB: circular buffer placed.
var trackAllocateCB = []string{
	"_ZN2tt8tt_metal12GraphTracker17track_allocate_cbERKNS0_12CoreRangeSetEmmbPKNS0_7IDeviceE",
	"_ZN2tt8tt_metal12GraphTracker17track_allocate_cbERK12CoreRangeSetmmbPKNS0_7IDeviceE",
}

// destroyProgram: program destroyed.
var destroyProgram = []string{"_ZN2tt8tt_metal6detail11ProgramImplD1Ev"}

// addKernel: kernel added.
var addKernel = []string{"_ZN2tt8tt_metal6detail11ProgramImpl10add_kernelERKSt10shared_ptrINS0_6KernelEERKNS0_23HalProgrammableCoreTypeE"}

// readBinaries: kernel read.
var readBinaries = []string{
	"_ZN2tt8tt_metal18DataMovementKernel13read_binariesE*",
	"_ZN2tt8tt_metal13ComputeKernel13read_binariesE*",
	"_ZN2tt8tt_metal14EthernetKernel13read_binariesE*",
	"_ZN2tt8tt_metal10DramKernel13read_binariesE*",
	"_ZN2tt8tt_metal12experimental6quasar24QuasarDataMovementKernel13read_binariesE*",
	"_ZN2tt8tt_metal12experimental6quasar19QuasarComputeKernel13read_binariesE*",
	"_ZN2tt8tt_metal12experimental6quasar20DispatchEngineKernel13read_binariesE*",
}

// setKernelsBinBuffer: kernels copied to DRAM.
var setKernelsBinBuffer = []string{
	"_ZN2tt8tt_metal6detail11ProgramImpl22set_kernels_bin_bufferERKSt10shared_ptrINS0_6BufferEE",
	"_ZN2tt8tt_metal7Program22set_kernels_bin_bufferERKSt10shared_ptrINS0_6BufferEE",
}

// addProgram: program added to a workload.
var addProgram = []string{"_ZN2tt8tt_metal11distributed16MeshWorkloadImpl11add_programERKNS1_19MeshCoordinateRangeEONS0_7ProgramE"}

// destroyWorkload: workload destroyed.
var destroyWorkload = []string{
	"_ZN2tt8tt_metal11distributed16MeshWorkloadImplD1Ev",
	"_ZN2tt8tt_metal11distributed16MeshWorkloadImplD2Ev",
}

// nameWorkload: workload named.
var nameWorkload = []string{"_ZN2tt8tt_metal9Inspector47mesh_workload_set_operation_name_and_parametersE*"}

// enqueueMeshWorkload: workload launched.
var enqueueMeshWorkload = []string{"_ZN2tt8tt_metal11distributed19EnqueueMeshWorkloadERNS1_16MeshCommandQueueERNS1_12MeshWorkloadEb"}

// launchProgram: program launched.
var launchProgram = []string{
	// If there are both, the second calls the first.
	"_ZN2tt8tt_metal13slow_dispatch18LaunchProgramAsyncERNS0_7IDeviceERNS0_7ProgramEb",
	"_ZN2tt8tt_metal6detail13LaunchProgramEPNS0_7IDeviceERNS0_7ProgramEbb",
}

// enqueueProgram: program enqueued.
var enqueueProgram = []string{"_ZN2tt8tt_metal14HWCommandQueue15enqueue_programERNS0_7ProgramEb"}

// enqueueTrace: trace replayed.
var enqueueTrace = []string{"_ZN2tt8tt_metal11distributed18FDMeshCommandQueue13enqueue_traceERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEEb"}

// recordBegin: capture of a trace begins.
var recordBegin = []string{"_ZN2tt8tt_metal11distributed18FDMeshCommandQueue12record_beginERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEERKSt10shared_ptrINS1_19MeshTraceDescriptorEE"}

// recordEnd: capture of a trace ends.
var recordEnd = []string{"_ZN2tt8tt_metal11distributed18FDMeshCommandQueue10record_endEv"}

// releaseMeshTrace: trace released.
var releaseMeshTrace = []string{
	"_ZN2tt8tt_metal11distributed14MeshDeviceImpl18release_mesh_traceERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEE",
	"_ZN2tt8tt_metal11distributed10MeshDevice18release_mesh_traceERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEE",
}

// recordIfUnsafe: allocation tracked.
var recordIfUnsafe = []string{"_ZN2tt8tt_metal13AllocatorImpl27record_allocation_if_unsafeEPNS0_6BufferE"}

// pushScope: corruptible scope begins.
var pushScope = []string{
	"_ZN2tt8tt_metal33push_corruptible_allocation_scopeERKSt6vectorIPNS0_13AllocatorImplESaIS3_EE",
	"_ZN2tt8tt_metal13AllocatorImpl33push_corruptible_allocation_scopeERKSt6vectorIPS1_SaIS3_EE",
}

// popScope: corruptible scope ends.
var popScope = []string{
	"_ZN2tt8tt_metal32pop_corruptible_allocation_scopeEv",
	"_ZN2tt8tt_metal13AllocatorImpl32pop_corruptible_allocation_scopeEv",
}

// removeTracked: buffer acknowledged as corruptible.
var removeTracked = []string{"_ZN2tt8tt_metal11distributed14MeshDeviceImpl24remove_unsafe_tracked_idEm"}

// The functions of a kernel-config ring (WorkerConfigBufferMgr): to make it, to add a kind of core, to find
// places, to give these and to give them up.
const (
	makeConfigRing      = "_ZN2tt8tt_metal21WorkerConfigBufferMgrC1Ev"
	initAddBuffer       = "_ZN2tt8tt_metal21WorkerConfigBufferMgr15init_add_bufferEjj"
	reserveInConfigRing = "_ZN2tt8tt_metal21WorkerConfigBufferMgr7reserveERKSt6vectorIjSaIjEE"
	placeInConfigRing   = "_ZN2tt8tt_metal21WorkerConfigBufferMgr5allocEj"
	freeInConfigRing    = "_ZN2tt8tt_metal21WorkerConfigBufferMgr4freeEj"
	fillConfigRing      = "_ZN2tt8tt_metal21WorkerConfigBufferMgr20mark_completely_fullEj"
)

// The getters of kernel-config rings: a mesh's command queue, the number of its sub-devices, the
// queue's ring of one, and what a program takes of it.
var MeshQueue = []string{
	"_ZNK2tt8tt_metal11distributed10MeshDevice18mesh_command_queueESt8optionalIhE",
	"_ZNK2tt8tt_metal11distributed10MeshDevice18mesh_command_queueEm",
}

const (
	MeshSubDevices  = "_ZNK2tt8tt_metal11distributed10MeshDevice15num_sub_devicesEv"
	QueueVtable     = "_ZTVN2tt8tt_metal11distributed18FDMeshCommandQueueE"
	QueueConfigRing = "_ZN2tt8tt_metal11distributed18FDMeshCommandQueue21get_config_buffer_mgrEj"
	// The same of a queue that dispatches slowly, and has none.
	SlowQueueVtable     = "_ZTVN2tt8tt_metal11distributed18SDMeshCommandQueueE"
	SlowQueueConfigRing = "_ZN2tt8tt_metal11distributed18SDMeshCommandQueue21get_config_buffer_mgrEj"
	CurrentQueue        = "GetCurrentCommandQueueIdForThread"
	ProgramConfigSize   = "_ZN2tt8tt_metal6detail11ProgramImpl23get_program_config_sizeEj"
)

// The getters of a Buffer.
const (
	bufferBufferType    = "_ZNK2tt8tt_metal6Buffer11buffer_typeEv"
	bufferIsAllocated   = "_ZNK2tt8tt_metal6Buffer12is_allocatedEv"
	bufferBufferLayout  = "_ZNK2tt8tt_metal6Buffer13buffer_layoutEv"
	bufferNumDevPages   = "_ZNK2tt8tt_metal6Buffer13num_dev_pagesEv"
	bufferIsValidRegion = "_ZNK2tt8tt_metal6Buffer15is_valid_regionERKNS0_12BufferRegionE"
	bufferSize          = "_ZNK2tt8tt_metal6Buffer4sizeEv"
	bufferDevice        = "_ZNK2tt8tt_metal6Buffer6deviceEv"
	bufferUniqueID      = "_ZNK2tt8tt_metal6Buffer9unique_idEv"
	bufferIsDram        = "_ZNK2tt8tt_metal6Buffer7is_dramEv"
	bufferAlignment     = "_ZNK2tt8tt_metal6Buffer9alignmentEv"
	bufferAllocator     = "_ZNK2tt8tt_metal6Buffer9allocatorEv"
	bufferNumCores      = "_ZNK2tt8tt_metal6Buffer9num_coresEv"
	bufferNumPages      = "_ZNK2tt8tt_metal6Buffer9num_pagesEv"
	bufferPageSize      = "_ZNK2tt8tt_metal6Buffer9page_sizeEv"
)

// Up to 0.78.0 no function returns a buffer's unique ID: its constructor takes it from a count.
const (
	bufferConstructor = "_ZN2tt8tt_metal6BufferC1EPNS0_7IDeviceEmmNS0_10BufferTypeERKNS0_18BufferShardingArgsESt8optionalIbES8_IN4ttsl10StrongTypeIhNS0_14SubDeviceIdTagEEEEbNS1_7PrivateE"
	bufferCount       = "_ZN2tt8tt_metal6Buffer14next_unique_idE"
)

// Buffers with an address on each core: whether a buffer is one, and its std::unordered_map<CoreCoord, DeviceAddr>.
const (
	isPerCore        = "_ZN2tt8tt_metal12experimental19per_core_allocation22is_per_core_allocationERKNS0_6BufferE"
	perCoreAddresses = "_ZN2tt8tt_metal12experimental19per_core_allocation22get_per_core_addressesERKNS0_6BufferE"
)

// allocatedBuffers returns a copy of an allocator's std::unordered_set<Buffer*>.
var allocatedBuffers = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl21get_allocated_buffersEv",
	"_ZNK2tt8tt_metal9Allocator21get_allocated_buffersEv",
}

// numAllocatedBuffers returns how many there are in it.
var numAllocatedBuffers = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl25get_num_allocated_buffersEv",
	"_ZNK2tt8tt_metal9Allocator25get_num_allocated_buffersEv",
}

// AllocatorOf returns a device's allocator.
var AllocatorOf = map[string][]string{
	DeviceVtable: {
		"_ZNK2tt8tt_metal6Device14allocator_implEv",
		"_ZNK2tt8tt_metal6Device9allocatorEv",
	},
	MeshDeviceVtable: {
		"_ZNK2tt8tt_metal11distributed10MeshDevice14allocator_implEv",
		"_ZNK2tt8tt_metal11distributed10MeshDevice9allocatorEv",
	},
}

// Statistics of one memory, for which an allocator asks its list of blocks.
var Statistics = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl14get_statisticsERKNS0_10BufferTypeE",
	"_ZNK2tt8tt_metal9Allocator14get_statisticsERKNS0_10BufferTypeE",
}

const (
	BlockStatistics  = "_ZNK2tt8tt_metal9allocator11FreeListOpt14get_statisticsEv"
	AllocatedBlocks  = "_ZNK2tt8tt_metal9allocator11FreeListOpt19allocated_addressesEv"
	DeviceIsOpen     = "_ZNK2tt8tt_metal6Device14is_initializedEv"
	MeshParent       = "_ZNK2tt8tt_metal11distributed10MeshDevice15get_parent_meshEv"
	MeshIsOpen       = "_ZNK2tt8tt_metal11distributed10MeshDevice14is_initializedEv"
	MeshNumber       = "_ZNK2tt8tt_metal11distributed10MeshDevice2idEv"
	MeshManager      = "_ZNK2tt8tt_metal11distributed10MeshDevice33get_default_sub_device_manager_idEv"
	ActiveManager    = "_ZNK2tt8tt_metal11distributed10MeshDevice32get_active_sub_device_manager_idEv"
	NextManager      = "_ZN2tt8tt_metal16SubDeviceManager27next_sub_device_manager_id_E"
	BankingAllocator = "_ZTVN2tt8tt_metal18L1BankingAllocatorE"
	MockAllocator    = "_ZTVN2tt8tt_metal12experimental13MockAllocatorE"
)

const (
	programImpl   = "_ZN2tt8tt_metal6detail11ProgramImpl"
	programVtable = "_ZTVSt23_Sp_counted_ptr_inplaceIN2tt8tt_metal6detail11ProgramImplE"

	ProgramNumber   = "_ZNK2tt8tt_metal6detail11ProgramImpl6get_idEv"
	ForgetCircular  = programImpl + "37invalidate_circular_buffer_allocationEv"
	ForgetDataflow  = programImpl + "37invalidate_dataflow_buffer_allocationEv"
	PlaceCircular   = programImpl + "25allocate_circular_buffersEPKNS0_7IDeviceE"
	PlaceDataflow   = programImpl + "25allocate_dataflow_buffersEPKNS0_7IDeviceE"
	ReserveLocal    = programImpl + "24reserve_program_local_l1EPKNS0_7IDeviceERKNS0_12CoreRangeSetE"
	MarkAddress     = programImpl + "23CircularBufferAllocator12mark_addressEmmm"
	CircularList    = "_ZNK2tt8tt_metal6detail11ProgramImpl16circular_buffersEv"
	CircularAddress = "_ZNK2tt8tt_metal18CircularBufferImpl7addressEv"
	PerChip         = "_ZN2tt8tt_metal6Device16register_programEPNS0_6detail11ProgramImplE"
	KernelsOf       = programImpl + "11get_kernelsEj"
	ProgramCommands = programImpl + "36get_cached_program_command_sequencesEv"
	TracedCommands  = programImpl + "42get_trace_cached_program_command_sequencesEv"
	KernelCopy      = "_ZNK2tt8tt_metal6detail11ProgramImpl18get_kernels_bufferEPNS0_7IDeviceE"
	BufferAddress   = "_ZNK2tt8tt_metal6Buffer7addressEv"

	// NextTrace returns the number of the next trace, and counts it. TraceOf returns a mesh's trace by number.
	NextTrace     = "_ZN2tt8tt_metal11distributed9MeshTrace7next_idEv"
	TraceOf       = "_ZN2tt8tt_metal11distributed10MeshDevice14get_mesh_traceERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEE"
	TraceBytes    = "_ZNK2tt8tt_metal11distributed10MeshDevice22get_trace_buffers_sizeEv"
	BackingBuffer = "_ZNK2tt8tt_metal11distributed10MeshBuffer18get_backing_bufferEv"

	// A program on its cores keeps others out of L1 below it, by a count that all share.
	SealCores   = "_ZN2tt8tt_metal17PersistentL1Arena4sealERKNS0_12CoreRangeSetE"
	UnsealCores = "_ZN2tt8tt_metal17PersistentL1Arena4SealD1Ev"

	// A std::vector of the cores of a CoreRangeSet, which depends on its arguments alone.
	CoresOf = "_ZN2tt8tt_metal18corerange_to_coresERKNS0_12CoreRangeSetESt8optionalIjEb"

	OwnAccount    = "_ZN2tt8tt_metal25SharedMemoryStatsProvider"
	TrackCircular = "_ZN2tt8tt_metal12GraphTracker17track_allocate_cb"
	ReadBinary    = "_ZN2tt4llrt15get_risc_binary"
	OnDisk        = "_ZNK2tt8tt_metal6Kernel22binaries_exist_on_disk"
	BuildEnv      = "_ZN2tt8tt_metal15BuildEnvManager20get_device_build_envEi"
)

// BuildEnvs gives the BuildEnvManager; its argument, a context's number, is 0 by default.
var BuildEnvs = []string{
	"_ZN2tt8tt_metal15BuildEnvManager12get_instanceEN4ttsl10StrongTypeIiNS0_12ContextIdTagEEE",
	"_ZN2tt8tt_metal15BuildEnvManager12get_instanceEv",
}

// The getters, by the names they have had.
const (
	DeviceVtable     = "_ZTVN2tt8tt_metal6DeviceE"
	MeshDeviceVtable = "_ZTVN2tt8tt_metal11distributed10MeshDeviceE"
	DeviceID         = "_ZNK2tt8tt_metal6Device2idEv"
	meshDeviceID     = "_ZNK2tt8tt_metal11distributed10MeshDevice2idEv"
	DeviceArch       = "_ZNK2tt8tt_metal6Device4archEv"
	MeshDeviceIDs    = "_ZNK2tt8tt_metal11distributed10MeshDevice14get_device_idsEv"
	MeshView         = "_ZNK2tt8tt_metal11distributed10MeshDevice8get_viewEv"
	DevicesInRange   = "_ZNK2tt8tt_metal11distributed14MeshDeviceView11get_devicesERKNS1_19MeshCoordinateRangeE"
	MeshDeviceArch   = "_ZNK2tt8tt_metal11distributed10MeshDevice4archEv"
	BoardType        = "_ZNK2tt7Cluster14get_board_typeEi"
	GetCluster       = "_ZN2tt8tt_metal12MetalContext11get_clusterEv"
	FabricConfig     = "_ZNK2tt8tt_metal12MetalContext17get_fabric_configEv"
)

// ContextInstance gives the MetalContext; its argument, a context's number, is 0 by default.
var ContextInstance = []string{
	"_ZN2tt8tt_metal12MetalContext8instanceEN4ttsl10StrongTypeIiNS0_12ContextIdTagEEE",
	"_ZN2tt8tt_metal12MetalContext8instanceEv",
}

var (
	NumBanks = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl13get_num_banksERKNS0_10BufferTypeE",
		"_ZNK2tt8tt_metal9Allocator13get_num_banksERKNS0_10BufferTypeE",
	}
	BankSize = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl13get_bank_sizeERKNS0_10BufferTypeE",
		"_ZNK2tt8tt_metal9Allocator13get_bank_sizeERKNS0_10BufferTypeE",
	}
	// BankBase is the first address that the allocator hands out in DRAM, or in L1, by HalMemType.
	BankBase = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl23get_base_allocator_addrERKNS0_10HalMemTypeE",
		"_ZNK2tt8tt_metal9Allocator23get_base_allocator_addrERKNS0_10HalMemTypeE",
	}
	// BankAlignment is what pages are aligned to.
	BankAlignment = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl13get_alignmentENS0_10BufferTypeE",
		"_ZNK2tt8tt_metal9Allocator13get_alignmentENS0_10BufferTypeE",
	}
)

const (
	DescriptorBoard = "_ZNK2tt3umd17ClusterDescriptor14get_board_typeEi"
	DescriptorIDs   = "_ZNK2tt3umd17ClusterDescriptor19get_chip_unique_idsEv"
)

// Kernels of Metal 2.0 have scratchpads: pieces of L1 on their cores. Nothing is
// called when one gets its place, so the kernels are asked a moment later.
var (
	// ScratchpadHandles calls a function for each, with its name, its size and
	// which of the kernel's common arguments holds its address.
	ScratchpadHandles = []string{
		"_ZNK2tt8tt_metal6Kernel34process_scratchpad_binding_handlesERKSt8functionIFvRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEjjRKSt8optionalINS0_11LLKMetadataEEEE",
		"_ZNK2tt8tt_metal6Kernel34process_scratchpad_binding_handlesESt8functionIFvRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEjjEE",
	}
	// CommonArguments gives where they are, and how many.
	CommonArguments = "_ZN2tt8tt_metal6Kernel24common_runtime_args_dataEv"
	// KernelRanges gives the kernel's cores, a std::vector<CoreRange>.
	KernelRanges = "_ZNK2tt8tt_metal6Kernel18logical_corerangesEv"
)

const (
	scratchpads = "_ZN2tt8tt_metal6detail11ProgramImpl20allocate_scratchpadsEPKNS0_7IDeviceE"
)

// dataflowSymbols are symbols of every release that has dataflow buffers.
var dataflowSymbols = []string{PlaceDataflow, "_ZNK2tt8tt_metal6detail11ProgramImpl24dataflow_buffers_on_coreERKNS_7xy_pairE"}

// getRiscBinary begins the name of a function that is in no name space of tt_metal.
const getRiscBinary = "_ZN2tt4llrt15get_risc_binaryE"

// TrackAllocate is called for each allocated buffer.
var TrackAllocate = []string{"_ZN2tt8tt_metal12GraphTracker14track_allocateEPKNS0_6BufferE"}

// RuntimeSymbols make a library the runtime, each by itself: others only import them.
var RuntimeSymbols = slices.Concat(TrackAllocate, notifyAllocated, deallocateBuffer)

// A ttnn operation launches its workload from function templates that are made
// for it alone, so the function that a launch was made from names the operation:
//
//	void ttnn::device_operation::detail::enqueue_mesh_workload<
//	    ttnn::device_operation::MeshDeviceOperationAdapter<ttnn::prim::MatmulDeviceOperation>>(…)
//
// or, where that one ends in a jump, one that calls it: launch_operation_with_adapter,
// create_and_cache_mesh_workload and others of the same name space.
const (
	launcherNameSpace = "4ttnn16device_operation"
	adapter           = "MeshDeviceOperationAdapterI"
)

// The functions that give a buffer its memory and take it back, up to 0.78.0
// and from 0.79.0 on. The newer ones are of the object with the fields.
const (
	allocateOld   = "_ZN2tt8tt_metal6Buffer13allocate_implEv"
	allocateNew   = "_ZN2tt8tt_metal10BufferImpl13allocate_implERNS0_6BufferE"
	deallocateOld = "_ZN2tt8tt_metal6Buffer15deallocate_implEv"
	deallocateNew = "_ZN2tt8tt_metal10BufferImpl15deallocate_implERNS0_6BufferE"
)

// The runtime throws by a function template, tt_throw_impl<format, types of the arguments...>(file, line, _, _, format,
// arguments...), which has an instance for each list of types. Its callers call it, or tt_throw, which calls it:
// these are the beginnings of their names.
const (
	throwImplementation = "_ZN2tt6assert6detail13tt_throw_implI"
	throwFunction       = "_ZN2tt6assert6detail8tt_throwI"
)

// roomless are the functions of the runtime that find no room for a buffer or for a program.
var roomless = []string{
	"_ZN2tt8tt_metal11BankManager15allocate_bufferE",
	"_ZN2tt8tt_metal6detail11ProgramImpl31validate_circular_buffer_regionE",
	"_ZN2tt8tt_metal6detail11ProgramImpl31validate_dataflow_buffer_regionE",
	"_ZN2tt8tt_metal6detail11ProgramImpl24finalize_program_offsetsE",
	"_ZN2tt8tt_metal17PersistentL1Arena8allocateE",
}
