# The cluster's own network: a switch with the control plane on it, and a cable to each node.

make_network() {
  local nodes=$1 number other
  ip netns add "$network"
  ip -n "$network" link set lo up
  ip -n "$network" link add switch type bridge
  ip -n "$network" addr add "$machines.1/24" dev switch
  ip -n "$network" link set switch up
  in_network sysctl -qw net.ipv4.ip_forward=1
  # Bridged packets pass iptables only with this module, and services need that.
  modprobe -q br_netfilter || true
  for number in $(seq "$nodes"); do
    ip netns add "$network-n$number"
    ip -n "$network-n$number" link set lo up
    ip -n "$network" link add "port$number" type veth peer name eth0 netns "$network-n$number"
    ip -n "$network" link set "port$number" master switch
    ip -n "$network-n$number" addr add "$machines.$((10 + number))/24" dev eth0
    ip -n "$network-n$number" link set eth0 up
    ip -n "$network-n$number" route add default via "$machines.1"
    connect_node "$number"
    nsenter --net="/run/netns/$network-n$number" -- sh -c '
      sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
      [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || sysctl -qw net.bridge.bridge-nf-call-iptables=1'
    for other in $(seq "$nodes"); do
      [[ $number == "$other" ]] || ip -n "$network-n$number" route add "$pods.$other.0/24" via "$machines.$((10 + other))"
    done
  done
}

# The route goes with the link, so a cable put back needs it again.
connect_node() {
  ip -n "$network" link set "port$1" up
  ip -n "$network" route replace "$pods.$1.0/24" via "$machines.$((10 + $1))"
}

remove_network() {
  local namespace
  for namespace in /run/netns/"$network" /run/netns/"$network"-n[1-3]; do
    ip netns delete "${namespace##*/}" 2>/dev/null || true
  done
}
