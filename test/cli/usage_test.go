package cli

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Help says what can be traced, how, and what the exit codes mean.
func TestHelpTeaches(t *testing.T) {
	r := run(t, fine, "--help")
	contains(t, r.out,
		"-p PID", "-- CMD ARGS", "all processes of the host",
		"Exit codes:\n  0  success\n  1  failure\n  2  wrong usage\n  3  not permitted", "128+N",
		"Examples:", "sudo tt-memtrace -p 4711", "sudo tt-memtrace -- pytest",
		"top ", "status ", "log ", "forward ", "serve ", "doctor ", "completion ")
	if r.err != "" {
		t.Errorf("stderr: %s", r.err)
	}
	for _, command := range []string{"status", "completion bash", ""} {
		words := strings.Fields(command)
		if help, flag := run(t, fine, append([]string{"help"}, words...)...), run(t, fine, append(words, "--help")...); help.out != flag.out {
			t.Errorf("help %s:\n%s\nand with --help:\n%s", command, help.out, flag.out)
		}
	}
	for _, command := range []string{"top", "status", "log", "forward", "serve", "doctor", "version", "completion"} {
		r := run(t, fine, command, "--help")
		contains(t, r.out, "Usage:", "tt-memtrace "+command)
		if r.err != "" {
			t.Errorf("%s --help, stderr: %s", command, r.err)
		}
	}
}

// An error says in one or two lines what is wrong about a command line, with exit
// code 2, before any right is asked for or anything is traced.
func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"frobnicate", "see 'tt-memtrace --help'"},
		{"frobnicate", "tt-memtrace -- frobnicate"},
		{"statu", "did you mean status?"},
		{"man", "one folder"},
		{"completion tcsh", `completion for bash, zsh and fish, not "tcsh"`},
		{"completion powershell", `completion for bash, zsh and fish, not "powershell"`},
		{"status model.py", "tt-memtrace status -- model.py"},
		{"status --frobnicate", "see 'tt-memtrace status --help'"},
		{"-x", "see 'tt-memtrace --help'"},
		{"version 1", "see 'tt-memtrace version --help'"},
		{"doctor 4711", "see 'tt-memtrace doctor --help'"},
		{"doctor -- python model.py", "doctor starts no command: run 'tt-memtrace -- python'"},
		{"doctor -p 1 --lib x.so", "cannot be used together"},
		{"status -p 1 -- true", "cannot be used together"},
		{"log -p 1 -- true", "cannot be used together"},
		{"status --", "no command after --"},
		{"log --json --", "no command after --"},
		{"--", "no command after --"},
		{"status -p self", "invalid argument"},
		{"status -p -1", "invalid argument"},
		{"status --ring-buffer-bytes 0", "power of two"},
		{"status --ring-buffer-bytes 2048", "power of two"},
		{"status --ring-buffer-bytes 1000000", "power of two"},
		{"log --ring-buffer-bytes 16M", `invalid argument "16M" for --ring-buffer-bytes: not a whole number`},
		{"status -p abc", `invalid argument "abc" for -p: not a PID`},
		{"status --speed fast", `for --speed: not a number`},
		{"status --requested=perhaps", `for --requested: neither true nor false`},
		{"status --jsno", "unknown flag: --jsno; did you mean --json?"},
		{"--json", "unknown flag: --json; did you mean doctor, log, report or status --json?"},
		{"-o x", "did you mean export, record or report -o?"},
		{"log --every 1s", "did you mean status --every?"},
		{"--interval 1", "did you mean status --every?"},
		{"-d 1", "did you mean status --every?"},
		{"--once", "did you mean status?"},
		{"stats", "did you mean status?"},
		{"stats --help", "did you mean status?"},
		{"-q nosuch --help", "see 'tt-memtrace --help'"},
		{"help stats", `unknown command "stats"; did you mean status?`},
		{"diff a.ttm b.ttm", "did you mean report?"},
		{"ui --from x.ttm", "did you mean top?"},
		{"ps", "did you mean status?"},
		{"4711", "to trace a process: tt-memtrace -p 4711"},
		{"log 4711", "to trace a process: tt-memtrace log -p 4711"},
		{"log train.py", "put it after --: tt-memtrace log -- train.py"},
		{"log python train.py", "put it after --: tt-memtrace log -- python train.py"},
		{"report sh train.sh", "sh is a command, not a recording; to trace it, put it after --: tt-memtrace report -- sh train.sh"},
		{"report train.py", "to trace it, put it after --: tt-memtrace report -- python train.py"},
		{"record sh train.sh", "record run.ttm -- sh train.sh"},
		{"record x.ttm sh train.sh", "record x.ttm -- sh train.sh"},
		{"record", "record run.ttm -- python model.py"},
		{"completion bash x", `unexpected argument "x"`},
		{"help nosuch", `unknown command "nosuch"`},
		{"status --from a.ttm b.ttm", `each recording has a flag: --from FILE --from b.ttm`},
		{"help completion tcsh", `unknown command "tcsh"`},
		{"status --sample 200ms", "--sample=200ms"},
		{"--sample 200ms -- true", "--sample=200ms"},
		{"report --sample 1m -- true", "--sample=1m"},
		{"record --sample 5s x.ttm", "--sample=5s"},
		{"report --format xml x.ttm", "there are chrome, csv, html, json, pprof, text"},
		{"report --format htlm x.ttm", `there is no format "htlm": did you mean html?`},
		{"log --ring-buffer-bytes -4096", "invalid argument"},
		{"status --after -1s", "negative"},
		{"status --every -1s", "negative"},
		{"status --after 8s -- true", "--after is for processes that run already"},
		{"status --after 8s --from x.ttm", "--until 8s shows a recording as it was then"},
		{"status --every 5", `for --every: not a duration such as 500ms`},
		{"top", "'tt-memtrace status' and 'tt-memtrace log'"},
		{"", "the screen needs a terminal"},
	} {
		r := run(t, wrongUsage, strings.Fields(c.args)...)
		contains(t, r.err, "tt-memtrace: ", c.says)
		if strings.Contains(r.err, "strconv") {
			t.Errorf("%s: %s", c.args, r.err)
		}
		if r.out != "" || len(lines(r.err)) > 2 {
			t.Errorf("%s: %v", c.args, r)
		}
	}
}

