//! The receiving end of a copy: nothing is written that does not have its checksum, its place and its room.

use dunnage_csi::agent::{Piece, PieceBody, Tail};
use dunnage_host::stream::{Position, Receive, Step};
use prost::Message as _;

use super::cursor::{Cursor, checksum};
use super::wire::{self, Received};
use crate::error::{Error, Result};

/// Takes pieces in their order.
#[derive(Debug)]
pub(crate) struct Taker {
    receiver: Box<dyn Receive>,
    at: Cursor,
    /// Bytes of data that may still come.
    left: u64,
}

impl Taker {
    /// Goes on at a cursor; `left` bytes of data may come.
    pub(crate) fn new(receiver: Box<dyn Receive>, at: Cursor, left: u64) -> Self {
        Self { receiver, at, left }
    }

    /// Writes a piece, and tells how many bytes of data it had.
    pub(crate) fn piece(&mut self, piece: &Piece) -> Result<u64> {
        let found = checksum(&piece.body);
        if found != piece.checksum {
            return Err(corrupt("a piece does not have its checksum"));
        }
        let body = PieceBody::decode(piece.body.as_slice()).map_err(|_| corrupt("a piece cannot be read"))?;
        let before = self.left;
        for item in body.items {
            match wire::read(item)? {
                Received::Data(data) => {
                    let bytes = data.bytes.len() as u64;
                    self.left = self
                        .left
                        .checked_sub(bytes)
                        .ok_or_else(|| corrupt("there are more data than were announced and have room"))?;
                    self.receiver.data(data.offset, &data.bytes)?;
                    self.at.offset = data.offset.saturating_add(bytes);
                }
                Received::Step(step) => self.step(step)?,
            }
        }
        self.at.piece(&found);
        Ok(before - self.left)
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let item = matches!(step, Step::Begin(_)).then(|| wire::step(step.clone()).encode_to_vec());
        self.receiver.step(step)?;
        match item {
            Some(item) => self.at.began(&item),
            None => self.at.ended(),
        }
        Ok(())
    }

    /// Whether everything has come that was sent.
    pub(crate) fn check(&self, tail: &Tail) -> Result<()> {
        if tail.chain != self.at.chain {
            return Err(corrupt("the pieces are not those that were sent"));
        }
        if !self.receiver.is_whole() {
            return Err(corrupt("it ends in the middle of a tree"));
        }
        Ok(())
    }

    /// Makes durable what came, and removes what only taking it needed. What is still there when this was cut short has to
    /// be gone on with at its end.
    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.receiver.finish()?)
    }

    /// Makes durable what came, and tells where that is.
    pub(crate) fn persist(&self) -> Result<(Cursor, Position)> {
        self.receiver.persist()?;
        Ok((self.at.clone(), self.receiver.position()))
    }
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt(what.to_owned())
}

#[cfg(test)]
mod tests;
