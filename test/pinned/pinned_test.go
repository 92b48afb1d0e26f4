package pinned

import (
	"slices"
	"testing"
)

func TestRenamedNameIsRemovedAndAdded(t *testing.T) {
	removed, added := compare([]string{"a", "new"}, []string{"a", "old"})
	if !slices.Equal(removed, []string{"old"}) || !slices.Equal(added, []string{"new"}) {
		t.Errorf("removed %v, added %v", removed, added)
	}
}
