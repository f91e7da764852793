//! The controller service of a backend whose volumes live on many nodes.
