# kubelet sets a few sysctls that belong to the whole machine: the first cluster notes them, the last one puts them back.

sysctl_names=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)
sysctl_notes=/run/dunnage-sysctls

# One note a running cluster: what to write back is in the oldest.
save_sysctls() {
  local key
  (
    flock 9
    mkdir -p "$sysctl_notes"
    if [[ ! -e $sysctl_notes/values ]]; then
      for key in "${sysctl_names[@]}"; do echo "$key $(cat "/proc/sys/$key")"; done >"$sysctl_notes/values"
    fi
    touch "$sysctl_notes/user-$name"
  ) 9>"$cache/sysctls.lock"
}

restore_sysctls() {
  local key value users
  [[ -e $sysctl_notes/user-$name ]] || return 0
  (
    flock 9
    rm -f "$sysctl_notes/user-$name"
    users=("$sysctl_notes"/user-*)
    if [[ ${#users[@]} -eq 0 ]]; then
      while read -r key value; do echo "$value" >"/proc/sys/$key"; done <"$sysctl_notes/values"
      rm -rf "$sysctl_notes"
    fi
  ) 9>"$cache/sysctls.lock"
}
