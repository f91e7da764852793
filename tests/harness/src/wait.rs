//! Waiting for a condition with a deadline, so that no test sleeps for a guessed time.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_millis(100);

/// Calls `check` until it gives a value; panics after `within` with the last error, which should say what was seen.
pub async fn eventually<T, E, F>(what: &str, within: Duration, mut check: F) -> T
where
    F: AsyncFnMut() -> Result<T, E>,
    E: std::fmt::Display,
{
    let deadline = Instant::now() + within;
    loop {
        match check().await {
            Ok(value) => return value,
            Err(error) if Instant::now() >= deadline => {
                panic!("{what}: not within {} s; at last: {error:#}", within.as_secs())
            }
            Err(_) => tokio::time::sleep(INTERVAL).await,
        }
    }
}

/// Waits until `condition` holds for the object (`None` = it is not there), and gives the object as it was then.
///
/// On failure the panic shows the whole object.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    within: Duration,
    condition: impl Fn(Option<&K>) -> bool,
) -> Option<K>
where
    K: Clone + DeserializeOwned + Serialize + Debug,
{
    eventually(&format!("{name}: {what}"), within, async || {
        let object = api.get_opt(name).await.map_err(|error| error.to_string())?;
        if condition(object.as_ref()) {
            return Ok(object);
        }
        Err(match object {
            Some(object) => serde_saphyr::to_string(&object).unwrap_or_else(|_| format!("{object:?}")),
            None => "there is no such object".to_owned(),
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_that_comes_late_is_still_taken() {
        let mut calls = 0;
        let value = eventually("the third call", Duration::from_secs(5), async || {
            calls += 1;
            if calls == 3 { Ok(calls) } else { Err("not yet") }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "the sun: not within 5 s; at last: still dark")]
    async fn the_panic_says_what_was_seen_last() {
        eventually("the sun", Duration::from_secs(5), async || Err::<(), _>("still dark")).await;
    }
}
