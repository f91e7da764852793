#!/usr/bin/env bash
# images.sh BIN FOLDER: writes the images that the storage tests name into FOLDER, from agnhost in BIN and programs of this
# machine. Their names and tags are asked of e2e.test itself, so its pods find them on the nodes and nothing is pulled.
set -euo pipefail

bin=$1
folder=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$folder"
names=$("$bin/e2e.test" --list-images)

busybox=(--file /bin/busybox:/bin/busybox:755 --dir /tmp:1777 --dir /root:700 --dir /etc --dir /var --dir /mnt --dir /usr/bin --dir /usr/sbin
  --text '/etc/nsswitch.conf=hosts: files dns\npasswd: files\ngroup: files\n')
for applet in $(/bin/busybox --list); do
  [[ $applet == busybox ]] || busybox+=(--link "busybox:/bin/$applet")
done
# Tests compare the gid that `ls -l` prints, so the plain images name no other group than these.
users=(--text '/etc/passwd=root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n'
  --text '/etc/group=root:x:0:\nnogroup:x:65534:\n')
agnhost_users=(--text '/etc/passwd=root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n'
  --text '/etc/group=root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n')

# programs NAME...: options that add these programs of this machine, where they are installed.
programs() {
  local name path
  for name in "$@"; do
    path=$(type -P "$name") && printf -- '--program\n%s\n' "$(realpath -s "$path")"
  done
  return 0
}
mapfile -t host_programs < <(programs bash curl nsenter ip ss findmnt blockdev losetup)
mapfile -t gnu_programs < <(programs bash dd cp cat ls stat df sha256sum md5sum head tail sync truncate touch mkdir rm mv ln chmod chown id \
  sleep test echo printf seq wc cut sort tr tee env timeout grep sed find mount umount findmnt mountpoint)

# make_images PATTERN OPTION...: an image for every name of the suite that has the pattern.
make_images() {
  local pattern=$1 name
  shift
  for name in $(grep -E "$pattern" <<<"$names"); do
    (cd "$root" && cargo xtask oci --name "$name" --output "$folder/$(basename "$name" | tr ':' '-').tar" "$@")
  done
}

make_images '/e2e-test-images/busybox:' "${busybox[@]}" "${users[@]}" --cmd sh
make_images '/e2e-test-images/agnhost:' --file "$bin/agnhost:/agnhost:755" --link agnhost:/agnhost-2 --dir /uploads \
  "${host_programs[@]}" "${busybox[@]}" "${agnhost_users[@]}" --cmd pause -- /agnhost
# The storage tests only run /bin/sh in it.
make_images '/e2e-test-images/nginx:' --text '/usr/share/nginx/html/index.html=<h1>nginx</h1>\n' "${busybox[@]}" "${users[@]}" \
  -- /bin/httpd -f -p 80 -h /usr/share/nginx/html
# GNU dd is what matters here, and busybox's shell would run its own: /bin/sh is bash. Of two links the later one counts.
make_images '/e2e-test-images/glibc-dns-testing:' "${gnu_programs[@]}" "${busybox[@]}" --link "$(realpath -s "$(type -P bash)"):/bin/sh" \
  "${users[@]}" --cmd bash
