//! Network interfaces: those of the fabric get their MTU and subnet, the boot interface gets its
//! address from MAAS. Only differences are changed.

use super::hand::{Setting, Work, disagrees, done, has, unlocked};
use crate::maas::{
    Interface, InterfaceChange, Link, LinkMode, LinkWanted, Machine, Status, Subnet,
};
use model::effect::Answer;
use model::fault::{Code, Fault};
use model::site::Network;

/// One change of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fix {
    Set { interface: i64, mtu: Option<u32>, vlan: Option<i64> },
    Unlink { interface: i64, link: i64 },
    Link { interface: i64, subnet: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cards {
    Fabric,
    Boot,
}

impl Cards {
    /// The fault code when MAAS refuses the change.
    const fn refused(self) -> Code {
        match self {
            Self::Fabric => Code::MaasRefused,
            Self::Boot => Code::PxeInterfaceUnfixable,
        }
    }
}

fn things(fixes: &[Fix]) -> String {
    match fixes.len() {
        1 => "1 thing is".into(),
        count => format!("{count} things are"),
    }
}

impl Work<'_> {
    pub async fn apply_roce(&self) -> Result<Answer, Fault> {
        self.bring_about(Setting::Cards(Cards::Fabric)).await
    }

    pub async fn ensure_pxe(&self) -> Result<Answer, Fault> {
        self.bring_about(Setting::Cards(Cards::Boot)).await
    }

    async fn fixes(&self, machine: &Machine, cards: Cards) -> Result<Vec<Fix>, Fault> {
        match cards {
            Cards::Fabric => self.roce_fixes(machine).await,
            Cards::Boot => self.pxe_fixes(machine).await,
        }
    }

    /// Whether the interfaces are as desired.
    pub async fn wired(&self, machine: &Machine, cards: Cards) -> Result<Answer, Fault> {
        Ok(match self.fixes(machine, cards).await {
            Ok(fixes) if fixes.is_empty() => done(machine, "its network cards are as wanted"),
            Ok(fixes) => {
                Answer::Differs(format!("{} to be changed on its network cards", things(&fixes)))
            }
            Err(fault) if fault.code.unseen() => return Err(fault),
            Err(fault) => Answer::Differs(fault.said),
        })
    }

    /// Changes the interfaces to the desired state.
    pub async fn http(&self, machine: Machine, cards: Cards) -> Result<Answer, Fault> {
        let fixes = self.fixes(&machine, cards).await?;
        if fixes.is_empty() {
            return Ok(done(&machine, "its network cards were as wanted"));
        }
        self.apply(&machine, &fixes, cards.refused()).await?;
        let now = self.hand.maas().machine(&machine.system_id).await?;
        let left = self.fixes(&now, cards).await?;
        match left.is_empty() {
            true => Ok(done(&now, format!("{} changed on its network cards", things(&fixes)))),
            false => {
                let said = format!(
                    "{}; {} still not as wanted on its network cards",
                    has(&now),
                    things(&left)
                );
                Err(Fault::new(Code::ReadBackDiffers, said))
            }
        }
    }

    async fn apply(&self, machine: &Machine, fixes: &[Fix], refused: Code) -> Result<(), Fault> {
        unlocked(machine)?;
        if !matches!(machine.status, Status::Ready | Status::Allocated) {
            return Err(disagrees(machine, "network cards are changed while it is Ready"));
        }
        for fix in fixes {
            self.hand.journal.line(format!("maas: {}", told(machine, fix))).await;
            self.fix(&machine.system_id, fix).await.map_err(|fault| {
                match matches!(fault.code, Code::MaasRefused | Code::EffectFailed) {
                    true => Fault::new(refused, fault.said),
                    false => fault,
                }
            })?;
        }
        Ok(())
    }

    async fn fix(&self, id: &str, fix: &Fix) -> Result<Interface, Fault> {
        let maas = self.hand.maas();
        match fix {
            Fix::Set { interface, mtu, vlan } => {
                let change =
                    InterfaceChange { mtu: *mtu, vlan: *vlan, ..InterfaceChange::default() };
                maas.update_interface(id, *interface, &change).await
            }
            Fix::Unlink { interface, link } => maas.unlink_subnet(id, *interface, *link).await,
            Fix::Link { interface, subnet } => {
                let mode = LinkMode::Auto;
                let wanted =
                    LinkWanted { subnet: *subnet, mode, ip_address: None, default_gateway: false };
                maas.link_subnet(id, *interface, &wanted).await
            }
        }
    }

    async fn roce_fixes(&self, machine: &Machine) -> Result<Vec<Fix>, Fault> {
        let network = &self.site.spec.network;
        if network.roce_interfaces.is_empty() {
            return Ok(Vec::new());
        }
        let subnet = match network.roce_subnet.as_str() {
            "" => None,
            name => {
                let subnets = self.hand.maas().subnets().await?;
                let found = subnets.into_iter().find(|one| one.name == name || one.cidr == name);
                Some(found.ok_or_else(|| {
                    let said = format!(
                        "site.spec.network.roce_subnet is {name:?}, which MAAS does not have"
                    );
                    Fault::new(Code::SiteUnfit, said)
                })?)
            }
        };
        roce(machine, network, subnet.as_ref())
    }

    async fn pxe_fixes(&self, machine: &Machine) -> Result<Vec<Fix>, Fault> {
        let boots = machine.boot_interface.as_ref();
        if boots.is_some_and(|card| {
            links(card).iter().any(|link| link.mode == Some(LinkMode::Auto) && on_vlan(card, link))
        }) {
            return Ok(Vec::new());
        }
        pxe(machine, &self.hand.maas().subnets().await?)
    }

    /// Restores the boot interface to AUTO before a reinstall.
    pub async fn rewire_pxe(&self, machine: &Machine) -> Result<(), Fault> {
        let fixes = self.pxe_fixes(machine).await?;
        self.apply(machine, &fixes, Code::PxeInterfaceUnfixable).await
    }
}

