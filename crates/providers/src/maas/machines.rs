//! What can be asked of machines: to be listed, known, commissioned, allocated, deployed, released, switched, forgotten.
//! Each answers with the machine as MAAS has it right after; that something is done is seen later, in its status.

use super::Maas;
use super::call::Call;
use super::machine::{MaasPowerState, Machine};
use super::verdict::About;
use super::wanted::{Change, Deploy, Filter, NewMachine, Release, StopMode};
use crate::http_client::form::{Form, encode};
use model::fault::Fault;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const ALL: &str = "machines/";

#[derive(Deserialize)]
struct Power {
    state: MaasPowerState,
}

impl Maas {
    /// Every machine that fits, with all it is made of, in one request: a whole site where nothing is filtered by. Who asks for one machine goes
    /// before it.
    pub async fn machines(&self, filter: &Filter) -> Result<Vec<Machine>, Fault> {
        let Filter { ids, mac_address, hostname, pool, zone } = filter;
        let call = ids.iter().fold(Call::get(ALL).polling(), |call, id| call.query("id", id));
        let wanted =
            [("mac_address", mac_address), ("hostname", hostname), ("pool", pool), ("zone", zone)];
        let call = wanted.into_iter().fold(call, |call, (name, value)| match value {
            Some(value) => call.query(name, value),
            None => call,
        });
        self.read(call).await
    }

    pub async fn machine(&self, system_id: &str) -> Result<Machine, Fault> {
        self.read(Call::get(one(system_id)).about(About::Machine)).await
    }

    /// Makes a machine known. MAAS refuses a MAC address that another has.
    pub async fn create(&self, new: &NewMachine) -> Result<Machine, Fault> {
        self.read(Call::post(ALL).form(new.form())).await
    }

    pub async fn update(&self, system_id: &str, change: &Change) -> Result<Machine, Fault> {
        let call = Call::put(one(system_id)).about(About::Machine);
        self.read(call.form(change.form())).await
    }

    /// Makes MAAS forget it. It is not switched off.
    pub async fn delete(&self, system_id: &str) -> Result<(), Fault> {
        self.done(Call::delete(one(system_id)).about(About::Machine)).await
    }

    /// Boots it to be looked at. Whoever asks becomes its owner meanwhile.
    pub async fn commission(&self, system_id: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "commission")).await
    }

    /// Breaks off commissioning, testing, deploying or erasing.
    pub async fn abort(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "abort").form(Form::default().with("comment", comment))).await
    }

    /// Takes this one machine, which must be Ready.
    pub async fn allocate(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        let form = Form::default().with("system_id", system_id).with("comment", comment);
        self.read(Call::post(ALL).op("allocate").form(form)).await
    }

    /// Puts an operating system on it. Everything on its disks is lost.
    pub async fn deploy(&self, system_id: &str, deploy: &Deploy) -> Result<Machine, Fault> {
        self.read(op(system_id, "deploy").form(deploy.form())).await
    }

    /// Gives it back. MAAS takes a second request for the first one.
    pub async fn release(&self, system_id: &str, release: &Release) -> Result<Machine, Fault> {
        self.read(op(system_id, "release").harmless().form(release.form())).await
    }

    /// Switches it on. A machine that is Allocated is **deployed** by this: to MAAS it is the same request. And some power
    /// types switch a machine off first that is on, so it is asked once.
    pub async fn power_on(&self, system_id: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "power_on")).await
    }

    pub async fn power_off(&self, system_id: &str, mode: StopMode) -> Result<(), Fault> {
        let form = Form::default().with("stop_mode", mode.as_str());
        self.done(op(system_id, "power_off").harmless().form(form)).await
    }

    /// Lets MAAS ask the machine's controller now, which may take a minute and a thread of the region.
    pub async fn query_power_state(&self, system_id: &str) -> Result<MaasPowerState, Fault> {
        let call = Call::get(one(system_id)).op("query_power_state").about(About::Machine);
        Ok(self.read::<Power>(call).await?.state)
    }

    /// How MAAS switches it, by the names of the power type's parameters. A password is among them.
    pub async fn power_parameters(
        &self,
        system_id: &str,
    ) -> Result<BTreeMap<String, SecretString>, Fault> {
        let call = Call::get(one(system_id)).op("power_parameters").about(About::Machine);
        let told: BTreeMap<String, Value> = self.read(call).await?;
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(told.into_iter().map(|(name, value)| (name, text(value).into())).collect())
    }

    /// Only its owner may do this; MAAS releases it first.
    pub async fn mark_broken(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "mark_broken").form(Form::default().with("comment", comment))).await
    }

    pub async fn mark_fixed(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "mark_fixed").form(Form::default().with("comment", comment))).await
    }

    /// A locked machine is neither released nor deleted by anybody. Locking one that is locked is refused.
    pub async fn lock(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "lock").form(Form::default().with("comment", comment))).await
    }

    pub async fn unlock(&self, system_id: &str, comment: &str) -> Result<Machine, Fault> {
        self.read(op(system_id, "unlock").form(Form::default().with("comment", comment))).await
    }

    /// Writes on a machine that we own. An empty value removes its key; what is not named stays.
    pub async fn set_workload_annotations(
        &self,
        system_id: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Machine, Fault> {
        let form = annotations.iter().fold(Form::default(), |form, (k, v)| form.with(k, v));
        self.read(op(system_id, "set_workload_annotations").harmless().form(form)).await
    }
}

pub(super) fn one(system_id: &str) -> String {
    format!("{ALL}{}/", encode(system_id))
}

pub(super) fn op(system_id: &str, name: &str) -> Call {
    Call::post(one(system_id)).op(name).about(About::Machine)
}
