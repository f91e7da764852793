//! Disks of their own for pools.

use crate::cluster::{Node, eventually};

/// A disk of its own for each node: a file system in a file, mounted at the pool's path.
pub struct Disks {
    path: &'static str,
    image: String,
}

impl Disks {
    /// Makes and mounts them.
    pub fn new(path: &'static str, name: &str, size: &str) -> Self {
        let disks = Self { path, image: format!("/var/lib/dunnage/{name}.disk") };
        for node in Node::both() {
            node.shell(&format!(
                "mkdir -p {path} && truncate -s {size} {image} && mkfs.ext4 -q -F {image}",
                image = disks.image
            ));
            disks.mount(&node);
        }
        disks
    }

    /// Mounts a node's disk, as after a boot.
    pub fn mount(&self, node: &Node) {
        node.shell(&format!("mount -o loop {} {}", self.image, self.path));
    }

    fn unmount(&self, node: &Node) {
        eventually("the disk to be unmounted", || node.try_shell(&format!("umount {}", self.path)));
    }

    /// Unmounts and removes them.
    pub fn remove(self) {
        for node in Node::both() {
            self.unmount(&node);
            node.shell(&format!("rm -f {}", self.image));
        }
    }
}
