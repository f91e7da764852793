package main

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parallel runs f(0..n-1) on -workers goroutines.
func parallel(n int, f func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(*workers, n) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				must(f(i))
			}
		}()
	}
	wg.Wait()
}

func className() string {
	if *class != "" {
		return *class
	}
	return "bench-" + strings.ReplaceAll(*provisioner, ".", "-")
}

func setup() {
	if *class != "" {
		return
	}
	del, imm := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	_, err := cs.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className()}, Provisioner: *provisioner,
		ReclaimPolicy: &del, VolumeBindingMode: &imm}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		must(err)
	}
	yes := true
	_, err = cs.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: *provisioner}, Spec: storagev1.CSIDriverSpec{AttachRequired: &yes}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		must(err)
	}
	if !*attach {
		return
	}
	// The attacher looks up the CSI node id in CSINode; no kubelet is there to write it.
	nd, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: *node}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		nd, err = cs.CoreV1().Nodes().Get(ctx, *node, metav1.GetOptions{})
	}
	must(err)
	drv := storagev1.CSINodeDriver{Name: *provisioner, NodeID: *node}
	cn, err := cs.StorageV1().CSINodes().Get(ctx, *node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = cs.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: *node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nd.Name, UID: nd.UID}}},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{drv}}}, metav1.CreateOptions{})
		must(err)
		return
	}
	must(err)
	for _, d := range cn.Spec.Drivers {
		if d.Name == *provisioner {
			return
		}
	}
	cn.Spec.Drivers = append(cn.Spec.Drivers, drv)
	_, err = cs.StorageV1().CSINodes().Update(ctx, cn, metav1.UpdateOptions{})
	must(err)
}

func claim(name, run string) *corev1.PersistentVolumeClaim {
	sc := className()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{runLabel: run}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &sc,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		}}
	if *preannotate {
		c.Annotations = map[string]string{annProvisioner: *provisioner, annProvisionerBeta: *provisioner}
	}
	return c
}

func create(k *tracker, name, run string) error {
	_, err := cs.CoreV1().PersistentVolumeClaims(*namespace).Create(ctx, claim(name, run), metav1.CreateOptions{})
	k.mu.Lock()
	t := k.t[name]
	if t == nil {
		t = &times{}
		k.t[name] = t
	}
	t.created = time.Now()
	k.mu.Unlock()
	return err
}

func remove(name string) error {
	err := cs.CoreV1().PersistentVolumeClaims(*namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
