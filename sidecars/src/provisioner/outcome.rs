//! What a failed CreateVolume means: whether the driver may still be at it, and who is to act next.

use tonic::{Code, Status};

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The volume may exist or come to be: the call is repeated until its end is known.
    Unfinished,
    /// As before, and the driver says that it is still at it.
    Busy,
    /// Nothing was made.
    Final,
    /// Nothing was made, and the same request will be refused again.
    Infeasible,
    /// Nothing was made, for want of room.
    NoRoom,
}

/// Classes an answer of the driver.
pub fn of(status: &Status) -> Failure {
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable => Failure::Unfinished,
        Code::Aborted => Failure::Busy,
        Code::InvalidArgument => Failure::Infeasible,
        Code::ResourceExhausted if is_transports(status) => Failure::Unfinished,
        Code::ResourceExhausted => Failure::NoRoom,
        // The transport reports its own trouble (a reset stream, a broken pipe) as Unknown or Internal,
        // with the error attached, which an answer of the driver never has.
        _ if std::error::Error::source(status).is_some() => Failure::Unfinished,
        _ => Failure::Final,
    }
}

/// A message that was too large never reached the driver's logic, or its answer never reached us.
fn is_transports(status: &Status) -> bool {
    let message = status.message();
    message.contains("message larger than max") || message.contains("decoded message length too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_few_codes_leave_it_open_whether_a_volume_was_made() {
        for (code, expected) in [
            (Code::Cancelled, Failure::Unfinished),
            (Code::DeadlineExceeded, Failure::Unfinished),
            (Code::Unavailable, Failure::Unfinished),
            (Code::Aborted, Failure::Busy),
            (Code::InvalidArgument, Failure::Infeasible),
            (Code::ResourceExhausted, Failure::NoRoom),
            (Code::Unknown, Failure::Final),
            (Code::Internal, Failure::Final),
            (Code::NotFound, Failure::Final),
            (Code::AlreadyExists, Failure::Final),
            (Code::OutOfRange, Failure::Final),
            (Code::FailedPrecondition, Failure::Final),
            (Code::Unimplemented, Failure::Final),
            (Code::PermissionDenied, Failure::Final),
            (Code::Unauthenticated, Failure::Final),
            (Code::DataLoss, Failure::Final),
        ] {
            assert_eq!(of(&Status::new(code, "x")), expected, "{code:?}");
        }
    }

    #[test]
    fn a_broken_transport_is_never_taken_for_the_drivers_answer() {
        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert_eq!(of(&broken), Failure::Unfinished);
        let large = Status::resource_exhausted("grpc: received message larger than max (5 vs. 4)");
        assert_eq!(of(&large), Failure::Unfinished);
    }
}
