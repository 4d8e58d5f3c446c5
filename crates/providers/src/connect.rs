//! TCP connections to peers that get a secret: a name is resolved first, and only the addresses
//! that the binding of the credential allows are connected to.

use model::credential::{AllowedAddresses, Peer};
use model::fault::Fault;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpStream, lookup_host};

/// The reason why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Io(io::Error),
    /// None of the addresses may be connected to.
    NotAllowed(Fault),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The addresses of a peer that may be connected to.
pub(crate) async fn resolve(
    peer: &Peer,
    allowed: &AllowedAddresses,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = lookup_host((peer.host.as_str(), peer.port)).await?;
    let found: Vec<SocketAddr> = found.filter(|one| allowed.contains(one.ip())).collect();
    match found.is_empty() {
        true => Err(ConnectError::NotAllowed(AllowedAddresses::fault(peer))),
        false => Ok(found),
    }
}

pub(crate) async fn connect(
    peer: &Peer,
    allowed: &AllowedAddresses,
) -> Result<TcpStream, ConnectError> {
    match allowed {
        AllowedAddresses::Any => Ok(TcpStream::connect((peer.host.as_str(), peer.port)).await?),
        AllowedAddresses::Within(_) => {
            Ok(TcpStream::connect(resolve(peer, allowed).await?.as_slice()).await?)
        }
    }
}
