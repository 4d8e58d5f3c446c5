//! The adapters to hardware and to other systems.
//!
//! A [`Provider`] executes provider calls on real or simulated hardware and returns an answer or a
//! fault. It never sees the database, never retries and never decides. Dropping the future of
//! [`Provider::call`] must be safe at any await: the work continues under its effect key, and a
//! later `GetStatus` reads its outcome.

pub mod bmc_discovery;
pub mod clock;
pub mod cluster_check;
mod connect;
pub mod datacenter;
pub mod fabric;
mod fault;
pub mod fetch;
pub mod governor;
mod host_probe;
pub mod http_client;
pub mod identity_provider;
pub mod inspect;
pub mod ipmi;
pub mod kubernetes;
pub mod maas;
pub mod peer_login;
pub mod pin;
pub mod port;
pub mod power;
pub mod redfish;
mod secret_mask;
pub mod sim;
pub mod ssh;
pub mod state_store;
pub mod webhook;

pub use port::{
    Journal, LogOutput, Provider, Providers, SiteNode, SiteObservation, Stream, Target,
    UpstreamMachine,
};
