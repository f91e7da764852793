//! The one place where an error becomes a gRPC status.

use tonic::{Code, Status};

use crate::error::Error;

impl Error {
    /// The code that makes kubelet and the provisioner do the right thing next.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) | Self::Missing { .. } | Self::InGroup { .. } => Code::InvalidArgument,
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::Conflict { .. } | Self::SnapshotConflict { .. } | Self::GroupConflict { .. } => {
                Code::AlreadyExists
            }
            Self::NoSuchVolume { .. }
            | Self::NoSuchSnapshot { .. }
            | Self::NoSuchGroup { .. }
            | Self::NoSuchNode { .. } => Code::NotFound,
            Self::Busy { .. } | Self::Aborted(_) => Code::Aborted,
            Self::Full { .. } | Self::Unreachable { .. } | Self::SourceElsewhere { .. } => {
                Code::ResourceExhausted
            }
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Unavailable(_) => Code::Unavailable,
            Self::PermissionDenied(_) => Code::PermissionDenied,
            Self::Unsupported(_) => Code::Unimplemented,
            Self::Corrupt(_) => Code::DataLoss,
            Self::Host(_) | Self::Damaged { .. } | Self::Panicked => Code::Internal,
            Self::Remote(status) => status.code(),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Remote(status) => *status,
            error => Self::new(error.code(), chain(&error)),
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Remote(Box::new(status))
    }
}

/// The message of an error and of all its sources, for readers who see only one string.
pub fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_the_whole_chain() {
        let source = serde_json::from_str::<u8>("x").unwrap_err();
        let status = Status::from(Error::Damaged { id: "v".into(), source });
        assert_eq!(status.code(), Code::Internal);
        assert!(
            status.message().starts_with("the record of v is damaged: expected value"),
            "{}",
            status.message()
        );
    }

    #[test]
    fn a_remote_status_is_passed_on_as_it_is() {
        let status = Status::from(Error::from(Status::resource_exhausted("3 bytes free")));
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "3 bytes free"));
    }
}
