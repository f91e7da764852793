//! Small images for tests, from files of this machine.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::oci::{self, Image};
use crate::programs;
use crate::tree::Tree;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Name and tag, as in localhost/busybox:1
    #[arg(long)]
    name: String,
    /// The archive to write
    #[arg(long)]
    output: PathBuf,
    /// A file of this machine: `SOURCE:PATH` or `SOURCE:PATH:MODE`
    #[arg(long = "file", value_name = "SOURCE:PATH[:MODE]")]
    files: Vec<String>,
    /// A program of this machine with the libraries that it needs
    #[arg(long = "program", value_name = "SOURCE")]
    programs: Vec<PathBuf>,
    /// A symbolic link, TARGET:PATH
    #[arg(long = "link", value_name = "TARGET:PATH")]
    links: Vec<String>,
    /// A file with this text; \n stands for a new line
    #[arg(long = "text", value_name = "PATH=TEXT")]
    texts: Vec<String>,
    /// An empty folder: `PATH` or `PATH:MODE`
    #[arg(long = "dir", value_name = "PATH[:MODE]")]
    directories: Vec<String>,
    /// User and group to run as
    #[arg(long, default_value = "")]
    user: String,
    /// Default arguments, in place of an entrypoint
    #[arg(long = "cmd")]
    command: Vec<String>,
    /// What runs when the image starts
    #[arg(last = true)]
    entrypoint: Vec<String>,
}

pub(crate) fn make(arguments: &Arguments) -> anyhow::Result<()> {
    let mut tree = Tree::default();
    for directory in &arguments.directories {
        let (path, mode) = directory.split_once(':').unwrap_or((directory, "755"));
        tree.directory(path, octal(mode)?);
    }
    for file in &arguments.files {
        let mut parts = file.splitn(3, ':');
        let (source, path) =
            parts.next().zip(parts.next()).with_context(|| format!("--file {file}: no path in the image"))?;
        tree.copy(path, source.as_ref(), parts.next().map(octal).transpose()?)?;
    }
    for program in &arguments.programs {
        tree.copy(&program.display().to_string(), program, Some(0o755))?;
        for library in programs::libraries(program)? {
            tree.copy(&library.display().to_string(), &library, Some(0o755))?;
        }
    }
    for link in &arguments.links {
        let (target, path) = link.split_once(':').with_context(|| format!("--link {link}: no path"))?;
        tree.link(path, target);
    }
    for text in &arguments.texts {
        let (path, text) = text.split_once('=').with_context(|| format!("--text {text}: no text"))?;
        tree.file(path, text.replace("\\n", "\n").into_bytes(), 0o644);
    }
    let image = Image {
        name: arguments.name.clone(),
        user: arguments.user.clone(),
        entrypoint: arguments.entrypoint.clone(),
        command: arguments.command.clone(),
        labels: serde_json::json!({}),
    };
    oci::write(&image, &tree, &arguments.output)?;
    println!("{} -> {}", image.name, arguments.output.display());
    Ok(())
}

fn octal(mode: &str) -> anyhow::Result<u32> {
    u32::from_str_radix(mode, 8).with_context(|| format!("mode {mode} is not an octal number"))
}
