//! Generates the protocol code from the `.proto` files without `protoc`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn Error>> {
    let protos = ["proto/csi.proto", "proto/pluginregistration.proto", "proto/agent.proto"];
    for proto in protos {
        println!("cargo::rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(protos, ["proto"])?;
    let secret = messages_with_secrets(&descriptors);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("secret_debug.rs"), debug_impls(&secret))?;
    tonic_prost_build::configure()
        .skip_debug(secret.iter().map(|message| format!(".csi.v1.{}", message.name)))
        .compile_fds(descriptors)?;
    Ok(())
}

/// A top-level message of `csi.v1` with a field `secrets`, which csi.proto marks `csi_secret`.
struct SecretMessage {
    name: String,
    fields: Vec<String>,
}

fn messages_with_secrets(descriptors: &FileDescriptorSet) -> Vec<SecretMessage> {
    let mut found = Vec::new();
    for file in descriptors.file.iter().filter(|file| file.package() == "csi.v1") {
        for message in &file.message_type {
            let fields: Vec<String> = message.field.iter().map(|field| field.name().to_owned()).collect();
            if fields.iter().any(|field| field == "secrets") {
                found.push(SecretMessage { name: message.name().to_owned(), fields });
            }
        }
    }
    found
}

/// `Debug` that shows which secrets a request carries, never what they are.
fn debug_impls(messages: &[SecretMessage]) -> String {
    let mut code = String::new();
    for SecretMessage { name, fields } in messages {
        let _ = writeln!(code, "impl std::fmt::Debug for {name} {{");
        let _ = writeln!(code, "    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{");
        let _ = writeln!(code, "        f.debug_struct({name:?})");
        for field in fields {
            let value = if field == "secrets" { "&crate::secret::Stripped(&self.secrets)" } else { "" };
            let value = if value.is_empty() { format!("&self.{field}") } else { value.to_owned() };
            let _ = writeln!(code, "            .field({field:?}, {value})");
        }
        let _ = writeln!(code, "            .finish()\n    }}\n}}");
    }
    code
}
