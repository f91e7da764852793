package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func burstAttach(r *result, k *tracker, run string) {
	at := *attacher
	if at == "" {
		at = *provisioner
	}
	k.mu.Lock()
	var pvs []string
	for _, pv := range k.volume {
		pvs = append(pvs, pv)
	}
	k.mu.Unlock()
	sort.Strings(pvs)
	va := cs.StorageV1().VolumeAttachments()
	l, err := va.List(ctx, metav1.ListOptions{Limit: 1})
	must(err)
	var mu sync.Mutex
	done, gone, errs := map[string]time.Time{}, map[string]time.Time{}, 0
	bump := make(chan struct{}, 1)
	watchAll(func(rv string) (watch.Interface, error) {
		s := int64(3600)
		return va.Watch(ctx, metav1.ListOptions{ResourceVersion: rv, TimeoutSeconds: &s, LabelSelector: runLabel + "=" + run})
	}, l.ResourceVersion, func(e watch.EventType, o any) {
		a := o.(*storagev1.VolumeAttachment)
		mu.Lock()
		if e == watch.Deleted {
			gone[a.Name] = time.Now()
		} else if a.Status.Attached && done[a.Name].IsZero() {
			done[a.Name] = time.Now()
		} else if a.Status.AttachError != nil {
			errs++
		}
		mu.Unlock()
		select {
		case bump <- struct{}{}:
		default:
		}
	})
	wait := func(what string, m map[string]time.Time) {
		end := time.After(*timeout)
		for {
			mu.Lock()
			c, e := len(m), errs
			mu.Unlock()
			if c >= len(pvs) {
				return
			}
			select {
			case <-bump:
			case <-end:
				fmt.Fprintf(os.Stderr, "timed out waiting for %s: %d of %d, %d attach errors\n", what, c, len(pvs), e)
				os.Exit(2)
			}
		}
	}
	name := func(i int) string { return "csi-" + run + "-" + strconv.Itoa(i) }
	t0s := make([]time.Time, len(pvs))
	stop, cont := func() {}, func() {}
	if *isoAttacher > 0 {
		stop = func() { must(syscall.Kill(*isoAttacher, syscall.SIGSTOP)) }
		cont = func() { time.Sleep(2 * time.Second); syscall.Kill(*isoAttacher, syscall.SIGCONT) }
	}
	stop()
	m := begin("attach")
	parallel(len(pvs), func(i int) error {
		_, err := va.Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{runLabel: run}},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: at, NodeName: *node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pvs[i]}},
		}, metav1.CreateOptions{})
		t0s[i] = time.Now()
		return err
	})
	if *isoAttacher > 0 {
		cont()
		m = begin("attach")
	}
	wait("attached", done)
	r.Rates["attached"] = float64(len(pvs)) / time.Since(m.t0).Seconds()
	r.Phases = append(r.Phases, m.end())
	var ds []time.Duration
	for i := range pvs {
		ds = append(ds, max(0, done[name(i)].Sub(t0s[i])))
	}
	r.Dists["va_created->attached"] = distOf(ds)
	time.Sleep(2 * time.Second)
	stop()
	m = begin("detach")
	parallel(len(pvs), func(i int) error { return va.Delete(ctx, name(i), metav1.DeleteOptions{}) })
	if *isoAttacher > 0 {
		cont()
		m = begin("detach")
	}
	wait("detached", gone)
	r.Rates["detached"] = float64(len(pvs)) / time.Since(m.t0).Seconds()
	r.Phases = append(r.Phases, m.end())
}
