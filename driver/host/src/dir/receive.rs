//! A tree from a stream of items, whatever comes: each name is one below a handle that is held, and nothing is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, symlinkat, syncfs};

use super::attributes::{apply, look};
use super::copy::{DEPTH, create, raise_file_limit};
use super::{Dir, Mounts};
use crate::error::{Error, Result, failed};
use crate::stream::{Attributes, Entry, Kind, Position, Receive, Step};

mod places;

use places::Places;

/// The longest name and target of a symlink that Linux has.
const NAME_LIMIT: usize = 255;
const TARGET_LIMIT: usize = 4095;

/// A tree that is being received.
#[derive(Debug)]
pub struct TreeReceiver {
    /// What has been begun and has not ended, from the tree itself on; empty when that has ended.
    stack: Vec<(Vec<u8>, Dir)>,
    open: Option<Open>,
    /// Where each file lies that has several names, so that the others are made of it.
    places: Places,
    parent: Dir,
    places_name: String,
}

/// A file that has been begun and has not ended.
#[derive(Debug)]
struct Open {
    name: Vec<u8>,
    link: Option<u64>,
    /// A handle on it, whatever it is, and one for its data.
    handle: OwnedFd,
    kind: FileType,
    file: Option<File>,
}

impl TreeReceiver {
    /// Receives a tree into the directory `name`, which is there and may be a subvolume, going on at a position of an
    /// earlier receiver.
    pub fn new(parent: &Dir, name: &str, at: &Position) -> Result<Self> {
        raise_file_limit();
        let parent = parent.dir(".", Mounts::Refuse)?;
        let places_name = format!("{name}.places");
        let places = Places::open(&parent, &places_name)?;
        let root = parent.dir(name, Mounts::Refuse)?;
        let stack = vec![(Vec::new(), root)];
        let mut receiver = Self { stack, open: None, places, parent, places_name };
        for name in &at.directories {
            let (below, _) = receiver.top(name)?;
            let next = below.dir(Path::new(OsStr::from_bytes(name)), Mounts::Refuse)?;
            receiver.stack.push((name.clone(), next));
        }
        if at.ended {
            receiver.stack.clear();
        } else if let Some((name, link)) = &at.file {
            let (below, path) = receiver.top(name)?;
            receiver.open = Some(Open::find(below, name, *link, &path)?);
        }
        Ok(receiver)
    }

