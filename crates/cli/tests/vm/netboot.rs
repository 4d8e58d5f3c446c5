//! Power and boot through a BMC that drives a real virtual machine: what the BMC is told is what the machine does.

use crate::site::{Site, Vm};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(180);

#[test]
fn a_machine_boots_as_its_bmc_is_told_and_goes_off() {
    let site = Site::open(Vm::numbered(1));
    assert!(!site.vm.is_on());
    site.line("enter-maintenance vm-1");
    let step = |text: &str| format!("  - {{{text}}}\n");
    let boot = step("name: network, netboot: {mode: PXE}")
        + &step("name: cycle, timeout_seconds: 120, reboot: {mode: bmc}");
    site.plan("boot", &boot);
    site.plan("off", &step("name: power-off, rma: {action: POWER_OFF}"));

    // It was never on: cycled, it is, and its firmware finds Farrier, which has nothing for it.
    let told = site.line("run start vm-1 --type REBOOT --plan boot --timeout 5m");
    assert!(told.contains("SUCCEEDED"), "{told}");
    site.vm.says("Farrier does not want this machine", BOOT);
    assert!(site.vm.is_on());

    let told = site.line("run start vm-1 --type RMA --plan off --timeout 5m");
    assert!(told.contains("SUCCEEDED"), "{told}");
    assert!(!site.vm.is_on());
}
