package metal

import (
	"slices"
	"testing"
)

// The types of a message's arguments are in the name of the function that throws it.
func TestArgumentsOfThrowingFunctions(t *testing.T) {
	const of = "_ZN2tt6assert6detail13tt_throw_implIJN3fmt3v117fstringIJ"
	for symbol, want := range map[string][]ArgumentType{
		of + "EEEEEvPKciS8_S8_DpRKT_": nil,
		of + "RKmRKSt17basic_string_viewIcSt11char_traitsIcEERKjS7_S7_S7_S7_S7_RKNSt7__cxx1112basic_stringIcSA_SaIcEEEEEEmSB_jmmmmmSJ_EEEvPKciSO_SO_DpRKT_": {
			Unsigned64, Text, Unsigned32, Unsigned64, Unsigned64, Unsigned64, Unsigned64, Unsigned64, Text},
		of + "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKmRKjEEESB_mjEEEvPKciSK_SK_DpRKT_": {Text, Unsigned64, Unsigned32},
		of + "RKmRKiEEEmiEEEvPKciSC_SC_DpRKT_":                                                          {Unsigned64, OtherArgument},
		"_ZN2tt6assert6detail13tt_throw_implIJN3fmt":                                                    nil,
	} {
		got := argumentsOf(symbol)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", symbol, got, want)
		}
		packed := packArguments(got)
		for i, typ := range want {
			if packed.At(i) != typ {
				t.Errorf("%s: packed, argument %d is %v", symbol, i, packed.At(i))
			}
		}
	}
	// A text too many is not shown.
	many := packArguments(slices.Repeat([]ArgumentType{Text}, maxTexts+1))
	if many.At(maxTexts-1) != Text || many.At(maxTexts) != OtherArgument {
		t.Errorf("of %d texts: %#x", maxTexts+1, uint64(many))
	}
}
