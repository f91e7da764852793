package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

type dist struct {
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	N   int     `json:"n"`
}

func distOf(ds []time.Duration) (d dist) {
	if len(ds) == 0 {
		return
	}
	sort.Slice(ds, func(i, j int) bool { return ds[i] < ds[j] })
	at := func(q float64) float64 {
		i := int(q * float64(len(ds)-1))
		return float64(ds[i].Microseconds()) / 1000
	}
	return dist{at(0.5), at(0.9), at(0.99), at(1), len(ds)}
}

type times struct{ created, handed, pv, bound, pvcgone, released, pvgone time.Time }

type tracker struct {
	mu     sync.Mutex
	t      map[string]*times // by PVC name
	pvOf   map[string]string // PV name -> PVC name
	volume map[string]string // PVC name -> PV name
	counts struct{ handed, pv, bound, pvcgone, released, pvgone int }
	bump   chan struct{} // something was counted
}

func newTracker() *tracker {
	return &tracker{t: map[string]*times{}, pvOf: map[string]string{}, volume: map[string]string{}, bump: make(chan struct{}, 1)}
}

func (k *tracker) set(name string, field func(*times) *time.Time, count *int) {
	t := k.t[name]
	if t == nil {
		t = &times{}
		k.t[name] = t
	}
	if p := field(t); p.IsZero() {
		*p = time.Now()
		*count++
		select {
		case k.bump <- struct{}{}:
		default:
		}
	}
}

func (k *tracker) pvc(ev watch.EventType, o *corev1.PersistentVolumeClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ev == watch.Deleted {
		k.set(o.Name, func(t *times) *time.Time { return &t.pvcgone }, &k.counts.pvcgone)
		return
	}
	if o.Annotations[annProvisioner] != "" || o.Annotations[annProvisionerBeta] != "" {
		k.set(o.Name, func(t *times) *time.Time { return &t.handed }, &k.counts.handed)
	}
	if o.Status.Phase == corev1.ClaimBound {
		k.set(o.Name, func(t *times) *time.Time { return &t.bound }, &k.counts.bound)
	}
}

func (k *tracker) pv(ev watch.EventType, o *corev1.PersistentVolume) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := o.Spec.ClaimRef
	if r == nil || r.Namespace != *namespace || k.t[r.Name] == nil && !strings.HasPrefix(r.Name, "b-") {
		return
	}
	if k.pvOf[o.Name] == "" {
		k.pvOf[o.Name], k.volume[r.Name] = r.Name, o.Name
	}
	if ev == watch.Deleted {
		k.set(r.Name, func(t *times) *time.Time { return &t.pvgone }, &k.counts.pvgone)
		return
	}
	k.set(r.Name, func(t *times) *time.Time { return &t.pv }, &k.counts.pv)
	if o.Status.Phase == corev1.VolumeReleased {
		k.set(r.Name, func(t *times) *time.Time { return &t.released }, &k.counts.released)
	}
}

// wait waits until done() (called with the lock held) is true.
func (k *tracker) wait(what string, done func() bool) {
	end := time.After(*timeout)
	for {
		k.mu.Lock()
		ok := done()
		c := k.counts
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-k.bump:
		case <-end:
			fmt.Fprintf(os.Stderr, "timed out waiting for %s: %+v\n", what, c)
			os.Exit(2)
		}
	}
}

func (k *tracker) diff(a, b func(*times) time.Time) []time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	var r []time.Duration
	for _, t := range k.t {
		if x, y := a(t), b(t); !x.IsZero() && !y.IsZero() {
			r = append(r, max(0, y.Sub(x)))
		}
	}
	return r
}

// watchAll follows one resource from its current state on, for ever.
func watchAll(open func(rv string) (watch.Interface, error), rv string, on func(watch.EventType, any)) {
	w, err := open(rv)
	must(err)
	go func() {
		for {
			for ev := range w.ResultChan() {
				if ev.Type == watch.Error {
					fmt.Fprintf(os.Stderr, "watch: %v\n", ev.Object)
					os.Exit(3)
				}
				if ev.Type == watch.Bookmark {
					continue
				}
				if m, ok := ev.Object.(metav1.Object); ok {
					rv = m.GetResourceVersion()
				}
				on(ev.Type, ev.Object)
			}
			w, err = open(rv)
			must(err)
		}
	}()
}

func (k *tracker) start() {
	l, err := cs.CoreV1().PersistentVolumeClaims(*namespace).List(ctx, metav1.ListOptions{Limit: 1})
	must(err)
	lp, err := cs.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{Limit: 1})
	must(err)
	opt := func(rv string) metav1.ListOptions {
		s := int64(3600)
		return metav1.ListOptions{ResourceVersion: rv, TimeoutSeconds: &s}
	}
	watchAll(func(rv string) (watch.Interface, error) {
		return cs.CoreV1().PersistentVolumeClaims(*namespace).Watch(ctx, opt(rv))
	}, l.ResourceVersion, func(e watch.EventType, o any) { k.pvc(e, o.(*corev1.PersistentVolumeClaim)) })
	watchAll(func(rv string) (watch.Interface, error) {
		return cs.CoreV1().PersistentVolumes().Watch(ctx, opt(rv))
	}, lp.ResourceVersion, func(e watch.EventType, o any) { k.pv(e, o.(*corev1.PersistentVolume)) })
}
