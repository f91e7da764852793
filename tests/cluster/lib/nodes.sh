# Power on, power off and what comes between.

start_node() {
  [[ ! -e $pids/node-$1.pid ]] || die "node n$1 is running already"
  mkdir -p "$state/nodes/n$1"
  setsid "$here/node-enter" "$name" "$1" >"$logs/node-n$1.log" 2>&1 </dev/null &
  echo $! >"$pids/node-$1.pid"
  disown
  date +%s >"$state/nodes/n$1/started"
}

# Pid 1 of the node's pid namespace: the only child of the process that made the namespaces.
node_init() { pgrep -P "$(cat "$pids/node-$1.pid")" | head -n 1 || true; }

node_exec() {
  local number=$1 init
  shift
  [[ -e $pids/node-$number.pid ]] || die "node n$number is not running"
  init=$(node_init "$number")
  [[ -n $init ]] || die "node n$number has not started: see $logs/node-n$number.log"
  nsenter --target "$init" --mount --net --pid --uts --ipc --cgroup -- env "PATH=/run/tools:$PATH" "$@"
}

# Killing pid 1 of a pid namespace ends everything in it at once, and its mounts with it.
stop_node() {
  local pid init
  [[ -e $pids/node-$1.pid ]] || return 0
  pid=$(cat "$pids/node-$1.pid")
  init=$(node_init "$1")
  [[ -z $init ]] || kill -9 "$init" 2>/dev/null || true
  wait_until 10 gone "$pid" || kill -9 "$pid" 2>/dev/null || true
  rm -f "$pids/node-$1.pid"
  detach_loops "$state/nodes/n$1"
  remove_cgroups "$1"
}

# Detaches the loop devices whose backing file lies in a folder, and before those the ones whose file lies on them.
detach_loops() {
  local home_device found=() devices name inode device number changed=true
  home_device=$(stat -c '%Hd:%Ld' "$1")
  devices=" "
  while $changed; do
    changed=false
    while read -r name inode device; do
      [[ " ${found[*]} " != *" $name "* ]] || continue
      if [[ $devices == *" $device "* ]] ||
        [[ $device == "$home_device" && -n $(find "$1" -xdev -inum "$inode" -print -quit 2>/dev/null) ]]; then
        found=("$name" "${found[@]}")
        devices+="$(cat "/sys/class/block/${name##*/}/dev") "
        changed=true
      fi
    done < <(losetup --list --noheadings --output NAME,BACK-INO,BACK-MAJ:MIN)
  done
  for name in "${found[@]}"; do losetup --detach "$name" 2>/dev/null || true; done
}

# Ready must be news of this start, which takes more than a second: an object from before a power loss still says Ready.
node_is_ready() {
  local ready='' heartbeat=''
  read -r ready heartbeat < <(kubectl get node "n$1" -o jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{"\n"}{end}')
  [[ $ready == True && $(date -d "$heartbeat" +%s) -gt $(cat "$state/nodes/n$1/started") ]]
}

wait_for_node() { wait_until "$patience" node_is_ready "$1" || die "node n$1 did not become Ready"; }
