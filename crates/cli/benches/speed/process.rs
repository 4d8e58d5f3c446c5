//! The kernel's statistics of the server process.

use crate::Outcome;
use std::process::Command;

const KIB_PER_MB: f64 = 1_000_000.0 / 1_024.0;

/// The resident memory, in MB.
pub fn resident_mb(pid: u32) -> Outcome<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("the kernel does not say VmRSS")?
        .parse()?;
    Ok(kib / KIB_PER_MB)
}

/// The CPU time used so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Outcome<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name is in parentheses and may contain spaces; utime and stime are the 14th and
    // 15th fields.
    let (_, fields) = stat.rsplit_once(')').ok_or("the kernel's stat has no name")?;
    let times: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(times.iter().sum::<f64>() / ticks_per_second()?)
}

fn ticks_per_second() -> Outcome<f64> {
    let output = Command::new("getconf").arg("CLK_TCK").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}
