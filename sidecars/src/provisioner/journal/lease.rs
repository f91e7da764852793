//! Reading and writing the Lease that holds the journal.

use std::collections::BTreeMap;

use dunnage_cluster::Error;
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

use super::state::{self, Entry, Read, State};

/// The Lease as last read or written: the base of the next write.
pub(super) struct Lease {
    api: Api<Object>,
    identity: String,
    object: Object,
}

impl Lease {
    /// Reads or makes the Lease and marks it as this process's.
    pub(super) async fn open(
        client: kube::Client,
        namespace: &str,
        name: &str,
        identity: &str,
    ) -> Result<(Self, Read), Error> {
        let api: Api<Object> = Api::namespaced(client, namespace);
        let found = api.get_opt(name).await.map_err(Error::api(format!("get lease {namespace}/{name}")))?;
        let object = if let Some(object) = found {
            object
        } else {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let made = api.create(&PostParams::default(), &Object { metadata, spec: None }).await;
            made.map_err(Error::api(format!("create lease {namespace}/{name}")))?
        };
        let read = state::read(annotations(&object));
        let mut lease = Self { api, identity: identity.to_owned(), object };
        lease.write(&State::from(&read)).await?;
        Ok((lease, read))
    }

    pub(super) async fn write(&mut self, state: &State) -> Result<(), Error> {
        let mut object = self.object.clone();
        object.metadata.annotations = Some(state.annotations(annotations(&self.object)));
        let spec = object.spec.take().unwrap_or_default();
        object.spec = Some(LeaseSpec { holder_identity: Some(self.identity.clone()), ..spec });
        let name = object.metadata.name.clone().unwrap_or_default();
        let written = self.api.replace(&name, &PostParams::default(), &object).await;
        self.object = written.map_err(Error::api(format!("write lease {name}")))?;
        Ok(())
    }

    /// Makes the Lease that somebody has deleted anew.
    pub(super) async fn create(&mut self, state: &State) -> Result<(), Error> {
        let name = self.object.metadata.name.clone().unwrap_or_default();
        let spec = LeaseSpec { holder_identity: Some(self.identity.clone()), ..LeaseSpec::default() };
        let metadata = ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(state.annotations(&BTreeMap::new())),
            ..ObjectMeta::default()
        };
        let made = self.api.create(&PostParams::default(), &Object { metadata, spec: Some(spec) }).await;
        self.object = made.map_err(Error::api(format!("create lease {name}")))?;
        Ok(())
    }

    /// Reads the Lease after somebody else wrote it; returns the entries that this process did not know.
    pub(super) async fn reread(&mut self) -> Result<BTreeMap<String, Entry>, Error> {
        let name = self.object.metadata.name.clone().unwrap_or_default();
        let fresh = self.api.get(&name).await.map_err(Error::api(format!("get lease {name}")))?;
        let known = state::read(annotations(&self.object)).entries;
        let mut theirs = state::read(annotations(&fresh)).entries;
        theirs.retain(|uid, _| !known.contains_key(uid));
        self.object = fresh;
        Ok(theirs)
    }
}

fn annotations(object: &Object) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    object.metadata.annotations.as_ref().unwrap_or(&NONE)
}
