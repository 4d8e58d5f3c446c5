//! The hardware of a machine as its last inspection found it. It informs people; no gate reads it.

use super::MachineSpec;
use crate::list_format::join_limited;
use crate::text::MAX_SHORT;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of models of one kind of part that are named.
const MAX_MODELS: usize = 3;

/// The summary of an inspection. An empty text or zero is unknown or absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HardwareSummary {
    pub vendor: String,
    pub model: String,
    pub serial: String,
    pub sku: String,
    pub bios_version: String,
    pub bmc_version: String,
    pub cpus: PartSummary,
    pub memory_mib: u64,
    pub gpus: PartSummary,
    pub disks: PartSummary,
    /// The capacity of all disks.
    pub disk_bytes: u64,
}

/// The parts of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartSummary {
    pub count: u32,
    /// The different models, separated by commas.
    pub model: String,
}

impl PartSummary {
    /// Counts the parts and names their models. A part without a model is an empty text.
    pub fn of<'a>(models: impl IntoIterator<Item = &'a str>) -> Self {
        let mut count = 0;
        let mut different: Vec<&str> = Vec::new();
        for model in models {
            count += 1;
            if !model.is_empty() && !different.contains(&model) {
                different.push(model);
            }
        }
        Self { count, model: join_limited(&different, ", ", MAX_MODELS) }
    }
}

impl HardwareSummary {
    /// Bounds every text and replaces control characters: a device chooses its own words.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let texts = [
            &mut self.vendor,
            &mut self.model,
            &mut self.serial,
            &mut self.sku,
            &mut self.bios_version,
            &mut self.bmc_version,
            &mut self.cpus.model,
            &mut self.gpus.model,
            &mut self.disks.model,
        ];
        for text in texts {
            *text = bounded_text(text);
        }
        self
    }
}

fn bounded_text(text: &str) -> String {
    let mut bounded = String::new();
    for c in text.trim().chars() {
        let c = if c.is_control() { ' ' } else { c };
        if bounded.len() + c.len_utf8() > MAX_SHORT {
            break;
        }
        bounded.push(c);
    }
    bounded
}

/// A summary, and the time of the inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedHardware {
    pub summary: HardwareSummary,
    pub inspected_at: Timestamp,
}

impl RecordedHardware {
    /// True if the machine has another serial number than its spec says. An unknown one is not
    /// compared.
    pub fn serial_differs(&self, spec: &MachineSpec) -> bool {
        let (found, expected) = (self.summary.serial.trim(), spec.serial.trim());
        !found.is_empty() && !expected.is_empty() && !found.eq_ignore_ascii_case(expected)
    }

    /// The difference in words, for an operator who asks about the machine.
    pub fn serial_note(&self, spec: &MachineSpec) -> Option<String> {
        self.serial_differs(spec).then(|| {
            let (found, expected) = (&self.summary.serial, &spec.serial);
            format!("the last inspection found the serial number {found}; the spec says {expected}")
        })
    }
}
