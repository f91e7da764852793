//! Command lines in upstream's spelling, rewritten into what the parser takes. Pure.

use std::collections::BTreeMap;

use clap::Command;

use super::values::boolean;

/// Logging flags of upstream that are accepted and mean nothing here, and whether they take a value.
const LOGGING: [(&str, bool); 16] = [
    ("logtostderr", false),
    ("alsologtostderr", false),
    ("add_dir_header", false),
    ("one_output", false),
    ("skip_headers", false),
    ("skip_log_headers", false),
    ("stderrthreshold", true),
    ("vmodule", true),
    ("log_backtrace_at", true),
    ("log_dir", true),
    ("log_file", true),
    ("log_file_max_size", true),
    ("log-flush-frequency", true),
    ("logging-format", true),
    ("log-json-split-stream", false),
    ("log-json-info-buffer-size", true),
];

/// Flags that upstream has or had and that have no meaning here: said, then ignored.
const OBSOLETE: [(&str, bool); 12] = [
    ("automaxprocs", false),
    ("enable-pprof", false),
    ("enable-leader-election", false),
    ("leader-election-type", true),
    ("leader-election-identity", true),
    ("connection-timeout", true),
    ("provisioner", true),
    ("master", true),
    ("max-grpc-log-length", true),
    ("dummy", false),
    ("driver-requires-attachment", false),
    ("log-text-split-stream", false),
];

/// A command line that the parser takes, and what is to be said about the original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Normalised {
    /// The arguments after the role's name.
    pub args: Vec<String>,
    /// One line each.
    pub warnings: Vec<String>,
    /// Upstream's `-v`: 4 and more shows decisions, 5 and more calls and answers.
    pub verbosity: Option<u8>,
}

/// How a flag is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Boolean,
    Value,
    /// Like `--help`: alone, or not at all.
    Action,
}

/// Rewrites `args` (without program and role name) for `command`: one dash becomes two, a value of its own word is
/// joined, of a repeated flag the last counts, and flags that mean nothing here are taken out. What it does not know
/// it leaves for the parser to refuse.
pub fn normalise(command: &Command, args: impl IntoIterator<Item = String>) -> Normalised {
    let known = shapes(command);
    let mut out = Normalised::default();
    let mut flags: Vec<(String, String)> = Vec::new();
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.args.push(arg);
            out.args.extend(args);
            break;
        }
        let Some((name, mut value)) = split(&arg) else {
            out.args.push(arg);
            continue;
        };
        let unused = ignored(&name).filter(|_| !known.contains_key(&name));
        let shape = match (known.get(&name), unused) {
            (Some(shape), _) => *shape,
            (None, Some((shape, _))) => shape,
            (None, None) if name == "v" => Shape::Value,
            (None, None) => {
                out.args.push(arg);
                continue;
            }
        };
        if shape == Shape::Value && value.is_none() {
            value = args.next();
        }
        if let Some((_, obsolete)) = unused {
            if obsolete {
                out.warnings.push(format!("--{name} has no effect"));
            }
        } else if name == "v" && !known.contains_key("v") {
            out.verbosity = value.as_deref().and_then(|level| level.parse().ok());
        } else {
            record(&mut flags, name, value, shape);
        }
    }
    let flags = flags.into_iter().map(|(name, value)| format!("--{name}{value}"));
    out.args = flags.chain(out.args).collect();
    out
}

/// The name and value of a flag with one or two dashes; none for anything else.
fn split(arg: &str) -> Option<(String, Option<String>)> {
    let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?;
    // `-v5` is how one of upstream's two parsers takes it.
    if let Some(level) = body.strip_prefix('v')
        && !level.is_empty()
        && level.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Some(("v".to_owned(), Some(level.to_owned())));
    }
    let (name, value) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (body, None),
    };
    (!name.is_empty() && !name.starts_with('-')).then(|| (name.to_owned(), value))
}

/// Adds a flag in the parser's form; a later one takes the place of an earlier one, but gates are joined.
fn record(flags: &mut Vec<(String, String)>, name: String, value: Option<String>, shape: Shape) {
    let truth = value.as_deref().and_then(boolean);
    let text = match (shape, truth, value) {
        (Shape::Boolean, Some(truth), _) => format!("={truth}"),
        (Shape::Action, Some(false), _) => return,
        (Shape::Action, Some(true), _) | (_, _, None) => String::new(),
        (_, _, Some(value)) => format!("={value}"),
    };
    match flags.iter_mut().find(|(earlier, _)| *earlier == name) {
        Some((_, earlier)) if name == "feature-gates" && !earlier.is_empty() => {
            let more = text.strip_prefix('=').unwrap_or_default();
            *earlier = format!("{earlier},{more}");
        }
        Some((_, earlier)) => *earlier = text,
        None => flags.push((name, text)),
    }
}

