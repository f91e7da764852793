//! The ioctls of btrfs.

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl};

const SYNC: Opcode = 0x9408;
const SNAPSHOT_CREATE: Opcode = 0x5000_9417;
const SUBVOLUME_CREATE: Opcode = 0x5000_9418;
const SUBVOLUME_DESTROY: Opcode = 0x5000_943f;
const SUBVOLUME_GET_FLAGS: Opcode = 0x8008_9419;
const SUBVOLUME_SET_FLAGS: Opcode = 0x4008_941a;
const TREE_SEARCH: Opcode = 0xd000_9411;
const INODE_LOOKUP: Opcode = 0xd000_9412;
const QUOTA_CONTROL: Opcode = 0xc010_9428;
const QUOTA_GROUP_ASSIGN: Opcode = 0x4018_9429;
const QUOTA_GROUP_CREATE: Opcode = 0x4010_942a;
const QUOTA_GROUP_LIMIT: Opcode = 0x8030_942b;

/// In the flags of a subvolume, and in those of a call that makes one.
pub(crate) const SUBVOLUME_READ_ONLY: u64 = 1 << 1;
/// The subvolume to destroy is meant by its id.
const BY_ID: u64 = 1 << 4;

/// `struct btrfs_ioctl_vol_args_v2` of `linux/btrfs.h`.
#[repr(C)]
struct SubvolumeArguments {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    /// A name that ends with a zero, or an id.
    which: [u8; 4040],
}

impl SubvolumeArguments {
    fn new(fd: i64, flags: u64, which: &[u8]) -> io::Result<Self> {
        let mut arguments = Self { fd, transaction: 0, flags, unused: [0; 4], which: [0; 4040] };
        if which.len() >= arguments.which.len() {
            return Err(io::Errno::NAMETOOLONG);
        }
        arguments.which[..which.len()].copy_from_slice(which);
        Ok(arguments)
    }
}

