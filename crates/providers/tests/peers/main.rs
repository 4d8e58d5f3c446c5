//! The providers against peers that speak the real protocols: small scripted ones of our own for what
//! goes wrong, and software nobody here wrote for what goes right.

mod certs;
mod http;
mod redfish_change;
mod redfish_choice;
mod redfish_faults;
mod redfish_identity;
mod redfish_read;
mod sushy;
mod world;
