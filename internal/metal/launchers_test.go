package metal

import "testing"

func TestOperationIsReadFromItsLauncher(t *testing.T) {
	const before = "_ZN4ttnn16device_operation6detail21enqueue_mesh_workloadITkNS0_36DeviceOperationWithMeshDeviceAdapterENS0_26"
	for symbol, want := range map[string]string{
		before + "MeshDeviceOperationAdapterINS_10operations9binary_ng23BinaryNgDeviceOperationEEEEEvRKNT_22operation_attributes_tE": "BinaryNgDeviceOperation",
		before + "MeshDeviceOperationAdapterINS_4prim21MatmulDeviceOperationEEEEEvRKNT_22operation_attributes_tE":                    "MatmulDeviceOperation",
		before + "MeshDeviceOperationAdapterIN2my9OperationEEEEEvRKNT_":                                                              "Operation",
		before + "MeshDeviceOperationAdapterI9OperationEEEEvRKNT_":                                                                   "Operation",
		before + "MeshDeviceOperationAdapterINS":                                                                                     "",
		before + "MeshDeviceOperationAdapterIN99999999999999999999x":                                                                 "",
		before + "MeshDeviceOperationAdapterIN9Op":                                                                                   "",
		"_ZN2tt8tt_metal13LaunchProgramE":                                                                                            "",
	} {
		if got := operationOf(symbol); got != want {
			t.Errorf("%s: %q", symbol, got)
		}
	}
}
