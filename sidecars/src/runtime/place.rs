//! What a process learns of its surroundings, and leaves there.

use std::path::Path;

use tokio::io::AsyncWriteExt as _;

/// Who this process is among its replicas: the pod's name, which also is the host name inside of it.
pub fn identity() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    pod.or_else(host).map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// The namespace to work in: the one asked for, else the pod's.
pub fn namespace(asked: &str) -> String {
    let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount/namespace");
    let found = [
        Some(asked.to_owned()),
        std::env::var("POD_NAMESPACE").ok(),
        std::fs::read_to_string(account).ok().map(|text| text.trim().to_owned()),
    ];
    found.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
}

/// Leaves a line where kubelet shows it as the reason of the container's end. Outside a pod there is no such file.
pub(super) async fn last_words(line: &str) {
    let opened = tokio::fs::OpenOptions::new().append(true).open("/dev/termination-log").await;
    if let Ok(mut file) = opened {
        // Nothing is lost but a convenience.
        let _ = file.write_all(format!("{line}\n").as_bytes()).await;
        let _ = file.flush().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_asked_for_comes_first() {
        assert_eq!(namespace("storage"), "storage");
        assert!(!namespace("").is_empty());
    }

    #[test]
    fn a_process_always_has_an_identity_of_one_line() {
        let identity = identity();
        assert!(!identity.is_empty() && !identity.contains('\n'), "{identity:?}");
    }
}
