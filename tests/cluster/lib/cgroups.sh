# A cgroup a node, under either version of the kernel's interface.

cgroup_version() {
  case $(stat -fc %T /sys/fs/cgroup) in
    cgroup2fs) echo 2 ;;
    tmpfs) [[ -d /sys/fs/cgroup/memory ]] && echo 1 ;;
    *) return 1 ;;
  esac
}

cgroup_v1_controllers=(cpu cpuacct cpuset memory devices freezer blkio pids systemd)

# Moves the calling process into new cgroups of node I; what it starts stays below them.
enter_cgroups() {
  local list=$state/cgroups-n$1
  if [[ $(cgroup_version) == 2 ]]; then
    enter_cgroup_v2 "$1" "$list"
  else
    enter_cgroups_v1 "$1" "$list"
  fi
}

# Version 2: a cgroup has processes or children with controllers, never both. So the node's cgroup is a child of the root,
# where that rule does not hold, and the node's own processes go into a leaf below it (by `leave_root_cgroup`).
enter_cgroup_v2() {
  local top=/sys/fs/cgroup group=/sys/fs/cgroup/$network-n$1 controller
  if [[ -e $top/cgroup.type ]]; then
    # Not the real root: this is a container. Its processes make way.
    mkdir -p "$top/init"
    local pid
    while read -r pid; do echo "$pid" >"$top/init/cgroup.procs" 2>/dev/null || true; done <"$top/cgroup.procs"
  fi
  for controller in $(cat "$top/cgroup.controllers"); do
    if ! grep -qw "$controller" "$top/cgroup.subtree_control" && echo "+$controller" >"$top/cgroup.subtree_control"; then
      echo "$controller" >>"$machine_notes/controllers"
    fi
  done
  mkdir -p "$group/node"
  echo "$group" >>"$2"
  echo $BASHPID >"$group/cgroup.procs"
}

# Takes back what the first node had to switch on for its children.
disable_controllers() {
  local controller
  [[ -e $machine_notes/controllers ]] || return 0
  while read -r controller; do
    echo "-$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
  done <"$machine_notes/controllers"
}

# Run in the new cgroup namespace, while the machine's mounts are still there.
leave_root_cgroup() {
  [[ $(cgroup_version) == 2 ]] || return 0
  echo $BASHPID >"/sys/fs/cgroup/$network-n$1/node/cgroup.procs"
}

# Version 1: below the cgroups of the caller, for their limits hold for the cluster too.
enter_cgroups_v1() {
  local controller key current group
  for controller in "${cgroup_v1_controllers[@]}"; do
    [[ -d /sys/fs/cgroup/$controller ]] || continue
    key=$controller
    [[ $controller != systemd ]] || key=name=systemd
    current=$(awk -F: -v key="$key" '{ split($2, names, ","); for (i in names) if (names[i] == key) print $3 }' /proc/self/cgroup)
    group=/sys/fs/cgroup/$controller${current%/}/$network-n$1
    mkdir -p "$group"
    echo "$group" >>"$2"
    if [[ $controller == cpuset ]]; then
      cat "${group%/*}/cpuset.cpus" >"$group/cpuset.cpus"
      cat "${group%/*}/cpuset.mems" >"$group/cpuset.mems"
      echo 1 >"$group/cgroup.clone_children"
    fi
    echo $BASHPID >"$group/cgroup.procs"
  done
}

# In the node's namespaces: its cgroups become the roots of what it sees.
mount_cgroups() {
  local controllers controller folder
  if [[ $1 == 2 ]]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
    return
  fi
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  # Controllers that the machine mounted together can only be mounted together.
  while IFS=: read -r _ controllers _; do
    [[ -n $controllers ]] || continue
    folder=/sys/fs/cgroup/${controllers#name=}
    mkdir "$folder"
    if [[ $controllers == name=* ]]; then controllers=none,$controllers; fi
    mount -t cgroup -o "$controllers" cgroup "$folder"
    for controller in ${controllers//,/ }; do
      [[ -e /sys/fs/cgroup/$controller || $controllers == none,* ]] || ln -s "${folder##*/}" "/sys/fs/cgroup/$controller"
    done
  done </proc/self/cgroup
}

# Cgroups of a dead node would slow the start of the next kubelet by seconds each.
remove_cgroups() {
  local group list=$state/cgroups-n$1
  [[ -e $list ]] || return 0
  while read -r group; do
    [[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
  done <"$list"
  rm -f "$list"
}
