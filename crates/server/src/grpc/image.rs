//! ImageService: the catalogue of images, and their files.

use super::convert::{initiator, time, word_from};
use super::page::{List, MAX_SIZE, Page, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::{Answer, Call, GrpcServices};
use crate::netboot::artifacts::{Upload, UploadError};
use crate::netboot::dhcp::{Network, dnsmasq};
use futures_util::{FutureExt, StreamExt, stream};
use model::access::{Permission, unauthenticated};
use model::filter::{Filter, FilterSubject};
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use proto::{v1, words};
use std::collections::BTreeSet;
use std::task::Poll;
use tonic::{Request, Response, Status, Streaming};

const KINDS: &str = "use raw, qcow2, tar, kernel or iso";

#[tonic::async_trait]
impl v1::image_service_server::ImageService for GrpcServices {
    async fn upload_artifact(
        &self,
        request: Request<Streaming<v1::UploadArtifactRequest>>,
    ) -> Answer<v1::Artifact> {
        let call = self.call_stream(&request)?;
        let revoked = call.access.clone().until_revoked(call.caller().clone(), Permission::Execute);
        let (mut revoked, mut pieces) = (Box::pin(revoked.fuse()), request.into_inner());
        // An upload ends with the right to it, as a stream of answers does.
        let mut pieces = stream::poll_fn(move |context| match revoked.as_mut().poll(context) {
            Poll::Ready(()) => {
                let ended = unauthenticated("the token or certificate was revoked or has expired");
                Poll::Ready(Some(Err(refusal_status(ended))))
            }
            Poll::Pending => pieces.poll_next_unpin(context),
        });
        let first = pieces.next().await.transpose()?;
        let first = first.ok_or_else(|| refusal_status(Refusal::missing("data")))?;
        if !first.sha256.is_empty() {
            model::image::sha256("sha256", &first.sha256).or_status()?;
        }
        let size = declared_size(first.size).or_status()?;
        let upload = call.reserve_space(size).await?;
        let expected = first.sha256.clone();
        let rest = pieces.map(|piece| piece.map(|piece| piece.data));
        let all = stream::iter([Ok(first.data)]).chain(rest);
        match call.artifacts.receive(upload, &expected, all).await {
            Ok(taken) => Ok(Response::new(artifact(&taken))),
            Err(UploadError::Refused(refusal)) => Err(refusal_status(refusal)),
            Err(UploadError::Disconnected(status)) => Err(status),
        }
    }

    async fn create_image(&self, request: Request<v1::CreateImageRequest>) -> Answer<v1::Image> {
        let call = self.call(&request).await?;
        let requester = who(&request);
        let v1::CreateImageRequest { image: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("image")))?;
        let body = call.body_from(&requested).await.or_status()?;
        let desired = Image { name: requested.name, body, created_at: Timestamp::default() };
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.images().create(desired, requester).await.or_status()?;
        Ok(Response::new(image(&created)))
    }

    async fn get_image(&self, request: Request<v1::GetImageRequest>) -> Answer<v1::Image> {
        let call = self.call(&request).await?;
        let found = call.engine.images().get(&request.get_ref().name).await.or_status()?;
        Ok(Response::new(image(&found)))
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Image).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Images, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.images().list(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let (found, next_page_token) = page.split_page(found.items, |one| &one.name);
        let images = found.iter().map(image).collect();
        Ok(Response::new(v1::ListImagesResponse { images, next_page_token, unreadable_rows }))
    }

    async fn delete_image(&self, request: Request<v1::DeleteImageRequest>) -> Answer<v1::Image> {
        let call = self.call(&request).await?;
        let requester = who(&request);
        let v1::DeleteImageRequest { name, dry_run } = request.get_ref();
        let engine = call.engine.with_dry_run(*dry_run);
        let gone = engine.images().delete(name, requester).await.or_status()?;
        for orphan in gone.orphans.iter().filter(|_| !dry_run) {
            call.artifacts.remove(orphan).await;
        }
        Ok(Response::new(image(&gone.image)))
    }

    async fn get_netboot_config(
        &self,
        request: Request<v1::GetNetbootConfigRequest>,
    ) -> Answer<v1::GetNetbootConfigResponse> {
        let call = self.call(&request).await?;
        let v1::GetNetbootConfigRequest { interface, range } = request.into_inner();
        let network = Network { interface, range }.checked().or_status()?;
        let Some(url) = &call.netboot_url else {
            let message = "this server has no netboot service: netboot.listen is not set in its configuration";
            let refusal = Refusal::new(Reason::NetbootOff, message).next("farrier serve --help");
            return Err(refusal_status(refusal));
        };
        let machines = call.all_machines().await?;
        let dnsmasq = dnsmasq(url, &network, &machines);
        Ok(Response::new(v1::GetNetbootConfigResponse { dnsmasq }))
    }
}

