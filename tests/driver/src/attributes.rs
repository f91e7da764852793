//! What can be changed of a volume in use.

use std::path::Path;

use dunnage_csi::v1::ControllerModifyVolumeRequest;
use dunnage_csi::v1::controller_server::Controller as _;
use rustix::fs::getxattr;
use rustix::io::Errno;
use tonic::{Request, Status};

use crate::Lab;

/// How btrfs compresses what is written to a file, or made in a directory, if that is said of it.
pub fn compression(path: &Path) -> Option<String> {
    let mut value = [0; 16];
    match getxattr(path, "btrfs.compression", &mut value[..]) {
        Ok(length) => Some(String::from_utf8(value[..length].to_vec()).unwrap()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

impl Lab {
    /// Gives a volume other attributes.
    pub async fn modify(&self, id: &str, attributes: &[(&str, &str)]) -> Result<(), Status> {
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request = ControllerModifyVolumeRequest {
            volume_id: id.into(),
            mutable_parameters: attributes.collect(),
            ..ControllerModifyVolumeRequest::default()
        };
        self.driver().controller().controller_modify_volume(Request::new(request)).await.map(|_| ())
    }
}
