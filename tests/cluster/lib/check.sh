# What a machine must have to run a cluster.

# Programs (or files) and the Debian packages that bring them.
packages=(
  runc:runc /usr/lib/cni/bridge:containernetworking-plugins /bin/busybox:busybox-static
  iptables:iptables nft:nftables conntrack:conntrack ipset:ipset socat:socat ethtool:ethtool
  ip:iproute2 modprobe:kmod openssl:openssl nsenter:util-linux losetup:mount pgrep:procps jq:jq
  mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs gcc:gcc /usr/include/stdio.h:libc6-dev
)

at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

check() {
  require_root
  local problems=() kernel free go rust cgroups filesystem system=unknown
  kernel=$(uname -r)
  at_least 5.8 "${kernel%%-*}" || problems+=("Linux 5.8 or newer is needed; this is $kernel")
  [[ ! -r /etc/os-release ]] || system=$(. /etc/os-release && echo "$PRETTY_NAME")
  mkdir -p "$cache" "${state%/*}"
  free=$(df --output=avail -BG "${state%/*}" | tail -n 1 | tr -dc 0-9)
  [[ $free -ge 10 ]] || problems+=("10 GB of free disk are needed in ${state%/*}; there are $free GB")
  filesystem=$(stat -fc %T "${state%/*}")
  case $filesystem in
    overlayfs | nfs* | v9fs | fuse*)
      problems+=("containers cannot run from ${state%/*}, which is on $filesystem: set DUNNAGE_CLUSTER_STATE to a folder on a disk") ;;
  esac
  cgroups=$(cgroup_version) || problems+=("no cgroups are mounted on /sys/fs/cgroup")
  [[ -e /dev/loop-control ]] || modprobe -q loop || problems+=("no loop devices: /dev/loop-control is missing")
  go=$(version_of go version)
  at_least 1.26 "${go:-0}" || problems+=("Go 1.26 or newer is needed; found ${go:-none}: https://go.dev/dl")
  rust=$(version_of rustc --version)
  at_least 1.89 "${rust:-0}" || problems+=("Rust 1.89 or newer is needed; found ${rust:-none}: https://rustup.rs")
  if [[ ${#problems[@]} -gt 0 ]]; then
    printf 'cluster: %s\n' "${problems[@]}" >&2
    exit 1
  fi
  install_packages
  if ! unshare --mount --net --pid --fork true 2>/dev/null; then
    die "this root may not make namespaces; inside a container it must be a privileged one"
  fi
  say "Linux $kernel, $system, cgroup v$cgroups, $free GB free, Go $go, Rust $rust"
}

version_of() { "$@" 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1; }

install_packages() {
  local pair wanted missing=()
  for pair in "${packages[@]}"; do
    wanted=${pair%:*}
    [[ -e $wanted ]] || command -v "$wanted" >/dev/null || missing+=("${pair#*:}")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null || die "these Debian packages, or what they are called here, are missing: ${missing[*]}"
  say "installing ${missing[*]}"
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install ${missing[*]}"
}
