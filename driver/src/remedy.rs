//! What an administrator can do about a file system that lacks something: one wording for the doctor and for conditions.

/// What is wrong, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remedy {
    pub(crate) problem: &'static str,
    pub(crate) remedy: &'static str,
}

/// For a file system of this kind that does not keep to the limits of projects.
pub(crate) fn project_quota(filesystem: &str) -> Remedy {
    let (problem, remedy) = match filesystem {
        "ext4" => (
            "is not mounted with project quota",
            "run tune2fs -O project,quota on the unmounted device and mount it with -o prjquota",
        ),
        "xfs" => (
            "is not mounted with project quota",
            "mount it with -o prjquota (a root file system: rootflags=prjquota on the kernel's command line)",
        ),
        _ => ("has no project quota", "put the pool on ext4 or xfs, mounted with -o prjquota"),
    };
    Remedy { problem, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_has_its_remedy() {
        for (filesystem, problem, remedy) in [
            ("ext4", "not mounted", "tune2fs"),
            ("xfs", "not mounted", "rootflags"),
            ("btrfs", "has no", "put the pool on ext4 or xfs"),
        ] {
            let told = project_quota(filesystem);
            assert!(told.problem.contains(problem) && told.remedy.contains(remedy), "{told:?}");
        }
    }
}
