//! What a failed call means: whether the driver may still be at it, and whether asking again can help. Pure.

use tonic::{Code, Status};

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It may have been done, or be done later: what was asked for has to be brought to its end.
    Unfinished,
    /// Nothing was done, and the same request will be refused again.
    Infeasible,
    /// Nothing was done, because the volume is in use.
    InUse,
    /// Nothing was done.
    Final,
}

/// Classes a refusal to grow a volume.
pub(super) fn of_growth(status: &Status) -> Class {
    match status.code() {
        _ if is_unfinished(status) => Class::Unfinished,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Class::Infeasible,
        Code::FailedPrecondition => Class::InUse,
        _ => Class::Final,
    }
}

/// Classes a refusal to modify a volume.
pub(super) fn of_change(status: &Status) -> Class {
    match status.code() {
        _ if is_unfinished(status) => Class::Unfinished,
        Code::InvalidArgument => Class::Infeasible,
        _ => Class::Final,
    }
}

fn is_unfinished(status: &Status) -> bool {
    let code = matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    );
    // The transport reports its own trouble (a reset stream, a broken pipe) as Unknown or Internal, with the error
    // attached, which an answer of the driver never has.
    code || std::error::Error::source(status).is_some()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::resizer) const CODES: [Code; 16] = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    #[test]
    fn every_code_has_its_class() {
        use Class::{Final, InUse, Infeasible, Unfinished};
        for code in CODES {
            let (growth, change) = match code {
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted => (Unfinished, Unfinished),
                Code::InvalidArgument => (Infeasible, Infeasible),
                Code::OutOfRange | Code::NotFound => (Infeasible, Final),
                Code::FailedPrecondition => (InUse, Final),
                _ => (Final, Final),
            };
            let status = Status::new(code, "x");
            assert_eq!((of_growth(&status), of_change(&status)), (growth, change), "{code:?}");
        }
    }

    #[test]
    fn a_broken_transport_is_never_taken_for_the_drivers_answer() {
        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert_eq!((of_growth(&broken), of_change(&broken)), (Class::Unfinished, Class::Unfinished));
    }
}
