//! Group snapshots: what is written about one, and what a request for one may say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{GroupId, PoolId, SnapshotId, VolumeId};

/// The name of the record in the group's directory, beside those of its snapshots.
pub(crate) const FILE: &str = "group.json";

/// A group snapshot, as its record has it: snapshots of several volumes, all of one moment, that come and go together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    pub id: GroupId,
    /// The name of the `CreateVolumeGroupSnapshot` call that made it.
    pub name: String,
    /// Nanoseconds since 1970.
    pub created: u64,
    /// One a volume, in the order of the volumes' ids.
    pub snapshots: Vec<SnapshotId>,
}

impl Group {
    /// When it was made.
    pub(crate) fn created(&self) -> Timestamp {
        (UNIX_EPOCH + Duration::from_nanos(self.created)).into()
    }
}

/// The volumes that a request names, each once.
pub(crate) fn sources(asked: &[String]) -> Result<BTreeSet<VolumeId>> {
    if asked.is_empty() {
        return Err(Error::Missing { field: "source_volume_ids" });
    }
    let mut sources = BTreeSet::new();
    for id in asked {
        if id.is_empty() {
            return Err(Error::Missing { field: "source_volume_ids" });
        }
        if !sources.insert(id.parse::<VolumeId>().and_then(VolumeId::not_inline)?) {
            return Err(Error::Invalid(format!("source_volume_ids has volume {id} twice")));
        }
    }
    Ok(sources)
}

/// The pool that has all of these volumes; `place` names a pool for people.
pub(crate) fn pool(volumes: &BTreeSet<VolumeId>, place: impl Fn(&PoolId) -> String) -> Result<PoolId> {
    let mut pools = BTreeMap::new();
    for volume in volumes {
        *pools.entry(volume.pool()).or_insert(0_usize) += 1;
    }
    let mut found = pools.keys();
    if let (Some(pool), None) = (found.next(), found.next()) {
        return Ok(pool.clone());
    }
    let parts: Vec<_> = pools.iter().map(|(pool, count)| format!("{count} on {}", place(pool))).collect();
    Err(Error::Precondition(format!(
        "the volumes of a group snapshot have to lie on one pool, where they can be held still together, and of these lie \
         {}: make a group snapshot of the volumes of each node",
        parts.join(", ")
    )))
}

/// A repeated request must name the group's own volumes.
pub(crate) fn same_sources(id: &GroupId, has: &BTreeSet<VolumeId>, asked: &BTreeSet<VolumeId>) -> Result<()> {
    if has == asked {
        return Ok(());
    }
    let names: Vec<_> = has.iter().map(VolumeId::as_str).collect();
    Err(Error::GroupConflict { id: id.to_string(), source_volumes: names.join(", ") })
}

/// A request about a group must name its snapshots, for its author may mean another one.
pub(crate) fn same_snapshots<'a>(
    id: &GroupId,
    has: impl Iterator<Item = &'a str>,
    asked: &[String],
) -> Result<()> {
    if asked.is_empty() {
        return Err(Error::Missing { field: "snapshot_ids" });
    }
    let has: BTreeSet<_> = has.collect();
    let asked: BTreeSet<_> = asked.iter().map(String::as_str).collect();
    if has == asked {
        return Ok(());
    }
    let list = |ids: &BTreeSet<&str>| ids.iter().copied().collect::<Vec<_>>().join(", ");
    Err(Error::Invalid(format!(
        "snapshot_ids are not those of group snapshot {id}: it consists of {}, asked is about {}",
        list(&has),
        list(&asked)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbb";

    fn volume(pool: &str, name: &str) -> VolumeId {
        VolumeId::make(&pool.parse().unwrap(), name)
    }

    fn group(name: &str) -> GroupId {
        GroupId::make(&A.parse().unwrap(), name)
    }

    /// The form on the disk outlives this program: changing it needs a new format number.
    #[test]
    fn the_form_on_the_disk_stays() {
        let id = group("group-1");
        let (one, two) =
            (SnapshotId::in_group(&id, &volume(A, "pvc-1")), SnapshotId::in_group(&id, &volume(A, "pvc-2")));
        let text =
            format!(r#"{{"id":"{id}","name":"group-1","created":1500000001,"snapshots":["{one}","{two}"]}}"#);
        let group: Group = serde_json::from_str(&text).unwrap();
        assert_eq!(group.snapshots, [one, two]);
        assert_eq!(group.created(), Timestamp { seconds: 1, nanos: 500_000_001 });
        assert_eq!(serde_json::to_string(&group).unwrap(), text);
    }

    #[test]
    fn a_request_names_each_volume_once_and_no_inline_one() {
        let id = |name: &str| volume(A, name).to_string();
        assert_eq!(
            sources(&[id("b"), id("a")]).unwrap(),
            [volume(A, "a"), volume(A, "b")].into_iter().collect()
        );
        let inline = format!("{A}-inline-0123456789abcdef0123456789abcdef");
        for (asked, code) in [
            (vec![], tonic::Code::InvalidArgument),
            (vec![id("a"), String::new()], tonic::Code::InvalidArgument),
            (vec![id("a"), id("a")], tonic::Code::InvalidArgument),
            (vec![id("a"), "somebody-elses".to_owned()], tonic::Code::NotFound),
            (vec![id("a"), inline], tonic::Code::FailedPrecondition),
        ] {
            assert_eq!(sources(&asked).unwrap_err().code(), code, "{asked:?}");
        }
    }

    #[test]
    fn volumes_of_several_pools_are_refused_with_where_they_lie() {
        let place = |pool: &PoolId| format!("pool {pool}");
        let all = |volumes: &[VolumeId]| volumes.iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!(pool(&all(&[volume(A, "a"), volume(A, "b")]), place).unwrap(), A.parse().unwrap());
        let refused = pool(&all(&[volume(A, "a"), volume(B, "b"), volume(A, "c")]), place).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        let text = refused.to_string();
        assert!(text.contains(&format!("2 on pool {A}, 1 on pool {B}: make a group")), "{text}");
    }

    #[test]
    fn a_repeated_request_is_for_the_same_volumes() {
        let all = |names: &[&str]| names.iter().map(|name| volume(A, name)).collect::<BTreeSet<_>>();
        for (has, asked, same) in [
            (&["a", "b"][..], &["b", "a"][..], true),
            (&["a", "b"], &["a"], false),
            (&["a"], &["a", "b"], false),
        ] {
            let got = same_sources(&group("g"), &all(has), &all(asked));
            assert_eq!(got.is_ok(), same, "{has:?} {asked:?}");
            assert!(matches!(got, Ok(()) | Err(Error::GroupConflict { .. })));
        }
    }

    #[test]
    fn a_request_about_a_group_names_its_snapshots() {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (asked, says) in [
            (&["b", "a"][..], None),
            (&["a", "b", "a"], None),
            (&[], Some("snapshot_ids is missing")),
            (&["a"], Some("it consists of a, b, asked is about a")),
            (&["a", "b", "c"], Some("asked is about a, b, c")),
        ] {
            let got = same_snapshots(&group("g"), ["a", "b"].into_iter(), &strings(asked));
            match (got, says) {
                (Ok(()), None) => {}
                (Err(error), Some(says)) => {
                    assert_eq!(error.code(), tonic::Code::InvalidArgument);
                    assert!(error.to_string().contains(says), "{error}");
                }
                (got, _) => panic!("{asked:?}: {got:?}"),
            }
        }
    }
}
