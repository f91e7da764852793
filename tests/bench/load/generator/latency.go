package main

import (
	"fmt"
	"strconv"
	"time"
)

func latency(r *result) {
	setup()
	k := newTracker()
	k.start()
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	m := begin("latency")
	for i := range *n {
		name := fmt.Sprintf("b-%s-%05d", run, i)
		must(create(k, name, run))
		k.wait("bound", func() bool { return k.counts.bound > i })
		must(remove(name))
		k.wait("PV gone", func() bool { return k.counts.pvgone > i && k.counts.pvcgone > i })
	}
	r.Phases = append(r.Phases, m.end())
	r.Dists = map[string]dist{
		"created->handed":  distOf(k.diff(func(t *times) time.Time { return t.created }, func(t *times) time.Time { return t.handed })),
		"handed->pv":       distOf(k.diff(func(t *times) time.Time { return t.handed }, func(t *times) time.Time { return t.pv })),
		"pv->bound":        distOf(k.diff(func(t *times) time.Time { return t.pv }, func(t *times) time.Time { return t.bound })),
		"created->bound":   distOf(k.diff(func(t *times) time.Time { return t.created }, func(t *times) time.Time { return t.bound })),
		"released->pvgone": distOf(k.diff(func(t *times) time.Time { return t.released }, func(t *times) time.Time { return t.pvgone })),
	}
}

func idle(r *result) {
	m := begin("idle")
	time.Sleep(*forDur)
	r.Phases = append(r.Phases, m.end())
}
