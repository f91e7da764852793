//! The ioctls of loop devices, of freezing and of btrfs, the quota calls and `mount_setattr`, which rustix does not wrap: the
//! only module of the workspace with `unsafe`.
#![expect(unsafe_code, reason = "these calls have no safe wrapper")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

pub(crate) mod btrfs;
pub(crate) mod mount;

const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_SET_STATUS64: Opcode = 0x4c04;
const LOOP_GET_STATUS64: Opcode = 0x4c05;
const LOOP_SET_CAPACITY: Opcode = 0x4c07;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
const BLKROSET: Opcode = 0x125d;
const BLKROGET: Opcode = 0x125e;
const FIFREEZE: Opcode = 0xc004_5877;
const FITHAW: Opcode = 0xc004_5878;

/// The sectors of every device. Left to the kernel, they grow once an image on xfs shares blocks, and the file system in
/// it, made for small ones, cannot be mounted any more. Where the disk has larger ones, direct I/O is not to be had.
const SECTOR: u32 = 512;

pub(crate) const AUTOCLEAR: u32 = 4;
pub(crate) const DIRECT_IO: u32 = 16;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(crate) flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    /// A configuration with these flags; `name` is what `losetup` shows, cut to what fits.
    fn new(flags: u32, name: &[u8]) -> Self {
        let mut file_name = [0; 64];
        let length = name.len().min(file_name.len() - 1);
        file_name[..length].copy_from_slice(&name[..length]);
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

impl LoopInfo {
    /// What `loop_configure` was given, as far as it fits.
    pub(crate) fn name(&self) -> &[u8] {
        self.file_name.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// `LOOP_CTL_GET_FREE` answers in the return value, a pattern that rustix has no type for.
struct GetFree;

// SAFETY: the opcode takes no argument and writes no memory; its output is the return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<u32> {
        u32::try_from(out).map_err(|_| io::Errno::INVAL)
    }
}

/// The number of a loop device that was free a moment ago; the kernel makes one if need be.
pub(crate) fn loop_get_free(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: see `GetFree`.
    unsafe { ioctl(control, GetFree) }
}

/// Puts `backing` behind `device`; `EBUSY` when somebody was quicker.
pub(crate) fn loop_configure(
    device: impl AsFd,
    backing: impl AsFd,
    flags: u32,
    name: &[u8],
) -> io::Result<()> {
    let fd = u32::try_from(backing.as_fd().as_raw_fd()).map_err(|_| io::Errno::BADF)?;
    let config = LoopConfig { fd, block_size: SECTOR, info: LoopInfo::new(flags, name), reserved: [0; 8] };
    // SAFETY: the kernel reads exactly a `struct loop_config`, whose layout is asserted above, during the call;
    // `backing` is borrowed for as long, and the kernel takes its own reference.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// What lies behind `device`; `ENXIO` when nothing does.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<LoopInfo> {
    // SAFETY: the kernel writes exactly a `struct loop_info64`, for which every bit pattern is valid.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}

/// Gives `device` the flags of `info`; the rest of it must be what `loop_status` gave.
pub(crate) fn loop_set_status(device: impl AsFd, info: LoopInfo) -> io::Result<()> {
    // SAFETY: the kernel reads exactly a `struct loop_info64` during the call.
    unsafe { ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }
}

/// Whether the kernel refuses writes to a block device.
pub(crate) fn is_read_only(device: impl AsFd) -> io::Result<bool> {
    // SAFETY: the kernel writes exactly an `int`, for which every bit pattern is valid.
    let read_only: c_int = unsafe { ioctl(device, Getter::<BLKROGET, c_int>::new())? };
    Ok(read_only != 0)
}

/// Makes the kernel refuse writes to a block device, or take them again.
pub(crate) fn set_read_only(device: impl AsFd, read_only: bool) -> io::Result<()> {
    // SAFETY: the kernel reads exactly an `int` during the call.
    unsafe { ioctl(device, Setter::<BLKROSET, c_int>::new(read_only.into())) }
}

/// Makes the kernel read the backing file's size again.
pub(crate) fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: takes no argument and changes only the device's size.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// Detaches the device now, or, while somebody has it open, at the last close.
pub(crate) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: takes no argument; the kernel defers the detach while the device is in use.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Freezes the file system that `dir` lies on; `EBUSY` when it is frozen already.
pub(crate) fn freeze(dir: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of this call and touches no memory of ours.
    unsafe { ioctl(dir, NoArg::<FIFREEZE>::new()) }
}

/// Thaws it again; `EINVAL` when it is not frozen.
pub(crate) fn thaw(dir: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of this call and touches no memory of ours.
    unsafe { ioctl(dir, NoArg::<FITHAW>::new()) }
}

const GET_XATTR: Opcode = 0x801c_581f;
const SET_XATTR: Opcode = 0x401c_5820;

/// New files and directories take over the directory's project.
pub(crate) const PROJECT_INHERIT: u32 = 0x200;

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FileAttributes {
    pub(crate) flags: u32,
    extent_size: u32,
    extents: u32,
    pub(crate) project: u32,
    copy_extent_size: u32,
    pad: [u8; 8],
}

/// The attributes of a file or directory; `ENOTTY` or `EOPNOTSUPP` where the file system has none.
pub(crate) fn file_attributes(file: impl AsFd) -> io::Result<FileAttributes> {
    // SAFETY: the kernel writes exactly a `struct fsxattr`, for which every bit pattern is valid.
    unsafe { ioctl(file, Getter::<GET_XATTR, FileAttributes>::new()) }
}

/// Sets the attributes, which should be what was read but for what is to change.
pub(crate) fn set_file_attributes(file: impl AsFd, attributes: FileAttributes) -> io::Result<()> {
    // SAFETY: the kernel reads exactly a `struct fsxattr`, whose layout is asserted below.
    unsafe { ioctl(file, Setter::<SET_XATTR, FileAttributes>::new(attributes)) }
}

/// `struct fs_quota_statv` of `linux/dqblk_xfs.h`, of which only the flags are of use.
#[repr(C)]
pub(crate) struct QuotaState {
    version: i8,
    pad: u8,
    pub(crate) flags: u16,
    rest: [u32; 39],
}

/// `struct if_dqblk` of `linux/quota.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QuotaBlock {
    /// In units of 1024 bytes; 0 is no limit.
    pub(crate) hard_limit: u64,
    soft_limit: u64,
    pub(crate) bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    pub(crate) inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

impl QuotaBlock {
    /// To set the limit on space alone.
    pub(crate) fn of_limit(hard_limit: u64) -> Self {
        Self { hard_limit, valid: LIMITS_VALID, ..Self::default() }
    }
}

const _: () = assert!(
    size_of::<FileAttributes>() == 28 && size_of::<QuotaState>() == 160 && size_of::<QuotaBlock>() == 72
);

/// In [`QuotaBlock::valid`]: the limits on space are meant.
const LIMITS_VALID: u32 = 1;
/// In [`QuotaState::flags`]: limits of projects are kept to.
pub(crate) const PROJECT_ENFORCED: u16 = 1 << 5;

const PROJECT_QUOTA: u32 = 2;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
const GET_STATE: u32 = 0x5808;

/// Which quotas the file system of an open file keeps; `ENOSYS` when none.
pub(crate) fn quota_state(file: impl AsFd) -> io::Result<QuotaState> {
    let mut state = QuotaState { version: 1, pad: 0, flags: 0, rest: [0; 39] };
    quotactl(file, GET_STATE, 0, &mut state).map(|()| state)
}

/// What a project takes up, and its limits; `ENOENT` when there never was anything of it.
pub(crate) fn project_quota(file: impl AsFd, project: u32) -> io::Result<QuotaBlock> {
    let mut block = QuotaBlock::default();
    quotactl(file, GET_QUOTA, project, &mut block).map(|()| block)
}

/// Sets what `block` has as valid.
pub(crate) fn set_project_quota(file: impl AsFd, project: u32, mut block: QuotaBlock) -> io::Result<()> {
    quotactl(file, SET_QUOTA, project, &mut block)
}

/// `quotactl_fd`, which Linux has since 5.14. `T` must be what `command` reads or writes.
fn quotactl<T>(file: impl AsFd, command: u32, project: u32, data: &mut T) -> io::Result<()> {
    // SAFETY: all commands above read or write one `T`, whose size is asserted, and keep no pointer to it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_fd().as_raw_fd(),
            command << 8 | PROJECT_QUOTA,
            project,
            std::ptr::from_mut(data),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> io::Errno {
    io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::IO)
}
