package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/record"
)

// browser is a headless Chromium with a page of a report.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu sync.Mutex
	// complaints are errors on its console, and requests.
	complaints []string
	requests   int
}

// open shows a page, and waits until it is drawn.
func open(t testing.TB, r *Report) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: scripts/deps.sh test installs it")
	}
	file := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(file)
	if err == nil {
		err = r.HTML(f)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR=" + t.TempDir()),
		chromedp.WindowSize(1200, 1000), chromedp.WSURLReadTimeout(time.Minute),
	}
	for _, off := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync"} {
		options = append(options, chromedp.Flag(off, true))
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	url := "file://" + file
	if err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, "exception: "+fmt.Sprintf("%+v", e.ExceptionDetails))
		case *runtime.EventConsoleAPICalled:
			b.complaints = append(b.complaints, fmt.Sprintf("console: %s %+v", e.Type, e.Args))
		case *log.EventEntryAdded:
			b.complaints = append(b.complaints, "log: "+e.Entry.Text)
		case *network.EventRequestWillBeSent:
			b.requests++
			if u := e.Request.URL; u != url && !strings.HasPrefix(u, "data:") {
				b.complaints = append(b.complaints, "request: "+u)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	watch := func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return err
	}
	b.do(chromedp.Func(watch), chromedp.Navigate(url))
	b.waits(`document.body.dataset.drawn === "yes"`)
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.fine()
		b.t.Fatal(err)
	}
}

// ask has the page evaluate an expression.
func ask[T any](b *browser, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.fine()
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// waits until a condition of the page holds.
func (b *browser) waits(condition string) {
	b.t.Helper()
	got := ask[string](b, fmt.Sprintf(`(async () => {
		for (const end = Date.now() + 60000; !(%s);) {
			if (Date.now() > end) return document.body.innerText.slice(0, 1000);
			await new Promise(requestAnimationFrame);
		}
		return "";
	})()`, condition), chromedp.EvalAwaitPromise)
	if got != "" {
		b.fine()
		b.t.Fatalf("%s does not come true on the page:\n%s", condition, got)
	}
}

// at is where a point of a chart's canvas is in the window, with the canvas scrolled into view.
func (b *browser) at(chart, point string) (x, y float64) {
	b.t.Helper()
	at := ask[[]float64](b, fmt.Sprintf(`(() => {
		const chart = charts.%s, e = chart.getDom();
		e.scrollIntoView({ block: "center", behavior: "instant" });
		const p = %s, box = e.getBoundingClientRect();
		return [box.x + p[0], box.y + p[1]];
	})()`, chart, point))
	return at[0], at[1]
}

// chooses an entry of a list, as a user does.
func (b *browser) chooses(list, value string) {
	b.t.Helper()
	ask[bool](b, fmt.Sprintf(`(() => { const e = document.getElementById(%q); e.value = %q; return e.dispatchEvent(new Event("change")); })()`, list, value))
}

func (b *browser) fine() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.t.Error(c)
	}
	if b.requests == 0 {
		b.t.Error("not even the page itself was requested: requests are not seen")
	}
}

// overTime makes a report with the sites' use over time.
func overTime(events ...aggregator.Event) *Report {
	a := aggregator.New()
	b := NewBuilder(a)
	b.SitesOverTime = true
	a.OnChange, a.OnCBChange, a.OnAllocationFailed = b.Change, b.CBChange, b.AllocationFailed
	for i := range events {
		a.Apply(&events[i])
		b.Event(&events[i])
	}
	return b.Report(Facts{Host: "h", Source: "python -c '\n\timport x\n'", Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)).UTC() }})
}

