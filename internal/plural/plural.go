// Package plural writes numbers of things: "1 buffer", "2 buffers".
package plural

import "strconv"

// Of returns n and the word for that number of things. Their word is one with an s, unless many is given.
func Of[N int | uint32 | uint64](n N, one string, many ...string) string {
	return strconv.FormatUint(uint64(n), 10) + " " + Word(n, one, many...)
}

// Word returns the word for n things.
func Word[N int | uint32 | uint64](n N, one string, many ...string) string {
	switch {
	case n == 1:
		return one
	case len(many) > 0:
		return many[0]
	}
	return one + "s"
}
