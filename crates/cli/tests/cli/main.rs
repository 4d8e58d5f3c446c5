//! The real binary, from outside: against a scripted server, and as a server with real clients.

mod actions;
mod api;
mod api_cli;
mod api_faults;
mod api_filters;
mod api_http;
mod api_inventory;
mod api_plans;
mod api_start;
mod audit;
mod cluster;
mod connections;
mod crash;
mod fleet;
mod foreign;
mod frozen;
mod hardware;
mod ipmi;
mod outage;
mod replicas;
mod restart;
mod scripted;
mod stage;
mod watching;