fn told(machine: &Machine, fix: &Fix) -> String {
    let (Fix::Set { interface, .. } | Fix::Unlink { interface, .. } | Fix::Link { interface, .. }) =
        fix;
    let name = machine.interfaces.iter().find(|card| card.id == *interface);
    let name = name.map_or("a card", |card| card.name.as_str());
    match fix {
        Fix::Set { mtu: Some(mtu), .. } => format!("{name} gets an MTU of {mtu}"),
        Fix::Set { .. } => format!("{name} moves to the VLAN of its subnet"),
        Fix::Unlink { .. } => format!("{name} loses a link"),
        Fix::Link { subnet, .. } => format!("{name} is linked to the subnet {subnet}, AUTO"),
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
fn roce(machine: &Machine, network: &Network, subnet: Option<&Subnet>) -> Result<Vec<Fix>, Fault> {
    let prefix = &network.roce_interfaces;
    let cards: Vec<&Interface> =
        machine.interfaces.iter().filter(|card| card.name.starts_with(prefix.as_str())).collect();
    if cards.is_empty() {
        let all: Vec<&str> = machine.interfaces.iter().map(|card| card.name.as_str()).collect();
        let said = format!(
            "site.spec.network.roce_interfaces is {prefix:?}, and no network card of {} begins so; it has {}",
            machine.system_id,
            all.join(", ")
        );
        return Err(Fault::new(Code::SiteUnfit, said));
    }
    Ok(cards.into_iter().flat_map(|card| roce_card(card, network.roce_mtu, subnet)).collect())
}

fn roce_card(card: &Interface, mtu: u32, subnet: Option<&Subnet>) -> Vec<Fix> {
    let interface = card.id;
    let mut fixes = Vec::new();
    let mtu = Some(mtu).filter(|mtu| *mtu != 0 && *mtu != card.effective_mtu);
    let wanted = subnet.and_then(|subnet| subnet.vlan.as_ref()).map(|vlan| vlan.id);
    let vlan = wanted.filter(|wanted| card.vlan.as_ref().map(|vlan| vlan.id) != Some(*wanted));
    // Moving to another VLAN drops all links, so they are removed first, the right one too.
    let right = |link: &Link| {
        let linked = link.subnet.as_ref().map(|subnet| subnet.id);
        vlan.is_none()
            && link.mode == Some(LinkMode::Auto)
            && linked.is_some()
            && linked == subnet.map(|subnet| subnet.id)
    };
    let mut kept = false;
    for link in links(card) {
        if right(link) && !kept {
            kept = true;
        } else {
            fixes.push(Fix::Unlink { interface, link: link.id });
        }
    }
    if mtu.is_some() || vlan.is_some() {
        fixes.push(Fix::Set { interface, mtu, vlan });
    }
    if let (Some(subnet), false) = (subnet, kept) {
        fixes.push(Fix::Link { interface, subnet: subnet.id });
    }
    fixes
}

/// The changes of the boot interface.
fn pxe(machine: &Machine, subnets: &[Subnet]) -> Result<Vec<Fix>, Fault> {
    let unfixable = |why: String| {
        let said = format!("the interface that {} boots from {why}", machine.system_id);
        Err(Fault::new(Code::PxeInterfaceUnfixable, said))
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
    let unlink = |link: &Link| Fix::Unlink { interface, link: link.id };
    let mut fixes: Vec<Fix> = links(card).into_iter().map(unlink).collect();
    fixes.push(Fix::Link { interface, subnet: subnet.id });
    Ok(fixes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn subnet(id: i64, vlan: i64, managed: bool) -> Subnet {
        let told =
            json!({"id": id, "name": format!("s{id}"), "managed": managed, "vlan": {"id": vlan}});
        serde_json::from_value(told).unwrap()
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
        let set = |mtu, vlan| Fix::Set { interface: 1, mtu, vlan };
        let (take, put) =
            (|link| Fix::Unlink { interface: 1, link }, Fix::Link { interface: 1, subnet: 3 });
        for (links, mtu, wanted, expected) in [
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
            let found = roce(&machine, &network(mtu), wanted).unwrap();
            assert_eq!(found, expected);
        }
        let none = machine(json!([card(2, "ens1", 1500, json!([]))]));
        let fault = roce(&none, &network(0), None).unwrap_err();
        assert_eq!(fault.code, Code::SiteUnfit);
        assert!(fault.said.contains("roce_interfaces") && fault.said.contains("ens1"), "{fault}");
    }

    #[test]
    fn the_card_that_boots_gets_its_address_from_maas() {
        let all = [subnet(1, 7, false), subnet(2, 7, true), subnet(3, 9, true)];
        let put = |subnet| Fix::Link { interface: 1, subnet };
        let take = Fix::Unlink { interface: 1, link: 5 };
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
            assert_eq!(fault.code, Code::PxeInterfaceUnfixable);
            assert!(fault.said.contains(words), "{fault}");
        }
    }
}
