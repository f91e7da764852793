//! (attacher)
