//! Which role a call asks for: by its first argument, or by the name that the program is called under.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Upstream's program names and the roles that stand in for them: an image swap in an existing manifest works.
const UPSTREAM: [(&str, &str); 3] = [
    ("csi-provisioner", "provisioner"),
    ("csi-attacher", "attacher"),
    ("csi-node-driver-registrar", "registrar"),
];

/// Arguments with the role as the second, whatever name the program was called under.
pub(crate) fn with_role(arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().and_then(|program| Path::new(program).file_name()).and_then(OsStr::to_str);
    let role = UPSTREAM.iter().find(|(upstream, _)| Some(*upstream) == name).map(|(_, role)| *role);
    match role {
        None => arguments,
        Some(role) => {
            let mut with_role = vec![OsString::from("dunnage"), OsString::from(role)];
            with_role.extend(arguments.into_iter().skip(1));
            with_role
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(call: &[&str]) -> Vec<String> {
        with_role(call.iter().map(OsString::from).collect())
            .into_iter()
            .map(|argument| argument.into_string().expect("utf-8"))
            .collect()
    }

    #[test]
    fn a_program_called_under_an_upstream_name_takes_that_role_with_all_flags() {
        for (call, expected) in [
            (vec!["/usr/bin/dunnage", "operator", "--help"], vec!["/usr/bin/dunnage", "operator", "--help"]),
            (vec!["/csi-provisioner", "-v=5"], vec!["dunnage", "provisioner", "-v=5"]),
            (vec!["csi-attacher"], vec!["dunnage", "attacher"]),
            (vec!["/csi-node-driver-registrar", "--v=5"], vec!["dunnage", "registrar", "--v=5"]),
            (vec!["dunnage"], vec!["dunnage"]),
            (vec![], vec![]),
        ] {
            assert_eq!(role(&call), expected);
        }
    }
}
