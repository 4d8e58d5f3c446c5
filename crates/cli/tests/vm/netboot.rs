//! Power and boot settings through a BMC that controls a real virtual machine.

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

    // The machine was off. A power cycle switches it on; its firmware finds Farrier, which has no
    // boot script for it.
    let reported = site.line("operation start vm-1 --type REBOOT --plan boot --timeout 5m");
    assert!(reported.contains("SUCCEEDED"), "{reported}");
    site.vm.wait_for_console("Farrier does not want this machine", BOOT);
    assert!(site.vm.is_on());

    let reported = site.line("operation start vm-1 --type RMA --plan off --timeout 5m");
    assert!(reported.contains("SUCCEEDED"), "{reported}");
    assert!(!site.vm.is_on());
}
