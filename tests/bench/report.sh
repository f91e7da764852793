#!/usr/bin/env bash
# report.sh FOLDER: prints docs/benchmarks.md from the load generator's results in FOLDER.
set -euo pipefail

folder=$1
sidecars=$folder/sidecars.jsonl
directory=$folder/directory.jsonl
engines=$folder/engines.jsonl
count=$(jq -s 'map(select(.mode == "burst")) | .[0].n' "$sidecars")

# rows MODE FILTER [FILE]: one table row for each result of that mode; FILTER gives its cells.
rows() {
  jq -r --arg mode "$1" '
    def r1: if . == null then "–" else (. * 10 | round / 10) end;
    def phase($name): (.phases // [] | map(select(.name == $name)) | first);
    def memory($name; $who): phase($name).procs[$who] | if . == null then "–" else "\(.anon_mib | r1) / \(.rss_mib | r1)" end;
    def requests($name; $who): phase($name) as $p | .n as $n
      | ([$p.requests // {} | to_entries[] | select(.key | startswith($who + " ")) | .value] | add // 0) / $n | r1;
    select(.mode == $mode) | ['"$2"'] | select(length > 0) | map(tostring) | "| " + join(" | ") + " |"' "${3:-$sidecars}"
}
head_row() {
  local cell line='|'
  printf '|'
  for cell in "$@"; do printf ' %s |' "$cell"; line+='---|'; done
  printf '\n%s\n' "$line"
}
whole='.label | test("alone") | not'

cat <<END
# Benchmarks

Written by \`make bench\`; nothing here is asserted by a test. Compare the rows of one table with one another, not with
figures of another machine.

Machine: $(nproc) CPUs ($(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)), $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo) of memory, Linux $(uname -r | cut -d- -f1).
Upstream: csi-provisioner v6.3.0 and csi-attacher v4.12.0, built from their Go modules with \`-s -w\`. \`defaults\` are each
one's default flags (upstream limits itself to 5 requests a second; Dunnage leaves that to the API server), \`tuned\` is
\`--worker-threads=100 --kube-api-qps=1000 --kube-api-burst=2000\` for both.

## Provisioner and attacher, with a driver that does nothing

etcd, kube-apiserver and kube-controller-manager on loopback, no nodes. Binding and protection of claims is done by
kube-controller-manager, one object at a time: it sets the end-to-end figures, so the sidecar's own share is given too.

### One claim at a time (median, 90th percentile in brackets; ms)

END
head_row "" "created → Bound" "of it the provisioner" "released → gone"
rows latency '.label, "\(.ms["created->bound"].p50_ms | r1) (\(.ms["created->bound"].p90_ms | r1))", "\(.ms["handed->pv"].p50_ms | r1) (\(.ms["handed->pv"].p90_ms | r1))", "\(.ms["released->pvgone"].p50_ms | r1) (\(.ms["released->pvgone"].p90_ms | r1))"'

cat <<END

Before it asks the driver for a volume, Dunnage writes down for which claim, so that no crash and no deleted claim leaks one:
one write for all claims that wait just then.

### $count claims at once (per second)

END
head_row "" "Bound" "attached" "detached" "gone"
rows burst "select($whole) | .label, (.per_second.bound | r1), (.per_second.attached | r1), (.per_second.detached | r1), (.per_second.pv_gone | r1)"

cat <<END

### The same with the sidecar alone (per second)

kube-controller-manager is stopped while the sidecar works off a backlog.

END
head_row "" "PersistentVolumes made" "attached" "detached" "PersistentVolumes deleted"
rows burst 'select(.label | test("alone")) | .label, (.per_second.pv_isolated | r1), (.per_second.attached | r1), (.per_second.detached | r1), (.per_second.pv_gone_isolated | r1)'

cat <<END

### Memory (anonymous / resident, MiB)

Resident memory counts the program file's pages, which all roles of one binary on a machine share.

END
head_row "" "provisioner, idle" "attacher, idle"
rows idle '.label, memory("idle"; "provisioner"), memory("idle"; "attacher")'
echo
head_row "" "provisioner, $count volumes" "attacher, $count attached"
rows burst "select($whole) | .label, memory(\"create\"; \"provisioner\"), memory(\"attach\"; \"attacher\")"

cat <<END

### Requests to the API server for each volume

END
head_row "" "create" "attach" "detach" "delete (provisioner)" "delete (attacher)"
rows burst "select($whole) | .label, requests(\"create\"; \"provisioner\"), requests(\"attach\"; \"attacher\"), requests(\"detach\"; \"attacher\"), requests(\"delete\"; \"provisioner\"), requests(\"delete\"; \"attacher\")"

if [[ -s $folder/sizes.txt ]]; then
  echo
  echo "### Sizes"
  echo
  head_row "File" "MiB"
  awk '{ n = split($2, path, "/"); printf "| %s | %.1f |\n", path[n], $1 / 1048576 }' "$folder/sizes.txt"
fi

if [[ -s $directory ]]; then
  cat <<END

## A Directory backend on the embedded cluster

Two nodes, the operator's own installation, a class that binds immediately. kube-controller-manager is limited to
100 requests a second here.

END
  head_row "" "created → Bound, one claim (ms)" "$count claims: Bound per second" "gone per second"
  jq -rs '
    def r1: . * 10 | round / 10;
    (map(select(.mode == "latency")) | first) as $one | (map(select(.mode == "burst")) | first) as $many
    | "| Directory | \($one.ms["created->bound"].p50_ms | r1) | \($many.per_second.bound | r1) | \($many.per_second.pv_gone | r1) |"' "$directory"
  echo
  head_row "Role (anonymous / resident, MiB)" "idle" "with $count volumes"
  jq -rs '
    def r1: . * 10 | round / 10;
    def memory: "\(.anon_mib | r1) / \(.rss_mib | r1)";
    (map(select(.mode == "idle")) | first | .phases[0].procs) as $idle
    | (map(select(.mode == "burst")) | first | .phases | map(select(.name == "create")) | first | .procs) as $full
    | $idle | keys[] | "| \(.) | \($idle[.] | memory) | \($full[.] | memory) |"' "$directory"
fi

# engine_table KIND KEY COLUMNS CELL: a row a pool, a column for each value of KEY; CELL gives a result's cell.
engine_table() {
  jq -rs --arg kind "$1" --arg key "$2" --argjson columns "$3" '
    def r1: if . == null then "–" else (. * 10 | round / 10) end;
    map(select(.of == $kind)) | group_by(.pool)[] | . as $rows
    | [$rows[0].pool] + [$columns[] as $column | $rows | map(select(.[$key] == $column)) | first
        | if . == null then "–" else ('"$4"') end]
    | map(tostring) | "| " + join(" | ") + " |"' "$engines"
}

if [[ -s $engines ]]; then
  cat <<END

## The engines

One driver process of a node, called over its socket, on a loop device whose image lies on this machine's disk; what has to be
durable is synced down to that image. \`LoopFile on xfs\` has volumes with xfs, \`LoopFile on ext4\` with ext4.

### One call at a time (median, 90th percentile in brackets; ms)

Volumes of 1 GiB. A LoopFile volume is formatted when it is first staged.

END
  head_row "" "CreateVolume" "stage" "publish" "unpublish" "unstage" "DeleteVolume"
  engine_table call call '["CreateVolume","NodeStageVolume","NodePublishVolume","NodeUnpublishVolume","NodeUnstageVolume","DeleteVolume"]' \
    '"\(.p50_ms | r1) (\(.p90_ms | r1))"'
  cat <<END

### 32 callers at once (CreateVolume and DeleteVolume a second)

END
  head_row "" "calls a second"
  engine_table at-once callers '[32]' '.calls_per_second'
  cat <<END

### Snapshot of a mounted volume, and a volume made of it (ms)

Where blocks are shared (xfs, Btrfs) the size does not matter; on ext4 the data are copied. A dash: the disk had no room for it.

END
  head_row "" "snapshot of 1 GiB" "of 20 GiB"
  engine_table snapshot gib '[1,20]' '.snapshot_ms | r1'
  echo
  head_row "" "restore of 1 GiB" "of 20 GiB"
  engine_table snapshot gib '[1,20]' '.restore_ms | r1'
  cat <<END

### DeleteVolume of a volume with 100,000 files (ms)

The data are moved aside before the answer, and removed after it.

END
  head_row "" "answered after"
  engine_table delete files '[100000]' '.answer_ms | r1'
  cat <<END

### Many volumes in a pool

From the start of the process to its first answer that it is ready; memory then (anonymous / resident, MiB).

END
  head_row "" "no volume" "1,000 volumes" "10,000 volumes"
  engine_table many volumes '[0,1000,10000]' '"\(.start_ms | r1) ms, \(.anon_mib | r1) / \(.rss_mib | r1)"'
  cat <<END

### fio in a volume, and on the pool's file system without Dunnage

Direct I/O on a file of 1 GiB, 8 requests of 1 MiB or 32 of 4 KiB at once. In each cell: in the volume / without.

END
  head_row "" "sequential read, MiB/s" "sequential write, MiB/s" "random read, IOPS" "random write, IOPS"
  engine_table fio workload '["sequential read","sequential write","random read","random write"]' \
    'if (.workload | startswith("seq")) then "\(.volume.mib_s) / \(.bare.mib_s)" else "\(.volume.iops) / \(.bare.iops)" end'
fi
