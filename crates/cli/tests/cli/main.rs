//! The real binary, from outside: against a scripted server, and as a server with real clients.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod access;
mod access_attacks;
mod access_racks;
mod access_scope;
mod actions;
mod agents;
mod api;
mod api_cli;
mod api_faults;
mod api_filters;
mod api_health;
mod api_http;
mod api_inventory;
mod api_plans;
mod api_start;
mod approvals;
mod audit;
mod audit_cut;
mod audit_log;
mod audit_streams;
mod bodies;
mod client_certificates;
mod cluster;
mod connection_limits;
mod connections;
mod contexts;
mod corpora;
mod crash;
mod credentials;
mod cross_site;
mod deleting;
mod demo;
mod disk_writes;
mod dry_runs;
mod ends;
mod fleet;
mod foreign;
mod frozen;
mod hardware;
mod identity_provider;
mod identity_provider_tls;
mod imaging;
mod ipmi;
mod left_behind;
mod node_commands;
mod nodes;
mod notify;
mod operator;
mod outage;
mod pki;
mod planted;
mod postgres_tls;
mod power_shelves;
mod racks;
mod repairs;
mod replicas;
mod restart;
mod restore;
mod scripted;
mod sign_ins;
mod simulator;
mod sink;
mod stage;
mod steps;
mod tls;
mod transcripts;
mod unreadable;
mod updates;
mod uploads;
mod versions;
mod watching;
