//! Certificates, tokens and kubeconfigs of a control plane, made new for each.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

pub(super) const ADMIN_TOKEN: &str = "admin-of-a-test";
pub(super) const ISSUER: &str = "https://kubernetes.default.svc";
pub(super) const CA_CERTIFICATE: &str = "ca.crt";
pub(super) const SERVER_CERTIFICATE: &str = "server.crt";
pub(super) const SERVER_KEY: &str = "server.key";
pub(super) const SERVICE_ACCOUNT_KEY: &str = "service-accounts.key";
pub(super) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-accounts.pub";
pub(super) const TOKENS: &str = "tokens.csv";

pub(super) struct Credentials {
    pub(super) url: String,
    pub(super) admin_kubeconfig: PathBuf,
    certificate_authority: PathBuf,
}

impl Credentials {
    pub(super) fn create(directory: &Path, port: u16) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::new([])?;
        ca.distinguished_name.push(DnType::CommonName, "control plane of a test");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;

        let mut server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate()?;
        let server_certificate = server.signed_by(&server_key, &Issuer::new(ca, ca_key))?;

        fs::write(directory.join(CA_CERTIFICATE), ca_certificate.pem())?;
        fs::write(directory.join(SERVER_CERTIFICATE), server_certificate.pem())?;
        fs::write(directory.join(SERVER_KEY), server_key.serialize_pem())?;
        let account_key = KeyPair::generate()?;
        fs::write(directory.join(SERVICE_ACCOUNT_KEY), account_key.serialize_pem())?;
        fs::write(directory.join(SERVICE_ACCOUNT_PUBLIC_KEY), account_key.public_key_pem())?;
        fs::write(directory.join(TOKENS), format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;

        let credentials = Self {
            url: format!("https://127.0.0.1:{port}"),
            admin_kubeconfig: directory.join("admin.kubeconfig"),
            certificate_authority: directory.join(CA_CERTIFICATE),
        };
        fs::write(&credentials.admin_kubeconfig, credentials.kubeconfig(ADMIN_TOKEN))?;
        Ok(credentials)
    }

    pub(super) fn kubeconfig(&self, token: &str) -> String {
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [{"name": "tests", "cluster": {
                "server": self.url, "certificate-authority": self.certificate_authority,
            }}],
            "users": [{"name": "tests", "user": {"token": token}}],
        })
        .to_string()
    }
}