impl Call {
    /// Reserves the space of a file. Files that no image uses make room for it.
    async fn reserve_space(&self, size: u64) -> Result<Upload, Status> {
        match self.artifacts.reserve(size).await {
            Err(refusal) if refusal.reason == Reason::NoRoom => {}
            reserved => return reserved.or_status(),
        }
        if let Some(used) = self.used_artifacts().await? {
            self.artifacts.remove_unused(used).await.or_status()?;
        }
        self.artifacts.reserve(size).await.or_status()
    }

    /// The checksums that images name; None: an image is unreadable and may name any.
    async fn used_artifacts(&self) -> Result<Option<BTreeSet<String>>, Status> {
        let mut used = BTreeSet::new();
        let mut after = String::new();
        loop {
            let listed = self.engine.images().list(Filter::default(), &after, MAX_SIZE).await;
            let page = listed.or_status()?;
            if !page.unreadable.is_empty() {
                return Ok(None);
            }
            let Some(last) = page.items.last() else { return Ok(Some(used)) };
            after.clone_from(&last.name);
            let files = page.items.iter().flat_map(|image| image.body.artifacts());
            used.extend(files.map(|file| file.sha256.clone()));
        }
    }

    async fn all_machines(&self) -> Result<Vec<model::machine::Machine>, Status> {
        let mut machines = Vec::new();
        let mut after = None;
        loop {
            let page = self.engine.machines().list(Filter::default(), after, MAX_SIZE).await;
            let page = page.or_status()?;
            machines.extend(page.machines);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(machines),
            }
        }
    }

    /// The content of an image. A file without a URL must be in the artifact store, which knows its
    /// size.
    async fn body_from(&self, requested: &v1::Image) -> Result<ImageContent, Refusal> {
        let kind = word_from::<v1::ImageKind>("image.kind", requested.kind)?;
        let kind = kind.ok_or_else(|| Refusal::invalid("image.kind", "is missing", KINDS))?;
        let empty = |field: &str, given: bool| match given {
            true => {
                let problem = format!("does not belong to an image of kind {kind:?}");
                Err(Refusal::invalid(field, problem, "leave it out"))
            }
            false => Ok(()),
        };
        match kind {
            "kernel" => {
                empty("image.file", requested.file.is_some())?;
                let kernel = self.artifact_from("image.kernel", requested.kernel.as_ref()).await?;
                let initrd = match &requested.initrd {
                    None => None,
                    Some(initrd) => Some(self.artifact_from("image.initrd", Some(initrd)).await?),
                };
                Ok(ImageContent::Kernel { kernel, initrd, cmdline: requested.cmdline.clone() })
            }
            kind => {
                empty("image.kernel", requested.kernel.is_some())?;
                empty("image.initrd", requested.initrd.is_some())?;
                empty("image.cmdline", !requested.cmdline.is_empty())?;
                let file = self.artifact_from("image.file", requested.file.as_ref()).await?;
                Ok(match DiskFormat::parse(kind) {
                    Some(format) => ImageContent::Disk { format, file },
                    None => ImageContent::Iso { file },
                })
            }
        }
    }

    async fn artifact_from(
        &self,
        field: &str,
        requested: Option<&v1::Artifact>,
    ) -> Result<Artifact, Refusal> {
        let requested = requested.ok_or_else(|| Refusal::missing(field))?;
        if requested.url.is_empty() {
            return self.artifacts.find(field, &requested.sha256).await;
        }
        let size = u64::try_from(requested.size).unwrap_or_default();
        let url = Some(requested.url.clone());
        Ok(Artifact { sha256: requested.sha256.clone(), size, url })
    }
}

/// The size that the first message of an upload names.
fn declared_size(size: i64) -> Result<u64, Refusal> {
    u64::try_from(size).ok().filter(|size| *size > 0).ok_or_else(|| {
        let instead = "send the size of the whole file, in bytes, in the first message";
        Refusal::invalid("size", format!("is {size}"), instead)
    })
}

fn who<T>(request: &Request<T>) -> Requester {
    Requester { by: initiator(request.metadata()), reason: String::new() }
}

fn artifact(file: &Artifact) -> v1::Artifact {
    v1::Artifact {
        sha256: file.sha256.clone(),
        size: i64::try_from(file.size).unwrap_or(i64::MAX),
        url: file.url.clone().unwrap_or_default(),
    }
}

fn image(image: &Image) -> v1::Image {
    let (mut file, mut kernel, mut initrd, mut cmdline) = (None, None, None, String::new());
    match &image.body {
        ImageContent::Disk { file: one, .. } | ImageContent::Iso { file: one } => {
            file = Some(artifact(one))
        }
        ImageContent::Kernel { kernel: one, initrd: two, cmdline: words } => {
            kernel = Some(artifact(one));
            initrd = two.as_ref().map(artifact);
            cmdline.clone_from(words);
        }
    }
    v1::Image {
        name: image.name.clone(),
        kind: words::value::<v1::ImageKind>(image.body.kind()),
        file,
        kernel,
        initrd,
        cmdline,
        created_at: Some(time(image.created_at)),
    }
}
