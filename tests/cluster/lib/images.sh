# The images that every node has from the start: busybox, and the sandbox ("pause") of each pod, which is busybox asleep.

make_images() {
  local applet options=() xtask=(cargo run --quiet --manifest-path "$root/Cargo.toml" --target-dir "$root/target/xtask" --package xtask -- oci)
  [[ ! -e $images/busybox.tar || ! -e $images/pause.tar ]] || return 0
  mkdir -p "$images"
  options=(--file /bin/busybox:/bin/busybox:755 --dir /tmp:1777 --dir /root:700
    --text 'etc/passwd=root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n'
    --text 'etc/group=root:x:0:\nnogroup:x:65534:\n')
  for applet in $(/bin/busybox --list); do
    [[ $applet == busybox ]] || options+=(--link "busybox:/bin/$applet")
  done
  "${xtask[@]}" --name localhost/busybox:1 --output "$images/busybox.tar" "${options[@]}" -- /bin/sh >/dev/null
  "${xtask[@]}" --name localhost/pause:1 --output "$images/pause.tar" --user 65534:65534 \
    --file /bin/busybox:/bin/busybox:755 -- /bin/busybox sleep 2147483647 >/dev/null
}
