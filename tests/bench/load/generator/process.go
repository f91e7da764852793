package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"
)

type procSample struct {
	RSSMiB  float64 `json:"rss_mib"`
	AnonMiB float64 `json:"anon_mib"`
	FileMiB float64 `json:"file_mib"`
	PeakMiB float64 `json:"peak_mib"` // VmHWM since the last reset
	CPUs    float64 `json:"cpu_s"`    // user+system since the start of the process
	Threads int     `json:"threads"`
	FDs     int     `json:"fds"`
}

func sample(pid string) (p procSample) {
	b, _ := os.ReadFile("/proc/" + pid + "/status")
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			p.RSSMiB = v / 1024
		case "RssAnon:":
			p.AnonMiB = v / 1024
		case "RssFile:":
			p.FileMiB = v / 1024
		case "VmHWM:":
			p.PeakMiB = v / 1024
		case "Threads:":
			p.Threads = int(v)
		}
	}
	b, _ = os.ReadFile("/proc/" + pid + "/stat")
	if i := strings.LastIndexByte(string(b), ')'); i > 0 {
		f := strings.Fields(string(b)[i+1:])
		u, _ := strconv.ParseFloat(f[11], 64)
		s, _ := strconv.ParseFloat(f[12], 64)
		p.CPUs = (u + s) / 100 // USER_HZ
	}
	d, _ := os.ReadDir("/proc/" + pid + "/fd")
	p.FDs = len(d)
	return
}

func resetPeaks() {
	for _, p := range procs {
		_, pid, _ := strings.Cut(p, "=")
		os.WriteFile("/proc/"+pid+"/clear_refs", []byte("5"), 0)
	}
}

func sampleAll() map[string]procSample {
	m := map[string]procSample{}
	for _, p := range procs {
		name, pid, _ := strings.Cut(p, "=")
		m[name] = sample(pid)
	}
	return m
}

// phase is what one phase cost: seconds, per-process CPU and memory, requests.
type phase struct {
	Name     string                `json:"name"`
	Seconds  float64               `json:"seconds"`
	Procs    map[string]procSample `json:"procs,omitempty"` // at the end; cpu_s is of this phase alone
	Requests map[string]int        `json:"requests,omitempty"`
}

type meter struct {
	name  string
	t0    time.Time
	p0    map[string]procSample
	audit int64
}

func begin(name string) meter {
	resetPeaks()
	m := meter{name: name, p0: sampleAll(), t0: time.Now()}
	if fi, err := os.Stat(*auditFile); *auditFile != "" && err == nil {
		m.audit = fi.Size()
	}
	return m
}

func (m meter) end() phase {
	ph := phase{Name: m.name, Seconds: time.Since(m.t0).Seconds(), Procs: sampleAll()}
	for k, v := range ph.Procs {
		v.CPUs -= m.p0[k].CPUs
		ph.Procs[k] = v
	}
	if *auditFile != "" {
		time.Sleep(1500 * time.Millisecond) // the log is written in batches
		ph.Requests = countAudit(*auditFile, m.audit)
	}
	return ph
}

// countAudit counts the requests logged after offset: "user verb resource[/sub]" -> n.
func countAudit(file string, offset int64) map[string]int {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	f.Seek(offset, 0)
	c := map[string]int{}
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 1<<20), 1<<22)
	for sc.Scan() {
		var e struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(sc.Bytes(), &e) != nil || e.ObjectRef.Resource == "" {
			continue
		}
		k := e.User.Username + " " + e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			k += "/" + e.ObjectRef.Subresource
		}
		if e.ResponseStatus.Code >= 300 {
			k += " " + strconv.Itoa(e.ResponseStatus.Code)
		}
		c[k]++
	}
	return c
}
