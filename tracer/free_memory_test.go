package tracer

import (
	"testing"

	"github.com/prometheus/procfs"
)

// The pages of this program itself are not resident when it does nothing, and it goes on.
func TestUnmapProgram(t *testing.T) {
	resident := func() uint64 {
		self, err := procfs.Self()
		if err != nil {
			t.Fatal(err)
		}
		s, err := self.NewStatus()
		if err != nil {
			t.Fatal(err)
		}
		return s.RssFile
	}
	before := resident()
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after > before*3/4 {
		t.Errorf("%d bytes of files are resident, before %d", after, before)
	} else {
		t.Logf("%d bytes of files were resident, then %d", before, after)
	}
}
