//! A CA, and certificates of it for the parts of a backend.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }
}

impl Authority {
    /// Writes `ca.crt`, `tls.crt` and `tls.key` for a name, and tells where.
    pub fn write(&self, parent: &Path, name: &str) -> PathBuf {
        let directory = parent.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        for (file, content) in
            [("ca.crt", self.0.pem()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())]
        {
            std::fs::write(directory.join(file), content).unwrap();
        }
        directory
    }
}
