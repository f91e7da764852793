//! Files and trees as a stream of items, by which they come from one machine to another. Holes are left out.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::copy::each_extent;
use crate::dir::Dir;
use crate::error::{Error, Result, failed};

/// So much data one item has at most.
pub const SLICE: usize = 256 << 10;
/// Zeros are left out in pieces of this size.
const BLOCK: usize = 64 << 10;

/// A step through a tree. Bytes that are names need not be text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Begins an entry of the directory that was begun last and has not ended.
    Begin(Entry),
    /// Ends what was begun last, and after everything the tree itself.
    End(Attributes),
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
    /// Of a file with several names: the number that its other names have it by.
    pub link: Option<u64>,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    Symlink(Vec<u8>),
    /// A socket, pipe or device node: the type as in a mode, and the device's numbers.
    Special {
        mode: u32,
        major: u32,
        minor: u32,
    },
    /// Another name of the entry with this number, which has been sent. It does not end.
    Again(u64),
}

/// Everything about a file but its name and content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    /// Seconds and nanoseconds.
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
    /// Of a regular file.
    pub size: u64,
    /// Names without the zero at their end, and values.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where items go.
pub trait Sink {
    type Error: From<Error>;

    fn step(&mut self, step: Step) -> std::result::Result<(), Self::Error>;

    /// From where on the data are wanted of the file that was begun last; none when they are not.
    fn data_from(&self) -> Option<u64>;

    fn data(&mut self, offset: u64, bytes: &[u8]) -> std::result::Result<(), Self::Error>;
}

/// What has been begun and has not ended, which is where a copy that was cut short goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub directories: Vec<Vec<u8>>,
    /// A file in the last of them, and its number if it has several names.
    pub file: Option<(Vec<u8>, Option<u64>)>,
    /// Whether the tree itself has ended.
    pub ended: bool,
}

/// Takes items, in the order in which they were sent.
pub trait Receive: Send + std::fmt::Debug {
    fn step(&mut self, step: Step) -> Result<()>;

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    fn position(&self) -> Position;

    /// Whether everything that was begun has ended.
    fn is_whole(&self) -> bool;

    /// Makes durable what was taken.
    fn persist(&self) -> Result<()>;

    /// The same, and removes what only receiving needed, once it is whole. May come twice.
    fn finish(&self) -> Result<()>;
}

/// Sends what is no hole in a file.
pub fn send_file<S: Sink + ?Sized>(
    file: &File,
    path: &Path,
    sink: &mut S,
) -> std::result::Result<(), S::Error> {
    let Some(from) = sink.data_from() else { return Ok(()) };
    let length = file.metadata().map_err(failed("look at", path)).map_err(S::Error::from)?.len();
    let mut buffer = vec![0; SLICE];
    each_extent(file, length, path, |start, end| {
        let mut at = start.max(from);
        while at < end {
            let most = usize::try_from(end - at).map_or(SLICE, |left| left.min(SLICE));
            let read = file
                .read_at(&mut buffer[..most], at)
                .map_err(failed("read", path))
                .map_err(S::Error::from)?;
            // It has been cut shorter meanwhile.
            if read == 0 {
                break;
            }
            slices(&buffer[..read], |begin, slice| sink.data(at + begin, slice))?;
            at += read as u64;
        }
        Ok(())
    })
}

/// Calls `with` for each run of blocks that are not all zeros.
fn slices<E>(
    bytes: &[u8],
    mut with: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let zeros = |at: &usize| bytes[*at..bytes.len().min(at + BLOCK)].iter().all(|byte| *byte == 0);
    let mut start = None;
    for at in (0..bytes.len()).step_by(BLOCK) {
        match (zeros(&at), start) {
            (true, Some(begin)) => {
                with(begin as u64, &bytes[begin..at])?;
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    start.map_or(Ok(()), |begin| with(begin as u64, &bytes[begin..]))
}

/// Takes the data of one file, which has its size already.
#[derive(Debug)]
pub struct FileReceiver {
    file: File,
    path: PathBuf,
    size: u64,
}

impl FileReceiver {
    pub fn new(dir: &Dir, name: &str) -> Result<Self> {
        let (file, path) = (dir.file(name)?, dir.path().join(name));
        let size = file.metadata().map_err(failed("look at", &path))?.len();
        Ok(Self { file, path, size })
    }
}

impl Receive for FileReceiver {
    fn step(&mut self, _: Step) -> Result<()> {
        Err(Error::Unexpected {
            path: self.path.clone(),
            problem: "is no tree, and steps through one came".into(),
        })
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.size) {
            return Err(Error::Unexpected {
                path: self.path.clone(),
                problem: "is given data beyond its end".into(),
            });
        }
        self.file.write_all_at(bytes, offset).map_err(failed("write", &self.path))
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<()> {
        self.file.sync_data().map_err(failed("sync", &self.path))
    }

    fn finish(&self) -> Result<()> {
        self.persist()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was sent, for a file.
    struct Taken {
        from: Option<u64>,
        data: Vec<(u64, Vec<u8>)>,
    }

    impl Sink for Taken {
        type Error = Error;

        fn step(&mut self, step: Step) -> Result<()> {
            panic!("{step:?}");
        }

        fn data_from(&self) -> Option<u64> {
            self.from
        }

        fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.data.push((offset, bytes.to_vec()));
            Ok(())
        }
    }

    fn sent(dir: &Dir, from: Option<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut taken = Taken { from, data: Vec::new() };
        send_file(&dir.file("from").unwrap(), dir.path(), &mut taken).unwrap();
        taken.data
    }

    #[test]
    fn zeros_are_left_out_by_the_block() {
        let block = |byte: u8| vec![byte; BLOCK];
        for (bytes, expected) in [
            (vec![], vec![]),
            (block(0), vec![]),
            (block(1), vec![(0, BLOCK)]),
            ([block(0), block(1), block(1), block(0)].concat(), vec![(BLOCK, 2 * BLOCK)]),
            ([block(1), block(0), vec![1]].concat(), vec![(0, BLOCK), (2 * BLOCK, 1)]),
        ] {
            let mut got = Vec::new();
            slices(&bytes, |at, slice| {
                got.push((usize::try_from(at).unwrap(), slice.len()));
                Ok::<(), Error>(())
            })
            .unwrap();
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_file_is_sent_without_its_holes_and_from_where_it_is_wanted() {
        const M: u64 = 1 << 20;
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let file = dir.create("from").unwrap();
        file.write_all_at(&vec![7; 3 << 20], 16 * M).unwrap();
        file.set_len(64 * M).unwrap();
        file.write_all_at(b"end", 64 * M - 3).unwrap();
        let whole = sent(&dir, Some(0));
        assert!(whole.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() < 4 * M);
        let rest = sent(&dir, Some(18 * M));
        assert_eq!(rest[0].0, 18 * M);
        assert!(sent(&dir, None).is_empty());
        dir.create("to").unwrap().set_len(64 * M).unwrap();
        let mut receiver = FileReceiver::new(&dir, "to").unwrap();
        for (offset, bytes) in whole {
            receiver.data(offset, &bytes).unwrap();
        }
        receiver.persist().unwrap();
        let read = |name| std::fs::read(scratch.path().join(name)).unwrap();
        assert!(read("from") == read("to"));
        for offset in [64 * M, 64 * M - 1, u64::MAX] {
            assert!(receiver.data(offset, b"xx").is_err(), "{offset}");
        }
        assert!(receiver.step(Step::End(Attributes::default())).is_err());
        assert_eq!(read("to").len() as u64, 64 * M);
    }
}
