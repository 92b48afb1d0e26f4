package tracer

import (
	"testing"
	"time"
)

// Each transition of a process's life leads where it should, or panics because it is illegal.
func TestLifeOfAProcess(t *testing.T) {
	steps := map[string]func(*process){
		"seek":         (*process).seek,
		"join":         func(p *process) { p.join(&traced{}, true) },
		"join in part": func(p *process) { p.join(&traced{}, false) },
		"examined":     (*process).examined,
		"lose":         (*process).lose,
		"end":          (*process).end,
	}
	const no = stage(99) // illegal
	for from, want := range map[stage]map[string]stage{
		unknown: {"seek": sought, "join": joined, "join in part": joining, "examined": no, "lose": no, "end": unknown},
		sought:  {"seek": no, "join": joined, "join in part": joining, "examined": no, "lose": no, "end": unknown},
		joining: {"seek": no, "join": no, "join in part": no, "examined": joined, "lose": unknown, "end": unknown},
		joined:  {"seek": no, "join": no, "join in part": no, "examined": joined, "lose": unknown, "end": unknown},
	} {
		for name, step := range steps {
			p := &process{stage: from, untraced: true, execed: 5, unsized: true}
			if from >= joining {
				p.traced = &traced{}
			}
			got := no
			func() {
				defer func() { _ = recover() }()
				step(p)
				got = p.stage
			}()
			if got != want[name] {
				t.Errorf("%v, %s: %v, want %v", from, name, got, want[name])
			}
			if got != no && ((p.traced != nil) != (got >= joining) || !p.untraced || p.execed != 5) {
				t.Errorf("%v, %s: %+v", from, name, p)
			}
		}
	}
}

// The state of a traced process follows from its scans.
func TestStateOfAProcess(t *testing.T) {
	now := time.Now()
	for want, p := range map[state]*process{
		stateUntracked: {stage: sought},
		stateAttached:  {stage: joining, traced: &traced{reconciliation: reconciliation{suspect: now}}},
		stateScanning: {stage: joined, traced: &traced{
			reconciliation: reconciliation{now: &reading{first: true}, suspect: now}}},
		stateSuspect: {stage: joined, traced: &traced{reconciliation: reconciliation{suspect: now}}},
		stateSteady:  {stage: joined, traced: &traced{reconciliation: reconciliation{now: &reading{}}}},
	} {
		if got := p.state(); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// What is kept of a PID goes once nothing of it is needed.
func TestNothingIsKeptOfAProcessThatEnded(t *testing.T) {
	ps := processes{}
	p := ps.of(7)
	p.seek()
	p.untraced = true
	if !ps.active() {
		t.Error("the reader may sleep for good while records of a process arrive")
	}
	p.end()
	if ps.active() {
		t.Error("a process that is not traced keeps the reader awake")
	}
	if ps.drop(7); ps[7] == nil {
		t.Error("that it is not traced is forgotten")
	}
	p.untraced = false
	if ps.drop(7); len(ps) != 0 {
		t.Errorf("%+v is kept", ps[7])
	}
}
