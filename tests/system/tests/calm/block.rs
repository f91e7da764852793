//! A pod that has its volume as a device.

use dunnage_tests_system::cluster::{apply, kubectl};
use dunnage_tests_system::manifest::{backend, block_claim, block_pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready, word};

#[test]
fn a_pod_has_a_device_of_the_claims_size_and_the_next_pod_finds_what_was_written() {
    let name = "block";
    apply(&backend(name, "LoopFile", "/var/lib/dunnage/block", ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&block_claim(&space.0, "data", name, "64Mi"));
    apply(&block_pod(&space.0, "first", "data", "test -b /dev/data && printf kept > /dev/data && sync"));
    let node = space.wait_pod("first");
    let size = space.exec("first", "blockdev --getsize64 /dev/data");
    assert_eq!(size, Ok((64_u32 << 20).to_string()));

    kubectl(&["delete", "pod", "first", "-n", &space.0]);
    apply(&block_pod(&space.0, "second", "data", "true"));
    assert_eq!(space.wait_pod("second"), node, "a pod goes to its volume");
    assert_eq!(space.exec("second", "head -c 4 /dev/data").as_deref(), Ok("kept"));

    let volume = space.wait_bound("data");
    space.remove();
    assert_eq!(node.loop_devices(word(&volume["spec"]["csi"]["volumeHandle"])), Vec::<String>::new());
    remove_backend(name);
}
