//! One token that ends the process in good order.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that SIGTERM or SIGINT cancels. A second signal ends the process at once.
///
/// Must be called inside the runtime.
pub fn token() -> CancellationToken {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let (mut term, mut interrupt) =
            match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
                (Ok(term), Ok(interrupt)) => (term, interrupt),
                (Err(error), _) | (_, Err(error)) => {
                    warn!(%error, "signals cannot be caught: the process will end without a clean stop");
                    return;
                }
            };
        for stopping in [true, false] {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if !stopping {
                warn!(signal = name, "second signal: ending at once");
                std::process::exit(1);
            }
            info!(signal = name, "stopping");
            cancelled.cancel();
        }
    });
    token
}
