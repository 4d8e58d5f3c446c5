//! `--dry-run`: a command under it sends no call that could act.
//!
//! A server that does not know the field `dry_run` of a request would ignore it and act. So the
//! server is asked for its descriptors first, and every call is compared with them before it is
//! sent.

use crate::client::Client;
use crate::exit::{Failure, Result};
use futures_util::stream;
use proto::calls::{Calls, WITHOUT_DRY_RUN};
use proto::{FileDescriptorProto, Message};
use std::collections::BTreeSet;
use tonic::{GrpcMethod, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// Refuses calls that could act. See the module.
#[derive(Debug)]
pub struct DryRunGuard {
    server: String,
    own: Calls,
    of_server: Calls,
}

impl DryRunGuard {
    /// Reads the descriptors of the server.
    pub async fn of_server(client: &Client, server: &str) -> Result<Self> {
        let own = Calls::own();
        let services: BTreeSet<&str> =
            own.acting.iter().filter_map(|call| Some(call.split_once('/')?.0)).collect();
        let requests: Vec<_> = services.into_iter().map(descriptor_request).collect();
        let stream = stream::iter(requests);
        let mut answers = client.call(client.reflection().server_reflection_info(stream)).await?;
        let mut files = Vec::new();
        while let Some(answer) = answers.message().await.map_err(|status| client.failure(status))? {
            // A server without the service answers with an error: it has none of its calls.
            if let Some(MessageResponse::FileDescriptorResponse(found)) = answer.message_response {
                files.extend(found.file_descriptor_proto);
            }
        }
        let files: Vec<_> = files
            .iter()
            .map(|file| FileDescriptorProto::decode(file.as_slice()))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::bug(format!("the descriptors of the server: {error}")))?;
        Ok(Self { server: server.into(), own, of_server: Calls::of_files(&files) })
    }

    /// Refuses every call that acts: no server was asked.
    pub fn offline(server: &str) -> Self {
        Self { server: server.into(), own: Calls::own(), of_server: Calls::default() }
    }

    pub fn check(&self, method: Option<&GrpcMethod<'_>>) -> Result<(), Status> {
        let Some(method) = method else { return Ok(()) };
        let call = format!("{}/{}", method.service(), method.method());
        if !self.own.acting.contains(&call) {
            return Ok(());
        }
        let name = method.method();
        if let Some((_, reason)) = WITHOUT_DRY_RUN.iter().find(|(without, _)| *without == call) {
            return Err(Status::failed_precondition(format!(
                "{name} has no dry run: {reason}; nothing was sent; leave --dry-run out"
            )));
        }
        if !self.of_server.with_dry_run.contains(&call) {
            return Err(Status::failed_precondition(format!(
                "the server at {} is older than this command and has no dry run of {name}: it would act; nothing was sent; upgrade the server, or leave --dry-run out",
                self.server
            )));
        }
        Ok(())
    }
}

fn descriptor_request(service: &str) -> ServerReflectionRequest {
    let message_request = Some(MessageRequest::FileContainingSymbol(service.into()));
    ServerReflectionRequest { host: String::new(), message_request }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_the_server_would_carry_out_is_not_sent() {
        let own = Calls::own();
        let mut of_server = own.clone();
        of_server.with_dry_run.remove("farrier.v1.MachineService/RebootMachine");
        let guard = DryRunGuard { server: "http://old:7411".into(), own, of_server };
        let check = |service, method| {
            guard.check(Some(&GrpcMethod::new(service, method))).map_err(|status| {
                assert_eq!(status.code(), tonic::Code::FailedPrecondition);
                status.message().to_string()
            })
        };
        assert_eq!(check("farrier.v1.MachineService", "ReimageMachine"), Ok(()));
        assert_eq!(check("farrier.v1.MachineService", "ListMachines"), Ok(()));
        let older = check("farrier.v1.MachineService", "RebootMachine").unwrap_err();
        assert!(older.contains("http://old:7411 is older"), "{older}");
        let without = check("farrier.v1.SimulatorService", "CreateFault").unwrap_err();
        assert!(without.contains("changes only the simulator"), "{without}");
    }
}
