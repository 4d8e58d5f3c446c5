//! Network interfaces: those of the fabric get their MTU and subnet, the boot interface gets its
//! address from MAAS. Only differences are changed.

use super::executor::{
    MachineSetting, StageExecutor, check_unlocked, describe_state, done, state_disagrees,
};
use crate::maas::{
    Interface, InterfaceChange, Link, LinkMode, LinkRequest, Machine, Status, Subnet,
};
use model::effect::{CallResult, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::site::Network;

/// One change of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
enum InterfaceFix {
    Set { interface: i64, mtu: Option<u32>, vlan: Option<i64> },
    Unlink { interface: i64, link: i64 },
    Link { interface: i64, subnet: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterfaceGroup {
    Fabric,
    Boot,
}

impl InterfaceGroup {
    /// The fault code when MAAS refuses the change.
    const fn refused(self) -> FaultCode {
        match self {
            Self::Fabric => FaultCode::MaasRefused,
            Self::Boot => FaultCode::PxeInterfaceUnfixable,
        }
    }
}

fn things(fixes: &[InterfaceFix]) -> String {
    match fixes.len() {
        1 => "1 thing is".into(),
        count => format!("{count} things are"),
    }
}

impl StageExecutor<'_> {
    pub async fn apply_roce(&self) -> CallResult {
        self.configure(MachineSetting::Interfaces(InterfaceGroup::Fabric)).await
    }

    pub async fn ensure_pxe(&self) -> CallResult {
        self.configure(MachineSetting::Interfaces(InterfaceGroup::Boot)).await
    }

    async fn fixes(&self, machine: &Machine, cards: InterfaceGroup) -> Result<Vec<InterfaceFix>> {
        match cards {
            InterfaceGroup::Fabric => self.roce_fixes(machine).await,
            InterfaceGroup::Boot => self.pxe_fixes(machine).await,
        }
    }

    /// Checks that the interfaces are as desired.
    pub async fn observe_interfaces(&self, machine: &Machine, cards: InterfaceGroup) -> CallResult {
        Ok(match self.fixes(machine, cards).await {
            Ok(fixes) if fixes.is_empty() => done(machine, "its network cards are as wanted"),
            Ok(fixes) => ProviderAnswer::Differs(format!(
                "{} to be changed on its network cards",
                things(&fixes)
            )),
            Err(fault) if fault.code.peer_unreachable() => return Err(fault),
            Err(fault) => ProviderAnswer::Differs(fault.message),
        })
    }

    /// Changes the interfaces to the desired state.
    pub async fn apply_interface_fixes(
        &self,
        machine: Machine,
        cards: InterfaceGroup,
    ) -> CallResult {
        let fixes = self.fixes(&machine, cards).await?;
        if fixes.is_empty() {
            return Ok(done(&machine, "its network cards were as wanted"));
        }
        self.apply(&machine, &fixes, cards.refused()).await?;
        let now = self.call.maas().machine(&machine.system_id).await?;
        let left = self.fixes(&now, cards).await?;
        match left.is_empty() {
            true => Ok(done(&now, format!("{} changed on its network cards", things(&fixes)))),
            false => {
                let message = format!(
                    "{}; {} still not as wanted on its network cards",
                    describe_state(&now),
                    things(&left)
                );
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }

    async fn apply(
        &self,
        machine: &Machine,
        fixes: &[InterfaceFix],
        refused: FaultCode,
    ) -> Result<()> {
        check_unlocked(machine)?;
        if !matches!(machine.status, Status::Ready | Status::Allocated) {
            return Err(state_disagrees(machine, "network cards are changed while it is Ready"));
        }
        for fix in fixes {
            self.call.journal.write_line(format!("maas: {}", describe_fix(machine, fix))).await;
            self.fix(&machine.system_id, fix).await.map_err(|fault| {
                match matches!(fault.code, FaultCode::MaasRefused | FaultCode::EffectFailed) {
                    true => Fault::new(refused, fault.message),
                    false => fault,
                }
            })?;
        }
        Ok(())
    }

    async fn fix(&self, id: &str, fix: &InterfaceFix) -> Result<Interface> {
        let maas = self.call.maas();
        match fix {
            InterfaceFix::Set { interface, mtu, vlan } => {
                let change =
                    InterfaceChange { mtu: *mtu, vlan: *vlan, ..InterfaceChange::default() };
                maas.update_interface(id, *interface, &change).await
            }
            InterfaceFix::Unlink { interface, link } => {
                maas.unlink_subnet(id, *interface, *link).await
            }
            InterfaceFix::Link { interface, subnet } => {
                let mode = LinkMode::Auto;
                let desired =
                    LinkRequest { subnet: *subnet, mode, ip_address: None, default_gateway: false };
                maas.link_subnet(id, *interface, &desired).await
            }
        }
    }

    async fn roce_fixes(&self, machine: &Machine) -> Result<Vec<InterfaceFix>> {
        let network = &self.site.spec.network;
        if network.roce_interfaces.is_empty() {
            return Ok(Vec::new());
        }
        let subnet = match network.roce_subnet.as_str() {
            "" => None,
            name => {
                let subnets = self.call.maas().subnets().await?;
                let found = subnets.into_iter().find(|one| one.name == name || one.cidr == name);
                Some(found.ok_or_else(|| {
                    let message = format!(
                        "site.spec.network.roce_subnet is {name:?}, which MAAS does not have"
                    );
                    Fault::new(FaultCode::SiteUnfit, message)
                })?)
            }
        };
        roce(machine, network, subnet.as_ref())
    }

    async fn pxe_fixes(&self, machine: &Machine) -> Result<Vec<InterfaceFix>> {
        let boots = machine.boot_interface.as_ref();
        if boots.is_some_and(|card| {
            links(card).iter().any(|link| link.mode == Some(LinkMode::Auto) && on_vlan(card, link))
        }) {
            return Ok(Vec::new());
        }
        pxe(machine, &self.call.maas().subnets().await?)
    }

    /// Restores the boot interface to AUTO before a reinstall.
    pub async fn fix_boot_interface(&self, machine: &Machine) -> Result<()> {
        let fixes = self.pxe_fixes(machine).await?;
        self.apply(machine, &fixes, FaultCode::PxeInterfaceUnfixable).await
    }
}

fn describe_fix(machine: &Machine, fix: &InterfaceFix) -> String {
    let (InterfaceFix::Set { interface, .. }
    | InterfaceFix::Unlink { interface, .. }
    | InterfaceFix::Link { interface, .. }) = fix;
    let name = machine.interfaces.iter().find(|card| card.id == *interface);
    let name = name.map_or("a card", |card| card.name.as_str());
    match fix {
        InterfaceFix::Set { mtu: Some(mtu), .. } => format!("{name} gets an MTU of {mtu}"),
        InterfaceFix::Set { .. } => format!("{name} moves to the VLAN of its subnet"),
        InterfaceFix::Unlink { .. } => format!("{name} loses a link"),
        InterfaceFix::Link { subnet, .. } => {
            format!("{name} is linked to the subnet {subnet}, AUTO")
        }
    }
}

/// The links that give an address.
fn links(card: &Interface) -> Vec<&Link> {
    card.links.iter().filter(|link| link.mode != Some(LinkMode::LinkUp)).collect()
}

fn on_vlan(card: &Interface, link: &Link) -> bool {
    let vlan = link.subnet.as_ref().and_then(|subnet| subnet.vlan.as_ref());
    match (vlan, &card.vlan) {
        (Some(subnet), Some(own)) => subnet.id == own.id,
        // MAAS does not always include the VLAN of a link's subnet.
        (None, Some(_)) => link.subnet.is_some(),
        (_, None) => false,
    }
}

/// The changes of the fabric interfaces.
fn roce(
    machine: &Machine,
    network: &Network,
    subnet: Option<&Subnet>,
) -> Result<Vec<InterfaceFix>> {
    let prefix = &network.roce_interfaces;
    let cards: Vec<&Interface> =
        machine.interfaces.iter().filter(|card| card.name.starts_with(prefix.as_str())).collect();
    if cards.is_empty() {
        let all: Vec<&str> = machine.interfaces.iter().map(|card| card.name.as_str()).collect();
        let message = format!(
            "site.spec.network.roce_interfaces is {prefix:?}, and no network card of {} begins so; it has {}",
            machine.system_id,
            all.join(", ")
        );
        return Err(Fault::new(FaultCode::SiteUnfit, message));
    }
    Ok(cards.into_iter().flat_map(|card| roce_card(card, network.roce_mtu, subnet)).collect())
}

fn roce_card(card: &Interface, mtu: u32, subnet: Option<&Subnet>) -> Vec<InterfaceFix> {
    let interface = card.id;
    let mut fixes = Vec::new();
    let mtu = Some(mtu).filter(|mtu| *mtu != 0 && *mtu != card.effective_mtu);
    let desired = subnet.and_then(|subnet| subnet.vlan.as_ref()).map(|vlan| vlan.id);
    let vlan = desired.filter(|desired| card.vlan.as_ref().map(|vlan| vlan.id) != Some(*desired));
    // Moving to another VLAN drops all links, so they are removed first, the right one too.
    let right = |link: &Link| {
        let linked = link.subnet.as_ref().map(|subnet| subnet.id);
        vlan.is_none()
            && link.mode == Some(LinkMode::Auto)
            && linked.is_some()
            && linked == subnet.map(|subnet| subnet.id)
    };
    let mut stored = false;
    for link in links(card) {
        if right(link) && !stored {
            stored = true;
        } else {
            fixes.push(InterfaceFix::Unlink { interface, link: link.id });
        }
    }
    if mtu.is_some() || vlan.is_some() {
        fixes.push(InterfaceFix::Set { interface, mtu, vlan });
    }
    if let (Some(subnet), false) = (subnet, stored) {
        fixes.push(InterfaceFix::Link { interface, subnet: subnet.id });
    }
    fixes
}

/// The changes of the boot interface.
fn pxe(machine: &Machine, subnets: &[Subnet]) -> Result<Vec<InterfaceFix>> {
    let unfixable = |why: String| {
        let message = format!("the interface that {} boots from {why}", machine.system_id);
        Err(Fault::new(FaultCode::PxeInterfaceUnfixable, message))
    };
    let Some(card) = &machine.boot_interface else {
        return unfixable("is not known to MAAS; choose one there".into());
    };
    let Some(vlan) = &card.vlan else {
        return unfixable(format!("({}) is on no VLAN; connect it in MAAS", card.name));
    };
    let of_vlan = |subnet: &&Subnet| subnet.vlan.as_ref().is_some_and(|own| own.id == vlan.id);
    let linked = |subnet: &Subnet| {
        card.links.iter().any(|link| link.subnet.as_ref().is_some_and(|own| own.id == subnet.id))
    };
    // Prefer the present subnet, then one that MAAS manages.
    let best =
        subnets.iter().filter(of_vlan).min_by_key(|one| (!linked(one), !one.managed, one.id));
    let Some(subnet) = best else {
        return unfixable(format!(
            "({}) is on the VLAN {}, which has no subnet in MAAS",
            card.name, vlan.id
        ));
    };
    let interface = card.id;
    let unlink = |link: &Link| InterfaceFix::Unlink { interface, link: link.id };
    let mut fixes: Vec<InterfaceFix> = links(card).into_iter().map(unlink).collect();
    fixes.push(InterfaceFix::Link { interface, subnet: subnet.id });
    Ok(fixes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn subnet(id: i64, vlan: i64, managed: bool) -> Subnet {
        let reported =
            json!({"id": id, "name": format!("s{id}"), "managed": managed, "vlan": {"id": vlan}});
        serde_json::from_value(reported).unwrap()
    }

    fn machine(cards: Value) -> Machine {
        let boots = cards[0].clone();
        serde_json::from_value(json!({
            "system_id": "a", "status": 4, "interface_set": cards, "boot_interface": boots
        }))
        .unwrap()
    }

    fn card(id: i64, name: &str, mtu: u32, links: Value) -> Value {
        json!({"id": id, "name": name, "effective_mtu": mtu, "vlan": {"id": 7}, "links": links})
    }

    fn link(id: i64, mode: &str, subnet: i64) -> Value {
        json!({"id": id, "mode": mode, "subnet": {"id": subnet, "vlan": {"id": 7}}})
    }

    #[test]
    fn only_what_differs_on_the_fabric_is_changed() {
        let network = |mtu| Network {
            roce_interfaces: "roce".into(),
            roce_mtu: mtu,
            roce_subnet: "s3".into(),
        };
        let (same, other) = (subnet(3, 7, true), subnet(3, 9, true));
        let set = |mtu, vlan| InterfaceFix::Set { interface: 1, mtu, vlan };
        let (take, put) = (
            |link| InterfaceFix::Unlink { interface: 1, link },
            InterfaceFix::Link { interface: 1, subnet: 3 },
        );
        for (links, mtu, desired, expected) in [
            (json!([link(5, "auto", 3)]), 9000, Some(&same), vec![]),
            (json!([link(5, "auto", 3)]), 0, Some(&same), vec![]),
            (json!([]), 9000, Some(&same), vec![put.clone()]),
            (json!([{"id": 5, "mode": "link_up"}]), 9000, Some(&same), vec![put.clone()]),
            (json!([link(5, "dhcp", 3)]), 9000, Some(&same), vec![take(5), put.clone()]),
            (json!([link(5, "auto", 3), link(6, "auto", 3)]), 9000, Some(&same), vec![take(6)]),
            (
                json!([link(5, "auto", 4)]),
                9000,
                Some(&other),
                vec![take(5), set(None, Some(9)), put.clone()],
            ),
            (
                json!([link(5, "auto", 3)]),
                9000,
                Some(&other),
                vec![take(5), set(None, Some(9)), put.clone()],
            ),
            (json!([link(5, "auto", 3)]), 4200, None, vec![take(5), set(Some(4200), None)]),
        ] {
            let machine =
                machine(json!([card(1, "roce0", 9000, links), card(2, "ens1", 1500, json!([]))]));
            let found = roce(&machine, &network(mtu), desired).unwrap();
            assert_eq!(found, expected);
        }
        let none = machine(json!([card(2, "ens1", 1500, json!([]))]));
        let fault = roce(&none, &network(0), None).unwrap_err();
        assert_eq!(fault.code, FaultCode::SiteUnfit);
        assert!(
            fault.message.contains("roce_interfaces") && fault.message.contains("ens1"),
            "{fault}"
        );
    }

    #[test]
    fn the_card_that_boots_gets_its_address_from_maas() {
        let all = [subnet(1, 7, false), subnet(2, 7, true), subnet(3, 9, true)];
        let put = |subnet| InterfaceFix::Link { interface: 1, subnet };
        let take = InterfaceFix::Unlink { interface: 1, link: 5 };
        for (links, expected) in [
            (json!([]), vec![put(2)]),
            (json!([link(5, "static", 1)]), vec![take.clone(), put(1)]),
            (json!([link(5, "dhcp", 3)]), vec![take, put(2)]),
        ] {
            let machine = machine(json!([card(1, "ens1", 1500, links)]));
            assert_eq!(pxe(&machine, &all).unwrap(), expected);
        }
        let nowhere = machine(json!([{"id": 1, "name": "ens1", "vlan": null}]));
        for (machine, subnets, words) in [
            (machine(Value::Null), &all[..], "not known"),
            (nowhere, &all[..], "on no VLAN"),
            (machine(json!([card(1, "ens1", 1500, json!([]))])), &all[2..], "no subnet"),
        ] {
            let fault = pxe(&machine, subnets).unwrap_err();
            assert_eq!(fault.code, FaultCode::PxeInterfaceUnfixable);
            assert!(fault.message.contains(words), "{fault}");
        }
    }
}