/// The flags that `command` takes.
fn shapes(command: &Command) -> BTreeMap<String, Shape> {
    let mut shapes =
        BTreeMap::from([("help".to_owned(), Shape::Action), ("version".to_owned(), Shape::Action)]);
    for arg in command.get_arguments() {
        let Some(name) = arg.get_long() else { continue };
        let shape = if !arg.get_action().takes_values() {
            Shape::Action
        } else if arg.get_num_args().is_some_and(|range| range.min_values() == 0) {
            Shape::Boolean
        } else {
            Shape::Value
        };
        shapes.insert(name.to_owned(), shape);
    }
    shapes
}

/// The shape of a flag that means nothing here, and whether people should know that.
fn ignored(name: &str) -> Option<(Shape, bool)> {
    let find = |list: &[(&str, bool)], told| {
        let (_, takes_value) = list.iter().find(|(flag, _)| *flag == name)?;
        Some((if *takes_value { Shape::Value } else { Shape::Boolean }, told))
    };
    find(&LOGGING, false).or_else(|| find(&OBSOLETE, true))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn command() -> Command {
        let boolean = |name| {
            let arg = Arg::new(name).long(name).num_args(0..=1).require_equals(true);
            arg.default_missing_value("true").action(ArgAction::Set).value_parser(clap::value_parser!(bool))
        };
        let value = |name| Arg::new(name).long(name);
        Command::new("role").args([
            boolean("leader-election"),
            value("csi-address"),
            value("timeout"),
            value("feature-gates"),
        ])
    }

    fn rewrite(args: &[&str]) -> Normalised {
        normalise(&command(), args.iter().map(ToString::to_string))
    }

    #[test]
    fn every_spelling_of_upstream_becomes_one() {
        for (args, expected) in [
            (&["-csi-address=/x"][..], &["--csi-address=/x"][..]),
            (&["--csi-address", "/x"], &["--csi-address=/x"]),
            (&["-csi-address", "/x", "-leader-election"], &["--csi-address=/x", "--leader-election"]),
            (&["--leader-election=TRUE"], &["--leader-election=true"]),
            (&["-leader-election=0"], &["--leader-election=false"]),
            (&["--leader-election=maybe"], &["--leader-election=maybe"]),
            (&["--timeout=1s", "-timeout=2s"], &["--timeout=2s"]),
            (&["--timeout=", "--csi-address=a=b"], &["--timeout=", "--csi-address=a=b"]),
            (&["--timeout", "-1s"], &["--timeout=-1s"]),
            (&["--feature-gates=A=true", "--feature-gates", "B=false"], &["--feature-gates=A=true,B=false"]),
            (&["-version"], &["--version"]),
            (&["--version=true"], &["--version"]),
            (&["--version=false"], &[]),
            (&["--help"], &["--help"]),
        ] {
            assert_eq!(rewrite(args).args, expected, "{args:?}");
        }
    }

    #[test]
    fn logging_flags_are_taken_out_and_the_verbosity_is_kept() {
        for (args, verbosity) in [
            (&["-v=5"][..], Some(5)),
            (&["--v=5"], Some(5)),
            (&["-v", "5"], Some(5)),
            (&["-v5"], Some(5)),
            (&["--v=x"], None),
            (&["--logtostderr", "--stderrthreshold", "INFO", "-vmodule=a=1", "--logging-format=json"], None),
            (&["--logtostderr=false", "--log-flush-frequency=5s", "-add_dir_header"], None),
        ] {
            let expected = Normalised { verbosity, ..Normalised::default() };
            assert_eq!(rewrite(args), expected, "{args:?}");
        }
    }

    #[test]
    fn obsolete_flags_are_taken_out_and_said() {
        let found =
            rewrite(&["--provisioner", "name", "--automaxprocs", "--timeout=1s", "-enable-pprof=true"]);
        assert_eq!(found.args, ["--timeout=1s"]);
        let expected =
            ["--provisioner", "--automaxprocs", "--enable-pprof"].map(|flag| format!("{flag} has no effect"));
        assert_eq!(found.warnings, expected);
    }

    #[test]
    fn what_is_not_known_is_left_for_the_parser_to_refuse() {
        for args in [&["--unknown=1"][..], &["-x"], &["word"], &["-"], &["--", "-timeout=1s"]] {
            let found = rewrite(args);
            assert_eq!(
                (found.args, found.warnings),
                (args.iter().map(ToString::to_string).collect(), vec![])
            );
        }
        let refused = command().try_get_matches_from(
            ["role".to_owned()].into_iter().chain(rewrite(&["-timeout=1s", "-unknown"]).args),
        );
        assert_eq!(refused.expect_err("unknown").exit_code(), 2);
    }

    #[test]
    fn a_flag_that_the_role_has_is_never_taken_out() {
        let command = command().arg(Arg::new("master").long("master"));
        let found = normalise(&command, ["-master=x".to_owned()]);
        assert_eq!((found.args, found.warnings), (vec!["--master=x".to_owned()], vec![]));
    }
}
