//! Which CSIStorageCapacity objects there should be, and what becomes of those there are.

use std::collections::{BTreeMap, BTreeSet};

use dunnage_csi::v1::GetCapacityResponse;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::provisioner::claim::is_delayed;
use crate::provisioner::topology::{Node, Segment, segment_of};
use crate::quantity;

pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
pub const MANAGED_BY_LABEL: &str = "csi.storage.k8s.io/managed-by";
const MANAGED_BY: &str = "external-provisioner";

/// What one object speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    pub class: String,
    pub segment: Segment,
}

impl Item {
    /// The item as one text, for an index.
    pub fn key(&self) -> String {
        let pairs = self.segment.iter().map(|(key, value)| format!("{key}={value}"));
        [self.class.clone()].into_iter().chain(pairs).collect::<Vec<_>>().join("\n")
    }
}

/// Whether room in these places is room for the item; no place is everywhere.
pub fn concerns(item: &Item, places: &[Segment]) -> bool {
    let within =
        |inner: &Segment, outer: &Segment| outer.iter().all(|(key, value)| inner.get(key) == Some(value));
    places.is_empty()
        || places.iter().any(|place| within(&item.segment, place) || within(place, &item.segment))
}

/// Whose objects these are.
#[derive(Clone, Debug)]
pub struct Owner {
    pub driver: String,
    pub namespace: String,
    pub reference: Option<OwnerReference>,
}

/// The segments where the driver runs; a driver without topology has one that is everywhere.
pub fn segments(topology: bool, nodes: &[Node]) -> BTreeSet<Segment> {
    if !topology {
        return BTreeSet::from([Segment::new()]);
    }
    nodes.iter().filter_map(|node| segment_of("", node).ok()).map(|(_, segment)| segment).collect()
}

/// Every segment with every class that the scheduler asks about.
pub fn wanted<'a>(
    driver: &str,
    immediate_too: bool,
    segments: &BTreeSet<Segment>,
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> BTreeSet<Item> {
    let mut items = BTreeSet::new();
    for class in classes {
        if class.provisioner == driver && (immediate_too || is_delayed(class)) {
            let name = class.metadata.name.clone().unwrap_or_default();
            let item = |segment: &Segment| Item { class: name.clone(), segment: segment.clone() };
            items.extend(segments.iter().map(item));
        }
    }
    items
}

/// What an object speaks of, if it is one of the owner's.
pub fn item_of(object: &CSIStorageCapacity, owner: &Owner) -> Option<Item> {
    let labels = object.metadata.labels.as_ref()?;
    let labelled = labels.get(DRIVER_LABEL) == Some(&owner.driver)
        && labels.get(MANAGED_BY_LABEL).is_some_and(|by| by == MANAGED_BY);
    let references = object.metadata.owner_references.as_deref().unwrap_or_default();
    let held = match &owner.reference {
        Some(reference) => references.iter().any(|found| found.uid == reference.uid),
        None => references.is_empty(),
    };
    if !labelled || !held {
        return None;
    }
    let segment = object.node_topology.as_ref().and_then(|selector| selector.match_labels.clone());
    Some(Item { class: object.storage_class_name.clone(), segment: segment.unwrap_or_default() })
}

/// The objects that must go: not wanted any more, or a second one for the same item.
pub fn surplus<'a>(
    objects: impl IntoIterator<Item = &'a CSIStorageCapacity>,
    wanted: &BTreeSet<Item>,
    owner: &Owner,
) -> BTreeSet<String> {
    let mut kept: BTreeMap<Item, &str> = BTreeMap::new();
    let mut surplus = BTreeSet::new();
    for object in objects {
        let (Some(item), Some(name)) = (item_of(object, owner), object.metadata.name.as_deref()) else {
            continue;
        };
        if !wanted.contains(&item) {
            surplus.insert(name.to_owned());
        } else if let Some(other) = kept.get(&item).copied() {
            // The smaller name stays, whatever the order they are looked at in.
            let (keep, drop) = if name < other { (name, other) } else { (other, name) };
            surplus.insert(drop.to_owned());
            kept.insert(item, keep);
        } else {
            kept.insert(item, name);
        }
    }
    surplus
}

/// The object for an item and the driver's answer. Its name follows from what it speaks of, so that no second one
/// can be made.
pub fn object(item: &Item, answer: &GetCapacityResponse, owner: &Owner) -> CSIStorageCapacity {
    let labels = BTreeMap::from([
        (DRIVER_LABEL.to_owned(), owner.driver.clone()),
        (MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned()),
    ]);
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name(item, owner)),
            namespace: Some(owner.namespace.clone()),
            labels: Some(labels),
            owner_references: owner.reference.clone().map(|reference| vec![reference]),
            ..ObjectMeta::default()
        },
        storage_class_name: item.class.clone(),
        node_topology: Some(LabelSelector {
            match_labels: Some(item.segment.clone()),
            ..LabelSelector::default()
        }),
        capacity: Some(quantity::format(answer.available_capacity.max(0))),
        maximum_volume_size: answer.maximum_volume_size.map(quantity::format),
    }
}

/// The labels that select this driver's objects.
pub fn selector(driver: &str) -> String {
    format!("{DRIVER_LABEL}={driver},{MANAGED_BY_LABEL}={MANAGED_BY}")
}

