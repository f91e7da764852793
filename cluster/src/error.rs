//! The one error of this crate, sorted by what a caller can do about it.

/// A call to the Kubernetes API that did not work, or a process that must not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or could not be reached.
    #[error("cannot {action}")]
    Api {
        /// What was tried, such as `patch the finalizers of pv-1`.
        action: String,
        /// Boxed because it is large.
        source: Box<kube::Error>,
    },
    /// A `test` of a JSON patch did not hold: the object is not what the cache showed.
    #[error("cannot {action}: the object has changed meanwhile")]
    Changed {
        /// What was tried.
        action: String,
    },
    /// There is no way to reach an API server.
    #[error("cannot find out how to reach the Kubernetes API: run in a cluster or give --kubeconfig")]
    Config(#[source] Box<kube::Error>),
    /// The Lease belongs to another process now: this one must exit without another write.
    #[error("lost the lease {lease}")]
    LeaseLost {
        /// Namespace and name.
        lease: String,
    },
    /// What the leader ran ended before it was asked to.
    #[error("the work under lease {lease} ended by itself")]
    WorkEnded {
        /// Namespace and name.
        lease: String,
    },
    /// Asked to stop while waiting.
    #[error("stopped while waiting for {what}")]
    Stopped {
        /// What was waited for.
        what: &'static str,
    },
}

/// What a caller can do about an error; also a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Read again and try again.
    Conflict,
    /// An RBAC rule or an admission policy is in the way.
    Forbidden,
    /// The object itself is wrong.
    Invalid,
    /// It is not there (any more).
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// Try again later.
    Unavailable,
}

impl Category {
    /// The fixed word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Error {
    /// Adds what was tried to kube's error; made for `map_err`.
    pub fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }

    /// What to do about it.
    pub fn category(&self) -> Category {
        match self {
            Self::Api { source, .. } => category(source),
            Self::Changed { .. } => Category::Conflict,
            Self::Config(_) | Self::LeaseLost { .. } | Self::WorkEnded { .. } | Self::Stopped { .. } => {
                Category::Unavailable
            }
        }
    }

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        self.category() == Category::NotFound
    }

    /// Whether a fresh read and another try will do.
    pub fn is_conflict(&self) -> bool {
        self.category() == Category::Conflict
    }

    /// Whether the object has changed or gone since it was read.
    pub fn is_stale(&self) -> bool {
        self.is_conflict() || self.is_not_found()
    }
}

/// The category of kube's own error.
pub fn category(error: &kube::Error) -> Category {
    let kube::Error::Api(status) = error else { return Category::Unavailable };
    match status {
        // Before the conflict: both are code 409.
        status if status.is_already_exists() => Category::AlreadyExists,
        status if status.is_conflict() => Category::Conflict,
        // A resource that the server does not have is answered in plain text, without a reason.
        status if status.is_not_found() || status.code == 404 => Category::NotFound,
        status if status.is_forbidden() || status.code == 401 => Category::Forbidden,
        status if status.is_invalid() || matches!(status.code, 400 | 422) => Category::Invalid,
        _ => Category::Unavailable,
    }
}

/// An error with all its causes in one line, for a log field, an event or a condition.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = message(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = message(error);
        // Some libraries repeat the cause in their own message.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// The error's own words. kube shows a refusal of the API server with all its fields: only the server's words matter.
fn message(error: &(dyn std::error::Error + 'static)) -> String {
    // A boxed source shows itself as the box.
    let kube = error
        .downcast_ref::<kube::Error>()
        .or_else(|| error.downcast_ref::<Box<kube::Error>>().map(|e| &**e));
    let status = match kube {
        Some(kube::Error::Api(status)) => Some(&**status),
        _ => error.downcast_ref::<Box<kube::core::Status>>().map(|status| &**status),
    };
    match status {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        Some(status) => format!("{} (code {})", status.reason, status.code),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn status(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
    }

    #[test]
    fn every_answer_of_the_api_server_has_its_category() {
        for (error, expected) in [
            (status(409, "Conflict"), Category::Conflict),
            (status(409, "AlreadyExists"), Category::AlreadyExists),
            (status(404, "NotFound"), Category::NotFound),
            (status(404, "Failed to parse error data"), Category::NotFound),
            (status(403, "Forbidden"), Category::Forbidden),
            (status(401, "Unauthorized"), Category::Forbidden),
            (status(422, "Invalid"), Category::Invalid),
            (status(400, "BadRequest"), Category::Invalid),
            (status(503, "ServiceUnavailable"), Category::Unavailable),
            (status(429, "TooManyRequests"), Category::Unavailable),
            (kube::Error::TlsRequired, Category::Unavailable),
        ] {
            assert_eq!(category(&error), expected, "{error}");
        }
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let error = Error::api("get pv-1")(status(404, "NotFound"));
        assert_eq!(chain(&error), "cannot get pv-1: no");
        let silent =
            Error::api("get pv-1")(kube::Error::Api(Status::failure("", "Gone").with_code(410).boxed()));
        assert_eq!(chain(&silent), "cannot get pv-1: Gone (code 410)");
    }
}
