//! Which role a call asks for: by its first argument, or by the name that the program is called under.

use std::ffi::OsStr;
use std::path::Path;

/// Upstream's program names and the roles that stand in for them: an image swap in an existing manifest works.
const UPSTREAM: [(&str, &str); 8] = [
    ("csi-provisioner", "provisioner"),
    ("csi-attacher", "attacher"),
    ("csi-resizer", "resizer"),
    ("csi-node-driver-registrar", "registrar"),
    ("csi-external-health-monitor-controller", "health-monitor"),
    ("livenessprobe", "livenessprobe"),
    ("csi-snapshotter", "snapshotter"),
    ("snapshot-controller", "snapshot-controller"),
];

/// Arguments with the role as the second, whatever name the program was called under.
pub(crate) fn with_role(arguments: Vec<String>) -> Vec<String> {
    let name = arguments.first().and_then(|program| Path::new(program).file_name()).and_then(OsStr::to_str);
    let role = UPSTREAM.iter().find(|(upstream, _)| Some(*upstream) == name).map(|(_, role)| *role);
    match role {
        None => arguments,
        Some(role) => {
            let mut with_role = vec!["dunnage".to_owned(), role.to_owned()];
            with_role.extend(arguments.into_iter().skip(1));
            with_role
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(call: &[&str]) -> Vec<String> {
        with_role(call.iter().map(|argument| (*argument).to_owned()).collect())
    }

    #[test]
    fn a_program_called_under_an_upstream_name_takes_that_role_with_all_flags() {
        for (call, expected) in [
            (vec!["/usr/bin/dunnage", "operator", "--help"], vec!["/usr/bin/dunnage", "operator", "--help"]),
            (vec!["/csi-provisioner", "-v=5"], vec!["dunnage", "provisioner", "-v=5"]),
            (vec!["csi-attacher"], vec!["dunnage", "attacher"]),
            (vec!["/csi-resizer", "-v=5"], vec!["dunnage", "resizer", "-v=5"]),
            (vec!["/csi-node-driver-registrar", "--v=5"], vec!["dunnage", "registrar", "--v=5"]),
            (
                vec!["/livenessprobe", "--health-port=9809"],
                vec!["dunnage", "livenessprobe", "--health-port=9809"],
            ),
            (vec!["csi-snapshotter"], vec!["dunnage", "snapshotter"]),
            (vec!["/snapshot-controller", "--v=5"], vec!["dunnage", "snapshot-controller", "--v=5"]),
            (vec!["dunnage"], vec!["dunnage"]),
            (vec![], vec![]),
        ] {
            assert_eq!(role(&call), expected);
        }
    }
}
