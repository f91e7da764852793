//! The ioctls of loop devices, which rustix does not wrap: the only module of the workspace with `unsafe`.
#![expect(unsafe_code, reason = "loop ioctls have no safe wrapper")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_SET_STATUS64: Opcode = 0x4c04;
const LOOP_GET_STATUS64: Opcode = 0x4c05;
const LOOP_SET_CAPACITY: Opcode = 0x4c07;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
const BLKROSET: Opcode = 0x125d;
const BLKROGET: Opcode = 0x125e;

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
    let config = LoopConfig { fd, block_size: 0, info: LoopInfo::new(flags, name), reserved: [0; 8] };
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