// The page as one file in a browser: nothing is requested, nothing complains, the
// flame graph zooms, and a time range changes what it shows.
func TestPageInABrowser(t *testing.T) {
	events := append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 200, 300, stack(20)), freed(8, 2), alloc(15, 3, 600, 50, stack(30)),
		aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: 12 * second, Memory: aggregator.DRAM, Failure: &aggregator.FailedAllocation{Message: "Out of Memory"}}, freed(21, 3))
	b := open(t, overTime(events...))
	verdict, title, heading := ask[string](b, `document.getElementById("verdict").innerText`), ask[string](b, "document.title"), ask[string](b, `document.querySelector("h1").innerText`)
	if !strings.HasPrefix(verdict, "1 × out of memory") || !strings.Contains(verdict, "1 buffer still allocated at the end, 400 B") || !strings.Contains(verdict, "DRAM peaked at 40.0 %") {
		t.Errorf("the verdict is %q", verdict)
	}
	if heading != "python -c ' import x '" || title != "tt-memtrace: "+heading {
		t.Errorf("the title is %q, the heading %q", title, heading)
	}
	has := func(text string) string {
		return fmt.Sprintf(`document.getElementById("range").textContent.includes(%q)`, text)
	}
	b.waits(has("800 B highest use"))

	// A click on a call makes it as wide as the whole, one on what is above it undoes that.
	name := `"f<script> (/home/m.py:10)"`
	width := `((name) => { const r = charts.flame.getOption().series[0].data.find((d) => d.name === name); return r.value[2] - r.value[1]; })(` + name + `)`
	b.waits(width + " === 0.25")
	cell := `charts.flame.convertToPixel({ seriesIndex: 0 }, ((name) => { const r = charts.flame.getOption().series[0].data.find((d) => d.name === name); return [(r.value[1] + r.value[2]) / 2, r.value[0] + 0.5]; })(` + name + `))`
	x, y := b.at("flame", cell)
	b.do(chromedp.MouseClickXY(x, y))
	b.waits(width + " === 1")
	x, y = b.at("flame", `charts.flame.convertToPixel({ seriesIndex: 0 }, [0.5, 0.5])`)
	b.do(chromedp.MouseClickXY(x, y))
	b.waits(width + " === 0.25")

	// The left end of the time range, dragged beyond the middle: only 200 and 100 bytes are held there.
	drag := func(from, to string) {
		x0, y0 := b.at("area", from)
		x1, _ := b.at("area", to)
		b.do(chromedp.DragAndDropXY(x0, y0, x1, y0))
	}
	drag(`[85, 321]`, `[85 + (e.clientWidth - 105) * 0.6, 321]`)
	b.waits(has("300 B highest use"))
	b.chooses("what", "grown")
	b.waits(has("100 B growth"))
	b.chooses("what", "allocated")
	b.waits(has("1.76 KiB allocated"))
	b.chooses("what", "left")
	b.waits(has("400 B not freed"))
	b.chooses("what", "peak")
	b.do(chromedp.Click("#whole"))
	b.waits(has("800 B highest use"))

	// The page shows who held how much where the mouse points.
	x, y = b.at("area", `charts.area.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [4, 100])`)
	b.do(chromedp.MouseEvent(chromedp.MouseMoved, x-3, y), chromedp.MouseEvent(chromedp.MouseMoved, x, y))
	b.waits(`document.getElementById("area").innerText.includes("600 B") && document.getElementById("area").innerText.includes("m.py:20 f<script>")`)
	if name := ask[string](b, `charts.area.getOption().yAxis[1].name`); !strings.Contains(name, "free per bank") || !strings.Contains(name, "largest free block") {
		t.Errorf("the lower chart is called %q", name)
	}
	b.chooses("axis", "capacity")
	b.waits(`charts.area.getOption().yAxis[0].max === 2000`)

	// Nothing is wider than the window, be it that of a telephone.
	for _, width := range []int64{1280, 700, 380} {
		b.do(chromedp.EmulateViewport(width, 900))
		b.waits(fmt.Sprintf(`innerWidth === %d && document.documentElement.scrollWidth <= %d && charts.area.getWidth() < %d`, width, width, width))
	}
	b.fine()
}

// Samples do not show that nothing used the runtime.
func TestReportOfNothingSampled(t *testing.T) {
	a := aggregator.New()
	b := NewBuilder(a)
	a.Apply(&aggregator.Event{Kind: aggregator.ReasonRaised, Time: 8, Reason: &aggregator.Reason{Code: exact.ReasonSampled, Detail: "none was seen"}})
	r := b.Report(Facts{Source: "true", Began: 7, Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)) }})
	if v := r.Verdict(); !r.Empty() || r.Exact || !r.Sampled || len(v) != 1 || !strings.Contains(v[0].Text, "no process was seen to use the TT-Metal runtime") {
		t.Errorf("empty %v, exact %v, %+v", r.Empty(), r.Exact, v)
	}
}

// Without any event there is a page as well.
func TestPageOfNothing(t *testing.T) {
	a := aggregator.New()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := NewBuilder(a).Report(Facts{Source: "true", Began: 7, Wall: func(at uint64) time.Time { return began.Add(time.Duration(at) - 7) }})
	if !r.Began.Equal(began) || !r.Empty() {
		t.Errorf("began at %v, empty: %v", r.Began, r.Empty())
	}
	for _, write := range []func(*strings.Builder) error{func(b *strings.Builder) error { return r.Text(b, Style{}) }, func(b *strings.Builder) error { return r.HTML(b) }} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "no process used the TT-Metal runtime") || strings.Contains(b.String(), "Not freed") || !strings.Contains(b.String(), "2026-01-02 03:04:05") {
			t.Errorf("%s", b.String())
		}
	}
}

