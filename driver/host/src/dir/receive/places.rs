//! Where files with several names lie in a tree that is being received, noted in a file beside the tree: what is made of
//! the tree has nothing more in it for that, and it can be a subvolume, which no link leads into.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::super::Dir;
use super::super::copy::DEPTH;
use super::NAME_LIMIT;
use crate::error::{Error, Result, failed};

/// As many files with several names as a sender remembers.
const MOST: usize = 4 << 20;
/// What stands before each path: the file's number and the length of the path.
const HEADER: usize = 12;
/// The longest path that can come.
const LONGEST: usize = DEPTH * (NAME_LIMIT + 1);

/// The notes: each is durable with the file system, and later ones of a number count.
#[derive(Debug)]
pub(super) struct Places {
    file: File,
    path: PathBuf,
    /// Where in the notes the one of each number begins.
    known: HashMap<u64, u64>,
    end: u64,
}

impl Places {
    /// Opens the notes of that name, which go on if they are there.
    pub(super) fn open(dir: &Dir, name: &str) -> Result<Self> {
        let path = dir.path().join(name);
        let file = if dir.has(name)? { dir.file(name)? } else { dir.create(name)? };
        let (known, end) = read(BufReader::new(&file)).map_err(failed("read", &path))?;
        // A note that was cut short is of a file that comes again.
        file.set_len(end).map_err(failed("shorten", &path))?;
        Ok(Self { file, path, known, end })
    }

    /// Notes that the file of a number lies at a path in the tree.
    pub(super) fn note(&mut self, number: u64, place: &Path) -> Result<()> {
        if self.known.len() >= MOST && !self.known.contains_key(&number) {
            return Err(self.bad(format!("is for more than {MOST} files of several names")));
        }
        let note = encode(number, place).ok_or_else(|| self.bad("is given a path without end".into()))?;
        self.file.write_all_at(&note, self.end).map_err(failed("write", &self.path))?;
        self.known.insert(number, self.end);
        self.end += note.len() as u64;
        Ok(())
    }

    /// The path of the file of a number, if it has come.
    pub(super) fn find(&self, number: u64) -> Result<Option<PathBuf>> {
        let Some(at) = self.known.get(&number) else { return Ok(None) };
        let reading = || failed("read", &self.path);
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, *at).map_err(reading())?;
        let (_, length) = decode(header);
        let mut place = vec![0; length as usize];
        self.file.read_exact_at(&mut place, at + HEADER as u64).map_err(reading())?;
        Ok(Some(PathBuf::from(OsStr::from_bytes(&place))))
    }

    fn bad(&self, problem: String) -> Error {
        Error::Unexpected { path: self.path.clone(), problem }
    }
}

fn encode(number: u64, place: &Path) -> Option<Vec<u8>> {
    let place = place.as_os_str().as_bytes();
    let length = u32::try_from(place.len()).ok().filter(|_| place.len() <= LONGEST)?;
    let mut note = number.to_le_bytes().to_vec();
    note.extend(length.to_le_bytes());
    note.extend(place);
    Some(note)
}

fn decode(header: [u8; HEADER]) -> (u64, u32) {
    let [number @ .., a, b, c, d] = header;
    (u64::from_le_bytes(number), u32::from_le_bytes([a, b, c, d]))
}

/// Where the last note of each number begins, and where the last whole note ends.
fn read(mut notes: impl Read) -> std::io::Result<(HashMap<u64, u64>, u64)> {
    let (mut known, mut end) = (HashMap::new(), 0);
    loop {
        let mut header = Vec::new();
        notes.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        let Ok(header) = header.try_into() else { return Ok((known, end)) };
        let (number, length) = decode(header);
        if length as usize > LONGEST || known.len() >= MOST {
            return Ok((known, end));
        }
        let skipped = std::io::copy(&mut notes.by_ref().take(length.into()), &mut std::io::sink())?;
        if skipped < length.into() {
            return Ok((known, end));
        }
        known.insert(number, end);
        end += HEADER as u64 + u64::from(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_to_the_last_whole_one_and_the_later_of_a_number_counts() {
        let note = |number, place| encode(number, Path::new(place)).unwrap();
        let notes = [note(7, "a"), note(8, "sub/b"), note(7, "sub/again")].concat();
        let starts = [0, 13, 30];
        for (length, seven, eight, end) in [
            (0, None, None, 0),
            (11, None, None, 0),
            (12, None, None, 0),
            (13, Some(starts[0]), None, 13),
            (29, Some(starts[0]), None, 13),
            (30, Some(starts[0]), Some(starts[1]), 30),
            (notes.len() - 1, Some(starts[0]), Some(starts[1]), 30),
            (notes.len(), Some(starts[2]), Some(starts[1]), notes.len() as u64),
        ] {
            let (known, read_to) = read(&notes[..length]).unwrap();
            assert_eq!((known.get(&7).copied(), known.get(&8).copied()), (seven, eight), "{length}");
            assert_eq!(read_to, end, "{length}");
        }
        // What a power cut can make of the end of a file.
        let zeros = [&notes[..], &[0; 40]].concat();
        let (known, _) = read(zeros.as_slice()).unwrap();
        assert_eq!((known[&7], known[&8]), (starts[2], starts[1]));
        let ones = [&notes[..], &[255; 40]].concat();
        assert_eq!(read(ones.as_slice()).unwrap(), (known_of(&notes), notes.len() as u64));
        assert!(encode(1, Path::new(&"x".repeat(LONGEST + 1))).is_none());
    }

    fn known_of(notes: &[u8]) -> HashMap<u64, u64> {
        read(notes).unwrap().0
    }

    #[test]
    fn what_was_noted_is_found_by_the_next_who_opens_the_notes() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let strange = Path::new(OsStr::from_bytes(b"no \xff text/new\nline"));
        let mut places = Places::open(&dir, "places").unwrap();
        places.note(1, Path::new("old")).unwrap();
        places.note(u64::MAX, strange).unwrap();
        places.note(1, Path::new("a")).unwrap();
        let cut = places.end;
        places.note(2, Path::new("cut short")).unwrap();
        places.file.set_len(places.end - 1).unwrap();
        let mut places = Places::open(&dir, "places").unwrap();
        assert_eq!(places.end, cut);
        places.note(3, Path::new("b")).unwrap();
        for places in [&places, &Places::open(&dir, "places").unwrap()] {
            for (number, expected) in
                [(1, Some(Path::new("a"))), (u64::MAX, Some(strange)), (2, None), (3, Some(Path::new("b")))]
            {
                assert_eq!(places.find(number).unwrap().as_deref(), expected, "{number}");
            }
        }
    }
}