/// `struct btrfs_ioctl_search_key`, in which each range is one of whole keys: object, kind, offset.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct SearchKey {
    pub(crate) tree: u64,
    pub(crate) least_object: u64,
    pub(crate) most_object: u64,
    pub(crate) least_offset: u64,
    pub(crate) most_offset: u64,
    pub(crate) least_transaction: u64,
    pub(crate) most_transaction: u64,
    pub(crate) least_kind: u32,
    pub(crate) most_kind: u32,
    /// How many items are wanted at most, and then how many there are.
    pub(crate) count: u32,
    unused: u32,
    reserved: [u64; 4],
}

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
pub(crate) struct TreeSearch {
    pub(crate) key: SearchKey,
    pub(crate) items: [u8; 3992],
}

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct InodeLookup {
    tree: u64,
    inode: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct GroupLimit {
    group: u64,
    flags: u64,
    most_referenced: u64,
    rest: [u64; 3],
}

const _: () = assert!(
    size_of::<SubvolumeArguments>() == 4096
        && size_of::<TreeSearch>() == 4096
        && size_of::<InodeLookup>() == 4096
        && size_of::<GroupLimit>() == 48
);

/// Makes an empty subvolume in a directory of btrfs.
pub(crate) fn subvolume_create(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let arguments = SubvolumeArguments::new(0, 0, name)?;
    // SAFETY: the kernel reads exactly a `struct btrfs_ioctl_vol_args_v2`, whose size is asserted, and writes nothing back.
    unsafe { ioctl(parent, Setter::<SUBVOLUME_CREATE, SubvolumeArguments>::new(arguments)) }
}

/// Makes a snapshot of the subvolume that `of` is the root of.
pub(crate) fn snapshot_create(of: impl AsFd, parent: impl AsFd, name: &[u8], flags: u64) -> io::Result<()> {
    let arguments = SubvolumeArguments::new(of.as_fd().as_raw_fd().into(), flags, name)?;
    // SAFETY: as above; `of` is borrowed for as long as the call lasts.
    unsafe { ioctl(parent, Setter::<SNAPSHOT_CREATE, SubvolumeArguments>::new(arguments)) }
}

/// Destroys a subvolume of the file system, which must have none within; `ENOENT` when there is none of this id.
pub(crate) fn subvolume_destroy(anywhere: impl AsFd, id: u64) -> io::Result<()> {
    let arguments = SubvolumeArguments::new(0, BY_ID, &id.to_ne_bytes())?;
    // SAFETY: as above.
    unsafe { ioctl(anywhere, Setter::<SUBVOLUME_DESTROY, SubvolumeArguments>::new(arguments)) }
}

/// Writes down the whole file system, and sets the kernel to work on what is left of destroyed subvolumes.
pub(crate) fn sync(anywhere: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of this call and touches no memory of ours.
    unsafe { ioctl(anywhere, NoArg::<SYNC>::new()) }
}

pub(crate) fn subvolume_flags(subvolume: impl AsFd) -> io::Result<u64> {
    // SAFETY: the kernel writes exactly a `u64`.
    unsafe { ioctl(subvolume, Getter::<SUBVOLUME_GET_FLAGS, u64>::new()) }
}

pub(crate) fn set_subvolume_flags(subvolume: impl AsFd, flags: u64) -> io::Result<()> {
    // SAFETY: the kernel reads exactly a `u64` during the call.
    unsafe { ioctl(subvolume, Setter::<SUBVOLUME_SET_FLAGS, u64>::new(flags)) }
}

/// The id of the subvolume that an open file or directory lies in.
pub(crate) fn subvolume_id(file: impl AsFd) -> io::Result<u64> {
    /// The root directory of every subvolume.
    const ROOT: u64 = 256;
    let mut lookup = InodeLookup { tree: 0, inode: ROOT, name: [0; 4080] };
    // SAFETY: the kernel reads and writes exactly a `struct btrfs_ioctl_ino_lookup_args`, whose size is asserted.
    unsafe { ioctl(file, Updater::<INODE_LOOKUP, InodeLookup>::new(&mut lookup))? };
    Ok(lookup.tree)
}

/// Fills in what a tree of the file system has from the key on; `ENOENT` when there is no such tree.
pub(crate) fn tree_search(file: impl AsFd, search: &mut TreeSearch) -> io::Result<()> {
    // SAFETY: the kernel reads and writes exactly a `struct btrfs_ioctl_search_args`, whose size is asserted and for which
    // every bit pattern is valid.
    unsafe { ioctl(file, Updater::<TREE_SEARCH, TreeSearch>::new(search)) }
}

/// Switches quotas on or off.
pub(crate) fn quota_control(file: impl AsFd, command: u64) -> io::Result<()> {
    let mut arguments = [command, 0];
    // SAFETY: the kernel reads and writes exactly a `struct btrfs_ioctl_quota_ctl_args`, which is two `u64`.
    unsafe { ioctl(file, Updater::<QUOTA_CONTROL, [u64; 2]>::new(&mut arguments)) }
}

/// Makes a quota group a member of another; `EEXIST` when it is.
pub(crate) fn quota_group_assign(file: impl AsFd, member: u64, group: u64) -> io::Result<()> {
    // SAFETY: the kernel reads exactly a `struct btrfs_ioctl_qgroup_assign_args`, which is three `u64`.
    unsafe { ioctl(file, Setter::<QUOTA_GROUP_ASSIGN, [u64; 3]>::new([1, member, group])) }
}

/// Makes a quota group, or removes it; `EEXIST` when it is there, `ENOENT` when it is not, `EBUSY` when it is in use.
pub(crate) fn quota_group_create(file: impl AsFd, create: bool, group: u64) -> io::Result<()> {
    // SAFETY: the kernel reads exactly a `struct btrfs_ioctl_qgroup_create_args`, which is two `u64`.
    unsafe { ioctl(file, Setter::<QUOTA_GROUP_CREATE, [u64; 2]>::new([create.into(), group])) }
}

/// Limits what a quota group may refer to.
pub(crate) fn quota_group_limit(file: impl AsFd, group: u64, most_referenced: u64) -> io::Result<()> {
    const MOST_REFERENCED: u64 = 1;
    let limit = GroupLimit { group, flags: MOST_REFERENCED, most_referenced, rest: [0; 3] };
    // SAFETY: the kernel reads exactly a `struct btrfs_ioctl_qgroup_limit_args`, whose size is asserted.
    unsafe { ioctl(file, Setter::<QUOTA_GROUP_LIMIT, GroupLimit>::new(limit)) }
}
