// generator is a load generator for CSI controller sidecars.
//
// It plays the part of the users of a cluster (PVCs) and of the attach-detach
// controller (VolumeAttachments), and watches what the sidecar under test
// makes of it. It takes any provisioner name, so the same measurement runs
// against the upstream Go sidecars and against any other implementation.
//
// Modes (-mode):
//
//	latency    -n PVCs one after the other: create, wait for Bound, delete,
//	           wait until the PVC and the PV are gone. Gives medians.
//	burst      -n PVCs at once: create all, wait until all are Bound; with
//	           -attach also a VolumeAttachment for each PV (first all
//	           attached, then all detached); then delete all and wait until
//	           PVCs and PVs are gone.
//	idle       watch the processes for -for: RSS and CPU at rest.
//
// With -class the class and the driver are there already, as on a whole cluster.
//
// Every PVC passes these stages; the time of each is noted when its watch
// event arrives here:
//
//	created    the API server answered the create
//	handed     the PV controller (kube-controller-manager) has put the
//	           annotation volume.kubernetes.io/storage-provisioner on it
//	pv         the PV appeared          } handed -> pv is the sidecar's own share
//	bound      the PVC's phase is Bound   (the PV controller again)
//	pvcgone    after the delete: the PVC is gone (pvc-protection controller)
//	released   the PV's phase is Released (the PV controller)
//	pvgone     the PV is gone           } released -> pvgone is the sidecar's share
//
// -preannotate makes generator put the annotation on itself at creation. Then
// 'handed' = 'created', the PV controller is not in the way of the sidecar,
// and with -until pv no kube-controller-manager is needed at all for the
// creation half.
//
// The PV controller works one claim at a time and is by far the slowest part of
// the chain. To measure the sidecar alone, -isolate-kcm PID stops
// kube-controller-manager (SIGSTOP) while the PVs are created, with
// -preannotate, and lets it go on afterwards to bind them; and
// -isolate-provisioner PID stops the provisioner while the PVCs are created,
// then lets it go and measures how fast it works off the backlog; likewise while
// the PVCs are deleted, until all PVs are Released, then measures how fast it
// deletes them. Rates "pv_isolated" and "pv_gone_isolated". -isolate-attacher PID
// does the same for VolumeAttachments. The pids are of this machine and were
// given by the caller; nothing else is signalled.
//
// -proc NAME=PID (repeatable) samples processes from /proc: RSS (anonymous and
// file-backed part), peak RSS during each phase (VmHWM, reset through
// clear_refs, so run as root), CPU seconds used in each phase, threads, fds.
//
// With -audit FILE (the API server's JSON audit log, level Metadata) it counts
// the requests of each phase by user, verb and resource.
//
// The result is one JSON line on stdout and, in words, on stderr.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	annProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	runLabel           = "bench.dunnage.dev/run"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

var (
	kubeconfig  = flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig")
	mode        = flag.String("mode", "burst", "latency, burst or idle")
	provisioner = flag.String("provisioner", "hostpath.csi.k8s.io", "name of the CSI driver")
	class       = flag.String("class", "", "an existing StorageClass (default: one of its own is made, with the CSIDriver)")
	n           = flag.Int("n", 100, "number of PVCs")
	namespace   = flag.String("namespace", "default", "namespace of the PVCs")
	workers     = flag.Int("workers", 24, "parallel API requests of the load generator")
	preannotate = flag.Bool("preannotate", false, "set the storage-provisioner annotation at creation")
	until       = flag.String("until", "bound", "creation half ends at: pv or bound")
	attach      = flag.Bool("attach", false, "burst: also attach and detach every volume")
	attacher    = flag.String("attacher", "", "spec.attacher of the VolumeAttachments (default: -provisioner)")
	node        = flag.String("node", "bench-node", "name of the fake Node/CSINode")
	timeout     = flag.Duration("timeout", 10*time.Minute, "limit for each phase")
	label       = flag.String("label", "", "free text carried into the result")
	auditFile   = flag.String("audit", "", "the API server's audit log, to count requests")
	forDur      = flag.Duration("for", 10*time.Second, "idle: how long")
	keep        = flag.Bool("keep", false, "burst: do not delete at the end")
	isoKCM      = flag.Int("isolate-kcm", 0, "burst: pid of kube-controller-manager, see above (implies -preannotate)")
	isoAttacher = flag.Int("isolate-attacher", 0, "burst: pid of the attacher under test, see above")
	isoSidecar  = flag.Int("isolate-provisioner", 0, "burst: pid of the provisioner under test, see above")
	procs       list
	cs          *kubernetes.Clientset
	ctx         = context.Background()
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "generator:", err)
		os.Exit(1)
	}
}

type result struct {
	Label       string             `json:"label"`
	Mode        string             `json:"mode"`
	Provisioner string             `json:"provisioner"`
	N           int                `json:"n"`
	Preannotate bool               `json:"preannotate,omitempty"`
	When        string             `json:"when"`
	Rates       map[string]float64 `json:"per_second,omitempty"`
	Dists       map[string]dist    `json:"ms,omitempty"`
	Phases      []phase            `json:"phases,omitempty"`
}

func main() {
	flag.Var(&procs, "proc", "NAME=PID of a process to sample (repeatable)")
	flag.Parse()
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)
	cfg.QPS, cfg.Burst = -1, 0 // no client-side limit: the load generator must not be the bottleneck
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.UserAgent = "generator"
	cs, err = kubernetes.NewForConfig(cfg)
	must(err)
	r := &result{Label: *label, Mode: *mode, Provisioner: *provisioner, N: *n, Preannotate: *preannotate, When: time.Now().UTC().Format(time.RFC3339)}
	switch *mode {
	case "burst":
		burst(r)
	case "latency":
		latency(r)
	case "idle":
		idle(r)
	default:
		must(fmt.Errorf("no mode %q", *mode))
	}
	b, err := json.Marshal(r)
	must(err)
	fmt.Println(string(b))
	say(r)
}

// say prints the result for a person.
func say(r *result) {
	w := os.Stderr
	fmt.Fprintf(w, "== %s %s %s n=%d\n", r.Label, r.Mode, r.Provisioner, r.N)
	for _, k := range sorted(r.Rates) {
		fmt.Fprintf(w, "  %-10s %8.1f/s\n", k, r.Rates[k])
	}
	for _, k := range sorted(r.Dists) {
		d := r.Dists[k]
		fmt.Fprintf(w, "  %-22s p50 %9.1f  p90 %9.1f  p99 %9.1f  max %9.1f ms (%d)\n", k, d.P50, d.P90, d.P99, d.Max, d.N)
	}
	for _, p := range r.Phases {
		fmt.Fprintf(w, "  -- %s: %.2f s\n", p.Name, p.Seconds)
		for _, k := range sorted(p.Procs) {
			s := p.Procs[k]
			fmt.Fprintf(w, "     %-12s rss %6.1f (anon %6.1f) peak %6.1f MiB  cpu %6.2f s  threads %d fds %d\n", k, s.RSSMiB, s.AnonMiB, s.PeakMiB, s.CPUs, s.Threads, s.FDs)
		}
		for _, k := range sorted(p.Requests) {
			fmt.Fprintf(w, "     %7d %s\n", p.Requests[k], k)
		}
	}
}

func sorted[V any](m map[string]V) []string {
	var r []string
	for k := range m {
		r = append(r, k)
	}
	sort.Strings(r)
	return r
}
