//! Events on objects: what users see in `kubectl describe`, kept few.

mod correlate;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::Error;
use crate::error::chain;
use correlate::{Correlator, Step};

/// Events waiting to be written; more are dropped.
const WAITING: usize = 1000;
/// Longest message that the API server takes.
const LONGEST: usize = 1024;

/// How an event is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// For information.
    Normal,
    /// Somebody may have to do something.
    Warning,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One thing to tell about one object.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    object: ObjectReference,
    kind: Kind,
    reason: &'static str,
    message: String,
}

/// Writes events in the background: telling never waits and never fails. Clones share the counts.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Note>,
}

impl Recorder {
    /// A recorder that writes as `component` on `instance` until `stop` is cancelled.
    pub fn start(client: Client, component: &str, instance: &str, stop: &CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let source: Arc<EventSource> =
            EventSource { component: Some(component.to_owned()), host: Some(instance.to_owned()) }.into();
        tokio::spawn(write(client, source, receiver, stop.clone()));
        Self { sender }
    }

    /// Tells about `object`. `reason` is one word that tools rely on.
    pub fn tell<K>(&self, object: &K, kind: Kind, reason: &'static str, message: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.tell_of(object.object_ref(&()), kind, reason, message);
    }

    /// As [`Recorder::tell`], by reference.
    pub fn tell_of(
        &self,
        object: ObjectReference,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let message = shorten(message.into());
        if self.sender.try_send(Note { object, kind, reason, message }).is_err() {
            debug!(reason, "too many events are waiting, dropped one");
        }
    }
}

/// Cuts at a character's border.
fn shorten(mut message: String) -> String {
    if message.len() > LONGEST {
        let mut end = LONGEST - "...".len();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
    message
}

async fn write(
    client: Client,
    source: Arc<EventSource>,
    mut receiver: mpsc::Receiver<Note>,
    stop: CancellationToken,
) {
    let mut correlator = Correlator::default();
    loop {
        let note = tokio::select! {
            // What has been told before the stop is still written; the process ends soon after.
            () = stop.cancelled() => match receiver.try_recv() {
                Ok(note) => note,
                Err(_) => return,
            },
            note = receiver.recv() => match note {
                Some(note) => note,
                None => return,
            },
        };
        if let Err(error) = send(&client, &source, &note, &mut correlator).await {
            warn!(
                reason = note.reason,
                object = note.object.name,
                error = chain(&error),
                "cannot write an event"
            );
        }
    }
}

async fn send(
    client: &Client,
    source: &EventSource,
    note: &Note,
    correlator: &mut Correlator,
) -> Result<(), Error> {
    let namespace =
        note.object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match correlator.decide(note, Instant::now()) {
        Step::Drop => Ok(()),
        Step::Create { message } => {
            let event = event(note, &message, source, &namespace, Timestamp::now());
            let made =
                api.create(&PostParams::default(), &event).await.map_err(Error::api("create an event"))?;
            correlator.created(note, made.metadata.name.unwrap_or_default());
            Ok(())
        }
        Step::Repeat { event, count, message } => {
            let now = Time(Timestamp::now());
            let patch = json!({"count": count, "lastTimestamp": now, "message": message});
            match api.patch(&event, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => Ok(()),
                Err(error) => {
                    // Events live an hour; the next one is written anew.
                    correlator.forget(note);
                    Err(Error::api(format!("update event {event}"))(error))
                }
            }
        }
    }
}

fn event(note: &Note, message: &str, source: &EventSource, namespace: &str, now: Timestamp) -> Event {
    let name = note.object.name.as_deref().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            // As others name them: the object's name and a number that makes it unique.
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: note.object.clone(),
        type_: Some(note.kind.as_str().to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(message.to_owned()),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_at_a_characters_border() {
        let short = "x".repeat(LONGEST);
        assert_eq!(shorten(short.clone()), short);
        let cut = shorten("ä".repeat(LONGEST));
        assert!(cut.len() <= LONGEST && cut.ends_with("ä..."), "{} bytes", cut.len());
    }

    #[test]
    fn an_event_says_who_tells_what_about_which_object() {
        let object = ObjectReference { name: Some("pvc-1".to_owned()), ..ObjectReference::default() };
        let note =
            Note { object, kind: Kind::Warning, reason: "ProvisioningFailed", message: "no room".to_owned() };
        let source = EventSource { component: Some("driver".to_owned()), host: Some("pod-0".to_owned()) };
        let now = Timestamp::from_nanosecond(0x1f).expect("in range");
        let event = event(&note, "no room", &source, "ns", now);
        assert_eq!(event.metadata.name.as_deref(), Some("pvc-1.1f"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("ProvisioningFailed"));
        assert_eq!((event.reporting_component, event.count), (source.component, Some(1)));
    }
}
