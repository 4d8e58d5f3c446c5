//! Reads arbitrary bytes as an answer of MAAS, as the client does. The fuzz target and the replay
//! of its corpus call it.

use super::classify::{ApiAnswer, CallTarget, Idempotency, RequestContext};
use super::{
    Address, BlockDevice, BootResource, Event, Interface, Machine, ResultSet, Subnet, Tag, Version,
    Whoami,
};
use crate::secret_mask::SecretMask;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;

/// The first two bytes choose the status and the request, the rest is the body. Panics if what is
/// read breaks a promise of the client.
pub fn read_maas_answer(bytes: &[u8]) {
    let Some((head, body)) = bytes.split_at_checked(2) else { return };
    for machine in read_all::<Machine>(body) {
        let known = (machine.is_taken(), machine.serial().map(str::len));
        assert!(known.1 != Some(0), "an empty serial number counts as unknown");
        machine.has_mac("52:54:00:12:34:56");
    }
    read_all::<BlockDevice>(body);
    read_all::<Interface>(body);
    read_all::<Subnet>(body);
    read_all::<Event>(body);
    read_all::<ResultSet>(body);
    read_all::<Tag>(body);
    read_all::<Version>(body);
    for who in read_all::<Whoami>(body) {
        who.administrator_problem();
    }
    for image in read_all::<BootResource>(body) {
        image.image();
    }
    classify(head[0], head[1], body);
}

/// One object or a list of them.
fn read_all<T: DeserializeOwned>(body: &[u8]) -> Vec<T> {
    let one = serde_json::from_slice::<T>(body).ok();
    let many = serde_json::from_slice::<Vec<T>>(body).ok();
    one.into_iter().chain(many.into_iter().flatten()).collect()
}

fn classify(status: u8, request: u8, body: &[u8]) {
    const SECRET: &str = "k3y-of-the-api";
    let Ok(status) = StatusCode::from_u16(100 + u16::from(status) * 2) else { return };
    let Ok(address) = Address::parse("http://10.0.0.5:5240/MAAS") else { return };
    let secret = SECRET.to_string().into();
    let mask = SecretMask::of([&secret]);
    let targets = [CallTarget::Machine, CallTarget::Component, CallTarget::Region];
    let context = RequestContext {
        address: &address,
        method: if request & 1 == 0 { &Method::GET } else { &Method::POST },
        path: "/MAAS/api/2.0/machines/",
        target: targets[usize::from(request >> 4) % targets.len()],
        idempotency: match request & 2 == 0 {
            true => Idempotency::Idempotent,
            false => Idempotency::NotIdempotent,
        },
        powers: request & 4 == 0,
    };
    let retry_after = std::str::from_utf8(&body[..body.len().min(8)]).ok();
    let answer = ApiAnswer { status, retry_after, body };
    let fault = context.refused(answer, &mask);
    context.may_repeat(answer);
    let said = fault.message;
    assert!(!said.contains(['\n', '\x1b', '\0']) && !said.contains(SECRET), "{said:?}");
}
