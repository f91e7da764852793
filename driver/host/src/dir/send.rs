//! A tree as a stream of items. It is walked as a copy is, through handles that cannot be led astray, and nothing in it is
//! changed meanwhile.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Statx, readlinkat};

use super::attributes::{Reader, look, through_proc};
use super::copy::{DEPTH, raise_file_limit, reopen_directory};
use super::{Dir, Mounts};
use crate::error::{Error, Result, failed};
use crate::stream::{Entry, Kind, Sink, Step, send_file};

/// So many files with several names are remembered, in less than 100 MiB.
const LINKED: usize = 4 << 20;

impl Dir {
    /// Sends everything below the directory, and at last its own attributes: what [`Dir::copy_tree`] would copy.
    pub fn send_tree<S: Sink + ?Sized>(&self, sink: &mut S) -> std::result::Result<(), S::Error> {
        raise_file_limit();
        let mut sender = Sender { sink, sent: HashSet::new(), attributes: Reader::new() };
        sender.directory(self, DEPTH)
    }
}

struct Sender<'a, S: ?Sized> {
    sink: &'a mut S,
    /// The inodes of files with several names.
    sent: HashSet<u64>,
    attributes: Reader,
}

impl<S: Sink + ?Sized> Sender<'_, S> {
    fn directory(&mut self, from: &Dir, depth: usize) -> std::result::Result<(), S::Error> {
        if depth == 0 {
            return Err(problem(&from.path, format!("lies more than {DEPTH} directories deep")).into());
        }
        let stat = look(from, &from.path)?;
        from.each(|name| self.entry(from, name, depth))?;
        let attributes = self.attributes.read(from, &stat, &from.path)?;
        self.sink.step(Step::End(attributes))
    }

    fn entry(&mut self, from: &Dir, name: &OsStr, depth: usize) -> std::result::Result<(), S::Error> {
        let path = from.path.join(name);
        let source = from.open_at(Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Mounts::Refuse)?;
        let stat = look(&source, &path)?;
        let of = FileType::from_raw_mode(stat.stx_mode.into());
        let link = (of != FileType::Directory && stat.stx_nlink > 1).then_some(stat.stx_ino);
        let begin = |kind| Step::Begin(Entry { name: name.as_bytes().to_vec(), kind, link });
        if let Some(inode) = link {
            if self.sent.contains(&inode) {
                let again = Entry { name: name.as_bytes().to_vec(), kind: Kind::Again(inode), link: None };
                return self.sink.step(Step::Begin(again));
            }
            if self.sent.len() == LINKED {
                let words = format!("is in a tree with more than {LINKED} files of several names");
                return Err(problem(&path, words).into());
            }
            self.sent.insert(inode);
        }
        self.sink.step(begin(kind(of, &source, &stat, &path)?))?;
        match of {
            FileType::Directory => {
                let directory = Dir { fd: reopen_directory(&source, &path)?, path };
                return self.directory(&directory, depth - 1);
            }
            FileType::RegularFile if self.sink.data_from().is_some() => {
                let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
                let file = rustix::fs::open(through_proc(&source), flags, Mode::empty());
                send_file(&File::from(file.map_err(failed("open", &path))?), &path, self.sink)?;
            }
            _ => {}
        }
        let attributes = self.attributes.read(&source, &stat, &path)?;
        self.sink.step(Step::End(attributes))
    }
}

fn kind(of: FileType, source: &OwnedFd, stat: &Statx, path: &Path) -> Result<Kind> {
    Ok(match of {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => {
            let target = readlinkat(source, "", Vec::new()).map_err(failed("read the target of", path))?;
            Kind::Symlink(target.into_bytes())
        }
        special => Kind::Special {
            mode: special.as_raw_mode(),
            major: stat.stx_rdev_major,
            minor: stat.stx_rdev_minor,
        },
    })
}

fn problem(path: &Path, problem: String) -> Error {
    Error::Unexpected { path: path.to_owned(), problem: format!("{problem}, and no such tree is sent") }
}