// At each time the sites of a sample held together what the timeline says, and each
// what it had allocated then.
func TestSitesOverTimeAddUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	events := opened()
	live := map[uint64]bool{}
	at := uint64(2 * second)
	for range 4000 {
		at += uint64(random.IntN(5_000_000))
		id := random.Uint64N(40) + 1
		e := aggregator.Event{Kind: aggregator.Free, PID: 1, Time: at, Device: 7, Buffer: id}
		if !live[id] {
			e = alloc(0, id, id*1000, random.Uint64N(1000)+1, stack(uint32(id%10)))
			e.Time = at
		}
		live[id] = !live[id]
		events = append(events, e)
	}
	r := overTime(events...)
	for _, m := range r.Memories {
		distinct := map[int]bool{}
		for i, p := range m.Timeline {
			var sum uint64
			for _, s := range p.sites {
				sum += s.bytes
			}
			distinct[len(p.sites)] = true
			if sum != p.Used {
				t.Fatalf("sample %d at %v s: the sites held %d of %d", i, p.At, sum, p.Used)
			}
		}
		if len(m.Timeline) < points/2 || len(distinct) < 3 {
			t.Errorf("%d samples, of %d different numbers of sites", len(m.Timeline), len(distinct))
		}
	}
}

// large is a recording of at least so many bytes of allocations and frees from 300 call sites.
func large(t testing.TB, bytes int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large.ttm")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Header{Host: "h", Source: "large"})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	var stacks []*aggregator.Stack
	for i := range uint32(300) {
		stacks = append(stacks, &aggregator.Stack{Frames: append(stack(i).Frames, aggregator.Frame{Function: fmt.Sprint("layer", i%17), File: "/home/model.py", Line: i, Python: true},
			aggregator.Frame{Function: "main", File: "/home/run.py", Line: 1, Python: true})})
	}
	if err := w.Write(opened()); err != nil {
		t.Fatal(err)
	}
	live := make([]bool, 5000)
	at := uint64(second)
	for {
		var events []aggregator.Event
		for range 4096 {
			at += random.Uint64N(100_000)
			id := random.IntN(len(live))
			e := aggregator.Event{Kind: aggregator.Free, PID: 1, Time: at, Device: 7, Buffer: uint64(id + 1)}
			if !live[id] {
				e = alloc(0, uint64(id+1), random.Uint64N(1<<34), random.Uint64N(1<<20), stacks[random.IntN(len(stacks))])
				e.Time, e.PageSize, e.Allocator = at, random.Uint64(), random.Uint64() // bytes that cannot be compressed
			}
			live[id] = !live[id]
			events = append(events, e)
		}
		if err := w.Write(events); err != nil {
			t.Fatal(err)
		}
		if st, err := f.Stat(); err != nil {
			t.Fatal(err)
		} else if st.Size() >= bytes {
			break
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// The page of a long recording is as large as that of a short one, and drawn; how fast is
// BenchmarkPageOfALargeRecording's.
func TestPageOfALargeRecording(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds to make")
	}
	made := replayed(t, large(t, 4<<20))
	var html bytes.Buffer
	if err := made.HTML(&html); err != nil {
		t.Fatal(err)
	}
	if n := html.Len(); made.Events < 150_000 || n < 1<<20 || n > 3<<19 {
		t.Errorf("the page of %d events has %d bytes", made.Events, n)
	}
	open(t, made).fine()
}

// BenchmarkPageOfALargeRecording is how long it takes until a browser has drawn a page.
func BenchmarkPageOfALargeRecording(b *testing.B) {
	made := replayed(b, large(b, 20<<20))
	for b.Loop() {
		b.ReportMetric(ask[float64](open(b, made), `performance.getEntriesByName("drawn")[0].startTime`), "ms/drawn")
	}
}

// replayed reads a recording into a report.
func replayed(t testing.TB, path string) *Report {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := record.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	a := aggregator.New()
	b := NewBuilder(a)
	b.SitesOverTime = true
	a.OnChange, a.OnCBChange, a.OnAllocationFailed = b.Change, b.CBChange, b.AllocationFailed
	for {
		events, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.Report(Facts{Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)) }})
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			a.Apply(&events[i])
			b.Event(&events[i])
		}
	}
}
