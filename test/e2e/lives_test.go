package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"tt-memtrace/test/rig"
)

// liveSeeds seed the lives that all tests run. If randomTimeEnv is set, such as to 5m, others run for that long, and
// with randomSeedEnv one of them again.
var liveSeeds = []uint64{1, 2}

const (
	randomTimeEnv = "TT_MEMTRACE_RANDOM_TIME"
	randomSeedEnv = "TT_MEMTRACE_RANDOM_SEED"
)

// Whatever becomes of devices, their submeshes and their objects: what is closed holds nothing, and what is open what the
// runtime's allocators list, for each tracer.
func TestRandomLives(t *testing.T) {
	r := installed(t)
	seeds, rests := liveSeeds, 8
	var end time.Time
	if text := os.Getenv(randomTimeEnv); text != "" {
		lasts, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		seeds, rests, end = []uint64{uint64(time.Now().UnixNano() % 1e6)}, 20, time.Now().Add(lasts)
	}
	if text := os.Getenv(randomSeedEnv); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds, rests, end = []uint64{seed}, 20, time.Time{}
	}
	total := newTally()
	clusters := []string{"n300", "t3k"}
	for i := 0; i < len(seeds); i++ {
		seed, cluster := seeds[i], clusters[seeds[i]%uint64(len(clusters))]
		t.Run(fmt.Sprintf("%s/%s=%d", cluster, randomSeedEnv, seed), func(t *testing.T) {
			observe(t, r, rig.Options{Cluster: cluster, Script: rig.Lives, Args: []string{"--seed", fmt.Sprint(seed), "--rests", fmt.Sprint(rests)}}, total, false)
		})
		if time.Now().Before(end) {
			seeds = append(seeds, seed+1)
		}
	}
	total.log(t, r)
}
