//! `mount_setattr`, which Linux has since 5.12.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io;

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountAttributes {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) user_namespace: u64,
}

const SIZE: usize = 32;
const _: () = assert!(size_of::<MountAttributes>() == SIZE);

/// Changes the attributes of the mount that `tree` is a handle on.
pub(crate) fn set_attributes(tree: impl AsFd, mut attributes: MountAttributes) -> io::Result<()> {
    // SAFETY: the path is an empty string that ends with a zero, the kernel reads one `struct mount_attr` of the size that
    // is given, and keeps neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_mut(&mut attributes),
            SIZE,
        )
    };
    if result == 0 { Ok(()) } else { Err(super::last_error()) }
}
