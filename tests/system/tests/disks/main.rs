//! Disks and volumes that are where nobody expects them: away, in another node, or a pod's own; one test at a time.

mod inline;
mod missing;
mod moved;