/// Whether an object says something else than it should.
pub fn differs(found: &CSIStorageCapacity, wanted: &CSIStorageCapacity) -> bool {
    let bytes = |object: &CSIStorageCapacity| {
        let parse = |value: &Option<_>| value.as_ref().and_then(quantity::parse);
        (parse(&object.capacity), parse(&object.maximum_volume_size))
    };
    bytes(found) != bytes(wanted)
}

/// FNV-1a with 64 bits over everything that tells two objects apart: the same in every build.
fn name(item: &Item, owner: &Owner) -> String {
    let uid = owner.reference.as_ref().map_or("", |reference| reference.uid.as_str());
    let segment = item.segment.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    let texts = [owner.driver.as_str(), uid, item.class.as_str()].into_iter().chain(segment);
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("csisc-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provisioner::topology::Driver;

    fn owner(uid: Option<&str>) -> Owner {
        let reference = uid.map(|uid| OwnerReference { uid: uid.into(), ..OwnerReference::default() });
        Owner { driver: "d".into(), namespace: "ns".into(), reference }
    }

    fn item(class: &str, zone: &str) -> Item {
        Item { class: class.into(), segment: [("zone".to_owned(), zone.to_owned())].into() }
    }

    fn answer(bytes: i64) -> GetCapacityResponse {
        GetCapacityResponse { available_capacity: bytes, ..GetCapacityResponse::default() }
    }

    fn class(name: &str, delayed: bool) -> StorageClass {
        StorageClass {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            provisioner: "d".into(),
            volume_binding_mode: delayed.then(|| "WaitForFirstConsumer".into()),
            ..StorageClass::default()
        }
    }

    #[test]
    fn every_place_is_combined_with_every_delayed_class_of_the_driver() {
        let node = |zone: Option<&str>| Node {
            labels: zone.map(|zone| [("zone".to_owned(), zone.to_owned())].into()),
            driver: Driver::Registered(vec!["zone".into()]),
        };
        let nodes = [node(Some("a")), node(Some("a")), node(Some("b")), node(None)];
        let places = segments(true, &nodes);
        assert_eq!(places.len(), 2);
        let other = StorageClass { provisioner: "x".into(), ..class("other", true) };
        let classes = [class("late", true), class("now", false), other];
        assert_eq!(wanted("d", false, &places, &classes), [item("late", "a"), item("late", "b")].into());
        assert_eq!(wanted("d", true, &places, &classes).len(), 4);
        assert_eq!(segments(false, &nodes), [Segment::new()].into());
    }

    #[test]
    fn an_object_is_recognised_by_labels_and_owner() {
        let made = object(&item("late", "a"), &answer(1 << 30), &owner(Some("1")));
        assert_eq!(item_of(&made, &owner(Some("1"))), Some(item("late", "a")));
        assert_eq!(item_of(&made, &owner(Some("2"))), None);
        assert_eq!(item_of(&made, &owner(None)), None);
        let other = Owner { driver: "x".into(), ..owner(Some("1")) };
        assert_eq!(item_of(&made, &other), None);
    }

    #[test]
    fn the_same_item_gets_the_same_name_and_no_other_gets_it() {
        let name = |item: Item, uid| object(&item, &answer(0), &owner(Some(uid))).metadata.name;
        assert_eq!(name(item("late", "a"), "1"), name(item("late", "a"), "1"));
        for (other, uid) in [(item("late", "b"), "1"), (item("later", "a"), "1"), (item("late", "a"), "2")] {
            assert_ne!(name(item("late", "a"), "1"), name(other, uid));
        }
    }

    #[test]
    fn duplicates_and_unwanted_objects_are_surplus() {
        let owner = owner(None);
        let kept = object(&item("late", "a"), &answer(1), &owner);
        let gone = object(&item("late", "z"), &answer(1), &owner);
        let mut double = kept.clone();
        double.metadata.name = Some("csisc-zzzzz".into());
        let mut foreign = gone.clone();
        foreign.metadata.labels = None;
        let objects = [&double, &kept, &gone, &foreign];
        let surplus = surplus(objects, &[item("late", "a")].into(), &owner);
        let names = [double.metadata.name.expect("named"), gone.metadata.name.expect("named")];
        assert_eq!(surplus, names.into());
    }

    #[test]
    fn an_item_is_concerned_by_its_own_place_or_by_all() {
        let place = |pairs: &[(&str, &str)]| -> Segment {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        for (places, expected) in [
            (vec![], true),
            (vec![place(&[("zone", "a")])], true),
            (vec![place(&[("zone", "b")])], false),
            (vec![place(&[("zone", "b")]), place(&[("zone", "a"), ("rack", "1")])], true),
            (vec![place(&[])], true),
        ] {
            assert_eq!(concerns(&item("late", "a"), &places), expected, "{places:?}");
        }
    }

    #[test]
    fn only_another_size_is_a_difference() {
        let owner = owner(None);
        let object = |bytes| object(&item("late", "a"), &answer(bytes), &owner);
        let mut spelled = object(1 << 30);
        spelled.capacity = Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity("1024Mi".into()));
        assert!(!differs(&spelled, &object(1 << 30)));
        assert!(differs(&spelled, &object(1 << 29)));
        assert_eq!(object(-5).capacity.map(|capacity| capacity.0), Some("0".into()));
    }
}
