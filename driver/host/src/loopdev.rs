//! Loop devices: an image is found again by its inode, so that it is never attached twice.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use crate::error::{Error, Result, failed};
use crate::mountinfo::Mount;
use crate::sys;

/// Others take free devices as well; each try asks for another one.
const ATTACH_TRIES: u32 = 64;
/// A copy of the mount in some other mount namespace keeps the device busy a while.
const DETACH_TRIES: u32 = 30;
const DETACH_PAUSE: Duration = Duration::from_millis(100);

/// The major number of loop devices.
pub const MAJOR: u32 = 7;

/// An attached loop device, held open. Unless it is kept, it detaches itself when it is neither mounted nor open any
/// more, so that a process that dies between attach and mount leaves nothing behind.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    number: u32,
    path: PathBuf,
}

impl LoopDevice {
    /// The device that has this image, if any.
    pub fn find(image: &File) -> Result<Option<Self>> {
        let wanted = identity(image)?;
        Self::search(|device| Ok(device.backing()? == Some(wanted)))
    }

    /// The kept device that was attached under this name, if any: for an image that cannot be reached.
    pub fn kept_as(name: &str) -> Result<Option<Self>> {
        Self::search(|device| match sys::loop_status(&device.file) {
            Ok(info) => Ok(info.name() == name.as_bytes() && info.flags & sys::AUTOCLEAR == 0),
            Err(Errno::NXIO) => Ok(false),
            Err(error) => Err(failed("look at", &device.path)(error)),
        })
    }

    fn search(is_wanted: impl Fn(&Self) -> Result<bool>) -> Result<Option<Self>> {
        let listing = || failed("list", "/sys/block");
        for entry in std::fs::read_dir("/sys/block").map_err(listing())? {
            let name = entry.map_err(listing())?.file_name();
            let Some(number) = name
                .to_str()
                .and_then(|name| name.strip_prefix("loop"))
                .and_then(|digits| digits.parse().ok())
            else {
                continue;
            };
            // Opening a device that has nothing behind it costs more than this look.
            if !Path::new("/sys/block").join(&name).join("loop/backing_file").exists() {
                continue;
            }
            if let Some(device) = Self::open(number)?
                && is_wanted(&device)?
            {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Attaches an image, unless it is attached already.
    pub fn attach(image: &File, name: &str) -> Result<Self> {
        if let Some(device) = Self::find(image)? {
            return Ok(device);
        }
        let control = open("/dev/loop-control")?;
        let mut flags = sys::AUTOCLEAR | sys::DIRECT_IO;
        for _ in 0..ATTACH_TRIES {
            let number = sys::loop_get_free(&control)
                .map_err(failed("get a free loop device from", "/dev/loop-control"))?;
            let Some(device) = Self::open(number)? else { continue };
            match sys::loop_configure(&device.file, image, flags, name.as_bytes()) {
                Ok(()) => {
                    // What somebody said of the device before stays with its number.
                    device.set_read_only(false)?;
                    return Ok(device);
                }
                Err(Errno::BUSY) => {}
                // The file system of the image cannot do direct I/O.
                Err(Errno::INVAL) if flags & sys::DIRECT_IO != 0 => flags &= !sys::DIRECT_IO,
                Err(error) => return Err(failed("attach an image to", device.path)(error)),
            }
        }
        Err(Error::Unexpected {
            path: "/dev/loop-control".into(),
            problem: format!("gave no free loop device in {ATTACH_TRIES} tries"),
        })
    }

    /// Waits until no device has the image, and makes it so; `false` when somebody else keeps it attached.
    pub fn detach(image: &File) -> Result<bool> {
        Self::detach_all(|| Self::find(image))
    }

    /// The same for a device that is kept under this name.
    pub fn detach_kept(name: &str) -> Result<bool> {
        Self::detach_all(|| Self::kept_as(name))
    }

    fn detach_all(find: impl Fn() -> Result<Option<Self>>) -> Result<bool> {
        for _ in 0..DETACH_TRIES {
            let Some(device) = find()? else { return Ok(true) };
            // The next image that gets this number must not find it read-only.
            device.set_read_only(false)?;
            match sys::loop_clear(&device.file) {
                Ok(()) | Err(Errno::NXIO | Errno::BUSY) => {}
                Err(error) => return Err(failed("detach", device.path)(error)),
            }
            drop(device);
            if find()?.is_none() {
                return Ok(true);
            }
            sleep(DETACH_PAUSE);
        }
        Ok(false)
    }

    /// Keeps the device attached, whether or not somebody has it open, until it is detached.
    pub fn keep(&self) -> Result<()> {
        let mut info = sys::loop_status(&self.file).map_err(failed("look at", &self.path))?;
        info.flags &= !sys::AUTOCLEAR;
        sys::loop_set_status(&self.file, info).map_err(failed("keep", &self.path))
    }

    pub fn is_kept(&self) -> Result<bool> {
        let info = sys::loop_status(&self.file).map_err(failed("look at", &self.path))?;
        Ok(info.flags & sys::AUTOCLEAR == 0)
    }

    /// Makes the device refuse writes, or take them again, whoever has it open.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        if sys::is_read_only(&self.file).map_err(failed("look at", &self.path))? == read_only {
            return Ok(());
        }
        sys::set_read_only(&self.file, read_only).map_err(failed("set the mode of", &self.path))
    }

    /// The device's node, to be mounted on a file.
    pub fn node(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).map_err(failed("open", &self.path))
    }