// What an error names does not reach a terminal as it is: a process may have chosen it.
func TestErrorsAreInert(t *testing.T) {
	r := run(t, failed, "doctor", "--lib", "/none/\x1b[2J\u009b\u202e.so")
	contains(t, r.err, `/none/\x1b[2J\u009b\u202e.so: no such file`)
}

func TestVersion(t *testing.T) {
	r := run(t, fine, "version")
	if !regexp.MustCompile(`^tt-memtrace \S+.*\n$`).MatchString(r.out) {
		t.Errorf("version: %q", r.out)
	}
	if flag := run(t, fine, "--version"); flag.out != r.out {
		t.Errorf("--version: %q, version: %q", flag.out, r.out)
	}
}

// Each shell's script is produced, and is accepted by the shell where it is here.
func TestCompletionScripts(t *testing.T) {
	for shell, marker := range map[string]string{
		"bash": "complete -o", "zsh": "#compdef tt-memtrace", "fish": "complete -c tt-memtrace",
	} {
		r := run(t, fine, "completion", shell)
		contains(t, r.out, marker, "__complete")
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		check := exec.CommandContext(t.Context(), shell, "-n")
		check.Stdin = strings.NewReader(r.out)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}} {
		help := run(t, fine, append(args, "--help")...).out
		contains(t, help, "tt-memtrace "+strings.Join(args, " "), "source")
		if strings.Contains(strings.ToLower(help), "powershell") || strings.Contains(help, "brew") {
			t.Errorf("%v is of other systems:\n%s", args, help)
		}
	}
	contains(t, run(t, fine, "__complete", "st").out, "status\t")
	if r := run(t, fine, "__complete", "help", "st"); !strings.HasPrefix(r.out, "status\t") || len(lines(r.out)) != 2 {
		t.Errorf("help is completed by %v", r)
	}
	for _, args := range [][]string{{"replay", ""}, {"report", "a.ttm", ""}, {"export", ""}, {"record", ""}, {"status", "--from", ""}, {"log", "--record", ""}} {
		contains(t, run(t, fine, append([]string{"__complete"}, args...)...).out, "ttm\n:8\n") // a filter by suffix
	}
	contains(t, run(t, fine, "__complete", "status", "--").out, "--json\t", "--after\t", "--pid\t")
}
