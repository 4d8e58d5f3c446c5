//! The requests about machines. Each answers with the machine right after the request; whether an
//! action has finished shows later, in its status.

use super::Maas;
use super::call::Call;
use super::classify::CallTarget;
use super::machine::{MaasPowerState, Machine};
use super::request::{
    CommissionRequest, DeployRequest, MachineChange, MachineFilter, NewMachine, ReleaseRequest,
    StopMode,
};
use crate::http_client::form::{Form, encode};
use model::fault::Result;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const ALL: &str = "machines/";

#[derive(Deserialize)]
struct PowerReply {
    state: MaasPowerState,
}

impl Maas {
    /// All matching machines with their details, in one request. An empty filter lists the whole
    /// site, so the request yields to those about single machines.
    pub async fn machines(&self, filter: &MachineFilter) -> Result<Vec<Machine>> {
        let MachineFilter { ids, macs, hostname, pool, zone } = filter;
        let call = ids.iter().fold(Call::get(ALL).polling(), |call, id| call.query("id", id));
        // MAAS writes them in lower case with colons, and compares texts.
        let macs = macs.iter().map(|mac| mac.to_ascii_lowercase().replace('-', ":"));
        let call = macs.fold(call, |call, mac| call.query("mac_address", mac));
        let desired = [("hostname", hostname), ("pool", pool), ("zone", zone)];
        let call = desired.into_iter().fold(call, |call, (name, value)| match value {
            Some(value) => call.query(name, value),
            None => call,
        });
        self.read(call).await
    }

    pub async fn machine(&self, system_id: &str) -> Result<Machine> {
        self.read(Call::get(one(system_id)).about(CallTarget::Machine)).await
    }

    /// Creates the record of a machine. MAAS refuses a MAC address that another machine has.
    pub async fn create(&self, new: &NewMachine) -> Result<Machine> {
        self.read(Call::post(ALL).form(new.form())).await
    }

    pub async fn update(&self, system_id: &str, change: &MachineChange) -> Result<Machine> {
        let call = Call::put(one(system_id)).about(CallTarget::Machine);
        self.read(call.form(change.form())).await
    }

    /// Deletes the record. The machine is not powered off.
    pub async fn delete(&self, system_id: &str) -> Result<()> {
        self.send(Call::delete(one(system_id)).about(CallTarget::Machine)).await
    }

    /// Boots the machine to read its hardware. The requesting user owns it meanwhile.
    pub async fn commission(&self, system_id: &str, how: &CommissionRequest) -> Result<Machine> {
        self.read(op(system_id, "commission").powers().form(how.form())).await
    }

    /// Aborts commissioning, testing, deploying or erasing.
    pub async fn abort(&self, system_id: &str, comment: &str) -> Result<Machine> {
        let form = Form::default().with("comment", comment);
        self.read(op(system_id, "abort").powers().form(form)).await
    }

    /// Allocates this machine, which must be Ready.
    pub async fn allocate(&self, system_id: &str, comment: &str) -> Result<Machine> {
        let form = Form::default().with("system_id", system_id).with("comment", comment);
        self.read(Call::post(ALL).op("allocate").form(form)).await
    }

    /// Installs an operating system. All data on its disks is lost.
    pub async fn deploy(&self, system_id: &str, deploy: &DeployRequest) -> Result<Machine> {
        self.read(op(system_id, "deploy").powers().form(deploy.form())).await
    }

    /// Releases the machine. Idempotent: MAAS takes a second request for the first one.
    pub async fn release(&self, system_id: &str, release: &ReleaseRequest) -> Result<Machine> {
        self.read(op(system_id, "release").powers().idempotent().form(release.form())).await
    }

    /// Powers the machine on. MAAS **deploys** an Allocated machine on this request. Not
    /// idempotent: some power types power-cycle a machine that is on.
    pub async fn power_on(&self, system_id: &str) -> Result<Machine> {
        self.read(op(system_id, "power_on").powers()).await
    }

    pub async fn power_off(&self, system_id: &str, mode: StopMode) -> Result<()> {
        let form = Form::default().with("stop_mode", mode.as_str());
        self.send(op(system_id, "power_off").powers().idempotent().form(form)).await
    }

    /// MAAS queries the BMC now, which may take a minute and occupies a thread of the region.
    pub async fn query_power_state(&self, system_id: &str) -> Result<MaasPowerState> {
        let call = Call::get(one(system_id)).op("query_power_state").about(CallTarget::Machine);
        Ok(self.read::<PowerReply>(call).await?.state)
    }

    /// The power parameters by MAAS's names, the password included.
    pub async fn power_parameters(
        &self,
        system_id: &str,
    ) -> Result<BTreeMap<String, SecretString>> {
        let call = Call::get(one(system_id)).op("power_parameters").about(CallTarget::Machine);
        let reported: BTreeMap<String, Value> = self.read(call).await?;
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Ok(reported.into_iter().map(|(name, value)| (name, text(value).into())).collect())
    }

    /// Only the owner may do this; MAAS releases the machine first.
    pub async fn mark_broken(&self, system_id: &str, comment: &str) -> Result<Machine> {
        let form = Form::default().with("comment", comment);
        self.read(op(system_id, "mark_broken").powers().form(form)).await
    }

    pub async fn mark_fixed(&self, system_id: &str, comment: &str) -> Result<Machine> {
        self.read(op(system_id, "mark_fixed").form(Form::default().with("comment", comment))).await
    }

    /// No user can release or delete a locked machine. Locking it a second time is refused.
    pub async fn lock(&self, system_id: &str, comment: &str) -> Result<Machine> {
        self.read(op(system_id, "lock").form(Form::default().with("comment", comment))).await
    }

    pub async fn unlock(&self, system_id: &str, comment: &str) -> Result<Machine> {
        self.read(op(system_id, "unlock").form(Form::default().with("comment", comment))).await
    }

    /// Sets annotations on a machine we own. An empty value removes its key; other keys stay.
    pub async fn set_workload_annotations(
        &self,
        system_id: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Machine> {
        let form = annotations.iter().fold(Form::default(), |form, (k, v)| form.with(k, v));
        self.read(op(system_id, "set_workload_annotations").idempotent().form(form)).await
    }
}

pub(super) fn one(system_id: &str) -> String {
    format!("{ALL}{}/", encode(system_id))
}

pub(super) fn op(system_id: &str, name: &str) -> Call {
    Call::post(one(system_id)).op(name).about(CallTarget::Machine)
}
