//! Whether copies that are made one after the other can be of one and the same moment: pure.
//!
//! What is frozen, or not in use, stays as it is while the others are copied, and so does not decide the moment. A volume
//! that changes meanwhile has its moment for itself: with one such volume that moment is the group's, with two there is none.

use crate::error::{Error, Result};
use crate::id::VolumeId;

/// Refuses a group in which more volumes than `most` change while they are copied; `why` says why they do.
pub(super) fn check(changing: &[&VolumeId], most: usize, why: &str) -> Result<()> {
    if changing.len() <= most {
        return Ok(());
    }
    let remedy = match most {
        0 => "stop the pods that use them",
        _ => "stop the pods of all but one",
    };
    Err(Error::Precondition(format!(
        "{} in use, and {why}, so that their snapshots would be of different moments: {remedy}, or make a snapshot of each \
         volume by itself",
        are(changing)
    )))
}

/// Names volumes for people, with the verb.
pub(super) fn are(volumes: &[&VolumeId]) -> String {
    let names: Vec<_> = volumes.iter().map(|id| id.as_str()).collect();
    match names[..] {
        [one] => format!("volume {one} is"),
        _ => format!("volumes {} are", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_volume_that_changes_decides_the_moment_and_two_cannot() {
        let pool = "0123456789abcdef".parse().unwrap();
        let (one, two) = (VolumeId::make(&pool, "a"), VolumeId::make(&pool, "b"));
        for (changing, most, says) in [
            (vec![], 0, None),
            (vec![&one], 1, None),
            (vec![&one], 0, Some("stop the pods that use them")),
            (vec![&one, &two], 1, Some("stop the pods of all but one")),
        ] {
            match (check(&changing, most, "nothing holds them"), says) {
                (Ok(()), None) => {}
                (Err(Error::Precondition(text)), Some(says)) => {
                    assert!(text.contains(says) && text.contains("nothing holds them"), "{text}");
                    assert!(changing.iter().all(|id| text.contains(id.as_str())), "{text}");
                }
                (got, _) => panic!("{changing:?} {most}: {got:?}"),
            }
        }
        assert!(are(&[&one]).ends_with(" is") && are(&[&one, &two]).ends_with(" are"));
    }
}
