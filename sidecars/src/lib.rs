//! The CSI sidecars: provisioner, attacher, registrar and agent discovery on one shared runtime.
