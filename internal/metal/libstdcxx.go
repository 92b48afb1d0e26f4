package metal

// The parts of a std::unordered_set of libstdc++, and of its nodes, which hold a
// pointer and no hash; bytes.
const (
	SetBuckets     = 0 // for each, the node before its first one
	SetBucketCount = 8
	SetFirst       = 16
	SetCount       = 24
	NodeValue      = 8
)

// The parts of a node of a std::unordered_map<int, uint64_t>.
const (
	NodeKey  = 8
	NodeData = 16
)

// SetLoad is where a std::unordered_set has its greatest load, and FullLoad what
// that is unless it was changed: 1 as a float.
const (
	SetLoad  = 32
	FullLoad = 0x3f800000
)

// The parts of a node of a std::unordered_map from a number to a std::shared_ptr.
const NodeShared = 16