    /// The directory for an entry of this name, and the entry's path.
    fn top(&self, name: &[u8]) -> Result<(&Dir, PathBuf)> {
        let (_, dir) = self.stack.last().ok_or_else(|| self.bad("comes after its end"))?;
        let one = !name.is_empty() && name.len() <= NAME_LIMIT && name != b"." && name != b"..";
        if !one || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            let problem = format!("{:?} is no name of a file", String::from_utf8_lossy(name));
            return Err(Error::Unexpected { path: dir.path.clone(), problem });
        }
        Ok((dir, dir.path.join(OsStr::from_bytes(name))))
    }

    fn bad(&self, problem: &str) -> Error {
        Error::Unexpected { path: self.parent.path.clone(), problem: format!("a stream that {problem}") }
    }

    fn begin(&mut self, entry: Entry) -> Result<()> {
        if self.open.is_some() {
            return Err(self.bad("begins an entry in a file"));
        }
        let (dir, path) = self.top(&entry.name)?;
        let name = OsStr::from_bytes(&entry.name);
        // What an earlier receiver made after the position that this one goes on at.
        dir.remove_shallow(name, DEPTH)?;
        let making = || failed("make", &path);
        match &entry.kind {
            Kind::Directory => {
                if self.stack.len() >= DEPTH {
                    return Err(self.bad("is deeper than any that is copied"));
                }
                mkdirat(dir, name, Mode::RWXU).map_err(making())?;
                let made = dir.dir(Path::new(name), Mounts::Refuse)?;
                self.stack.push((entry.name, made));
                return Ok(());
            }
            Kind::Again(link) => {
                let place = self.places.find(*link)?;
                return match place.map(|place| self.link(&place, dir, name)).transpose() {
                    Ok(Some(())) => Ok(()),
                    Err(error) if !error.is_not_found() => Err(error),
                    Ok(None) | Err(_) => Err(self.bad("names a file that it has not sent")),
                };
            }
            Kind::File => create(dir, name).map(drop).map_err(making())?,
            Kind::Symlink(target) if !target.is_empty() && target.len() <= TARGET_LIMIT => {
                symlinkat(OsStr::from_bytes(target), dir, name).map_err(making())?;
            }
            Kind::Symlink(_) => return Err(self.bad("has a symlink without a target that can be")),
            Kind::Special { mode, major, minor } => {
                let special = FileType::from_raw_mode(*mode);
                let known = matches!(
                    special,
                    FileType::Socket | FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice
                );
                if !known {
                    return Err(self.bad("has a file of no kind"));
                }
                mknodat(dir, name, special, Mode::RUSR, makedev(*major, *minor)).map_err(making())?;
            }
        }
        let open = Open::find(dir, &entry.name, entry.link, &path)?;
        self.open = Some(open);
        Ok(())
    }

    fn end(&mut self, attributes: &Attributes) -> Result<()> {
        let Some(open) = self.open.take() else {
            let (_, dir) = self.stack.pop().ok_or_else(|| self.bad("ends more than it began"))?;
            return apply(attributes, &dir, FileType::Directory, &dir.path);
        };
        let (_, path) = self.top(&open.name)?;
        if let Some(file) = &open.file {
            file.set_len(attributes.size).map_err(failed("set the size of", &path))?;
        }
        apply(attributes, &open.handle, open.kind, &path)?;
        if let Some(link) = open.link {
            let names = self.stack.iter().skip(1).map(|(name, _)| name).chain([&open.name]);
            let place: PathBuf = names.map(|name| OsStr::from_bytes(name)).collect();
            self.places.note(link, &place)?;
        }
        Ok(())
    }

    /// Gives a file of the tree, which is no directory, another name.
    fn link(&self, place: &Path, to: &Dir, name: &OsStr) -> Result<()> {
        let mut parts: Vec<&OsStr> = place.iter().collect();
        let last = parts.pop().unwrap_or_default();
        // Names of a file are often near one another.
        let open = self.stack.iter().skip(1).map(|(name, _)| name.as_slice());
        let shared = parts.iter().zip(open).take_while(|(part, name)| part.as_bytes() == *name).count();
        let (_, start) = &self.stack[shared];
        let mut below = None;
        for part in &parts[shared..] {
            let next = below.as_ref().unwrap_or(start).dir(Path::new(part), Mounts::Refuse)?;
            below = Some(next);
        }
        let from = below.as_ref().unwrap_or(start);
        linkat(from, last, to, name, AtFlags::empty()).map_err(failed("make", to.path.join(name)))
    }
}

impl Open {
    fn find(dir: &Dir, name: &[u8], link: Option<u64>, path: &Path) -> Result<Self> {
        let below = Path::new(OsStr::from_bytes(name));
        let handle = dir.open_at(below, OFlags::PATH | OFlags::NOFOLLOW, Mounts::Refuse)?;
        let kind = FileType::from_raw_mode(look(&handle, path)?.stx_mode.into());
        let file = match kind {
            FileType::RegularFile => {
                Some(File::from(dir.open_at(below, OFlags::RDWR | OFlags::NOFOLLOW, Mounts::Refuse)?))
            }
            _ => None,
        };
        Ok(Self { name: name.to_vec(), link, handle, kind, file })
    }
}

impl Receive for TreeReceiver {
    fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Begin(entry) => self.begin(entry),
            Step::End(attributes) => self.end(&attributes),
        }
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.open.as_ref().and_then(|open| open.file.as_ref()) {
            Some(file) if i64::try_from(offset).is_ok() => {
                file.write_all_at(bytes, offset).map_err(failed("write a file of", self.parent.path()))
            }
            _ => Err(self.bad("has data of no file")),
        }
    }

    fn position(&self) -> Position {
        Position {
            directories: self.stack.iter().skip(1).map(|(name, _)| name.clone()).collect(),
            file: self.open.as_ref().map(|open| (open.name.clone(), open.link)),
            ended: self.is_whole(),
        }
    }

    fn is_whole(&self) -> bool {
        self.stack.is_empty() && self.open.is_none()
    }

    fn persist(&self) -> Result<()> {
        syncfs(&self.parent).map_err(failed("sync", &self.parent.path))
    }

    fn finish(&self) -> Result<()> {
        self.parent.remove_file(&self.places_name)?;
        self.persist()
    }
}

#[cfg(test)]
mod tests;
