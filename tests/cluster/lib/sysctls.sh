# kubelet sets a few sysctls that belong to the whole machine: the first cluster notes them, the last one puts them back.

sysctl_names=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

save_sysctls() {
  local key
  (
    flock 9
    mkdir -p "$machine_notes"
    if [[ ! -e $machine_notes/values ]]; then
      for key in "${sysctl_names[@]}"; do echo "$key $(cat "/proc/sys/$key")"; done >"$machine_notes/values"
    fi
    touch "$machine_notes/user-$name"
  ) 9>"$cache/sysctls.lock"
}

restore_sysctls() {
  local key value users
  [[ -e $machine_notes/user-$name ]] || return 0
  (
    flock 9
    rm -f "$machine_notes/user-$name"
    users=("$machine_notes"/user-*)
    if [[ ${#users[@]} -eq 0 ]]; then
      while read -r key value; do echo "$value" >"/proc/sys/$key"; done <"$machine_notes/values"
      disable_controllers
      rm -rf "$machine_notes"
    fi
  ) 9>"$cache/sysctls.lock"
}