    /// Those of some mounts that are the device's node. The kernel lists them as parts of the file system that has the
    /// node, so what is at the mount point decides.
    pub fn node_mounts(&self, mounts: Vec<Mount>) -> Result<Vec<Mount>> {
        let mut found = Vec::new();
        for mount in mounts {
            // Looking at every mount could hang on one whose server is gone.
            if mount.root.file_name() == self.path.file_name() && self.is_node(&mount.mount_point)? {
                found.push(mount);
            }
        }
        Ok(found)
    }

    fn is_node(&self, path: &Path) -> Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match statx(CWD, path, flags, StatxFlags::TYPE) {
            Ok(found) => Ok(FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice
                && (found.stx_rdev_major, found.stx_rdev_minor) == self.device()),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(failed("look at", path)(error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its device number, as a mount shows it.
    pub fn device(&self) -> (u32, u32) {
        (MAJOR, self.number)
    }

    /// Whether a mount is of the file system on this device.
    pub fn is_mounted_as(&self, mount: &Mount) -> bool {
        // Btrfs can have many devices, so the kernel gives its mounts a number of their own.
        mount.device == self.device() || mount.filesystem == "btrfs" && mount.source == self.path
    }

    /// The size that the kernel gives the device.
    pub fn size(&self) -> Result<u64> {
        (&self.file).seek(SeekFrom::End(0)).map_err(failed("tell the size of", &self.path))
    }

    /// Lets the device grow to its image's size.
    pub fn take_size_of_image(&self) -> Result<()> {
        let before = self.size()?;
        sys::loop_set_capacity(&self.file).map_err(failed("set the size of", &self.path))?;
        if self.size()? > before {
            return Ok(());
        }
        Err(Error::Unexpected { path: self.path.clone(), problem: "does not grow with its image".into() })
    }

    /// Whether it is mounted, be it in another mount namespace: only one holder can have it for itself.
    pub fn is_in_use(&self) -> Result<bool> {
        match rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Ok(_) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(error) => Err(failed("open", &self.path)(error)),
        }
    }

    fn open(number: u32) -> Result<Option<Self>> {
        let path = PathBuf::from(format!("/dev/loop{number}"));
        match open(&path) {
            Ok(file) => Ok(Some(Self { file, number, path })),
            // Gone again, or being detached just now.
            Err(error) if error.is_not_found() => Ok(None),
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Device and inode of the file behind it, if there is one.
    fn backing(&self) -> Result<Option<(u64, u64)>> {
        match sys::loop_status(&self.file) {
            Ok(info) => Ok(Some((info.device, info.inode))),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(failed("look at", &self.path)(error)),
        }
    }
}

fn open(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    OpenOptions::new().read(true).write(true).open(path).map_err(failed("open", path))
}

fn identity(image: &File) -> Result<(u64, u64)> {
    let metadata = image.metadata().map_err(failed("look at", "an image"))?;
    Ok((metadata.dev(), metadata.ino()))
}
