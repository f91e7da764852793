package main

import (
	"fmt"
	"strconv"
	"syscall"
	"time"
)

func burst(r *result) {
	setup()
	k := newTracker()
	k.start()
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	name := func(i int) string { return fmt.Sprintf("b-%s-%05d", run, i) }
	N := *n

	if *isoKCM > 0 {
		*preannotate = true
		must(syscall.Kill(*isoKCM, syscall.SIGSTOP))
		defer syscall.Kill(*isoKCM, syscall.SIGCONT)
	}
	drain := *isoKCM > 0 && *isoSidecar > 0
	if drain {
		must(syscall.Kill(*isoSidecar, syscall.SIGSTOP))
		defer syscall.Kill(*isoSidecar, syscall.SIGCONT)
	}
	m := begin("create")
	parallel(N, func(i int) error { return create(k, name(i), run) })
	created := time.Since(m.t0)
	if drain {
		time.Sleep(2 * time.Second)
		m = begin("create")
		syscall.Kill(*isoSidecar, syscall.SIGCONT)
	}
	k.wait("PVs", func() bool { return k.counts.pv >= N })
	pv := time.Since(m.t0)
	r.Rates = map[string]float64{"created": float64(N) / created.Seconds(), "pv": float64(N) / pv.Seconds()}
	if *isoKCM > 0 {
		r.Rates["pv_isolated"] = r.Rates["pv"]
		time.Sleep(time.Second) // the last events of the sidecar
		m.name = "create-isolated"
		r.Phases = append(r.Phases, m.end())
		syscall.Kill(*isoKCM, syscall.SIGCONT)
		m = begin("bind")
	}
	if *until == "bound" {
		k.wait("bound PVCs", func() bool { return k.counts.bound >= N })
		r.Rates["bound"] = float64(N) / time.Since(m.t0).Seconds()
	}
	r.Phases = append(r.Phases, m.end())
	r.Dists = map[string]dist{
		"created->handed": distOf(k.diff(func(t *times) time.Time { return t.created }, func(t *times) time.Time { return t.handed })),
		"handed->pv":      distOf(k.diff(func(t *times) time.Time { return t.handed }, func(t *times) time.Time { return t.pv })),
		"pv->bound":       distOf(k.diff(func(t *times) time.Time { return t.pv }, func(t *times) time.Time { return t.bound })),
		"created->bound":  distOf(k.diff(func(t *times) time.Time { return t.created }, func(t *times) time.Time { return t.bound })),
	}
	time.Sleep(2 * time.Second)
	if *attach {
		burstAttach(r, k, run)
	}
	if *keep {
		return
	}
	if *isoSidecar > 0 {
		must(syscall.Kill(*isoSidecar, syscall.SIGSTOP))
		parallel(N, func(i int) error { return remove(name(i)) })
		k.wait("released PVs", func() bool { return k.counts.released >= N && k.counts.pvcgone >= N })
		time.Sleep(2 * time.Second)
		m = begin("delete-isolated")
		syscall.Kill(*isoSidecar, syscall.SIGCONT)
		k.wait("PVs gone", func() bool { return k.counts.pvgone >= N })
		r.Rates["pv_gone_isolated"] = float64(N) / time.Since(m.t0).Seconds()
		r.Phases = append(r.Phases, m.end())
		return
	}
	m = begin("delete")
	parallel(N, func(i int) error { return remove(name(i)) })
	k.wait("PVCs gone", func() bool { return k.counts.pvcgone >= N })
	r.Rates["pvc_gone"] = float64(N) / time.Since(m.t0).Seconds()
	k.wait("PVs gone", func() bool { return k.counts.pvgone >= N })
	r.Rates["pv_gone"] = float64(N) / time.Since(m.t0).Seconds()
	r.Phases = append(r.Phases, m.end())
	r.Dists["released->pvgone"] = distOf(k.diff(func(t *times) time.Time { return t.released }, func(t *times) time.Time { return t.pvgone }))
	r.Dists["pvcgone->pvgone"] = distOf(k.diff(func(t *times) time.Time { return t.pvcgone }, func(t *times) time.Time { return t.pvgone }))
	m = begin("rest-after")
	time.Sleep(5 * time.Second)
	r.Phases = append(r.Phases, m.end())
}
