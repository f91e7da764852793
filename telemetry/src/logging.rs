//! Structured logs on standard error, as text for people or JSON for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One readable line an event, in colour on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for Format {
    type Err = LoggingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" | "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(LoggingError::Format(other.to_owned())),
        }
    }
}

/// Log settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// Not a level or filter.
    #[error("log level {0:?}: give error, warn, info, debug or trace, or a list such as info,kube=debug")]
    Level(String),
    /// Not a format.
    #[error("log format {0:?}: give text or json")]
    Format(String),
    /// A second call in one process.
    #[error("logging is already set up")]
    Twice,
}

/// Starts logging for the whole process. `level` is a level or a list of `target=level`; empty means `info`.
pub fn init(level: &str, format: Format) -> Result<(), LoggingError> {
    let filter = filter(level)?;
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        Format::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
        Format::Json => log.json().flatten_event(true).with_span_list(false).try_init(),
    };
    started.map_err(|_| LoggingError::Twice)
}

fn filter(level: &str) -> Result<EnvFilter, LoggingError> {
    let level = if level.is_empty() { "info" } else { level };
    EnvFilter::builder().parse(level).map_err(|_| LoggingError::Level(level.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_word_or_a_list_and_nonsense_is_named() {
        for good in ["", "info", "debug", "warn,kube=debug"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        let refused = filter("kube=loud").expect_err("no such level");
        assert!(refused.to_string().contains("kube=loud"), "{refused}");
    }

    #[test]
    fn a_format_is_text_or_json() {
        assert_eq!("json".parse::<Format>().ok(), Some(Format::Json));
        assert_eq!("".parse::<Format>().ok(), Some(Format::Text));
        assert!("xml".parse::<Format>().is_err());
    }
}
