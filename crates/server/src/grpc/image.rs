//! ImageService: the catalogue of images, and their files.

use super::convert::{initiator, time, word_from};
use super::page::{List, MAX_SIZE, Page, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use crate::netboot::artifacts::UploadError;
use crate::netboot::dhcp::{Network, dnsmasq};
use futures_util::StreamExt;
use model::filter::{Filter, FilterSubject};
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use proto::{v1, words};
use tonic::{Request, Response, Status, Streaming};

const KINDS: &str = "use raw, qcow2, tar, kernel or iso";

#[tonic::async_trait]
impl v1::image_service_server::ImageService for GrpcServices {
    async fn upload_artifact(
        &self,
        request: Request<Streaming<v1::UploadArtifactRequest>>,
    ) -> Answer<v1::Artifact> {
        let mut pieces = request.into_inner();
        let first =
            pieces.message().await?.ok_or_else(|| refusal_status(Refusal::missing("data")))?;
        if !first.sha256.is_empty() {
            model::image::sha256("sha256", &first.sha256).or_status()?;
        }
        let expected = first.sha256.clone();
        let rest = pieces.map(|piece| piece.map(|piece| piece.data));
        let all = futures_util::stream::iter([Ok(first.data)]).chain(rest);
        match self.artifacts.receive(&expected, all).await {
            Ok(taken) => Ok(Response::new(artifact(&taken))),
            Err(UploadError::Refused(refusal)) => Err(refusal_status(refusal)),
            Err(UploadError::Disconnected(status)) => Err(status),
        }
    }

    async fn create_image(&self, request: Request<v1::CreateImageRequest>) -> Answer<v1::Image> {
        let requester = who(&request);
        let requested = request.into_inner().image;
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("image")))?;
        let body = self.body_from(&requested).await.or_status()?;
        let desired = Image { name: requested.name, body, created_at: Timestamp::default() };
        let created = self.engine.images().create(desired, requester).await.or_status()?;
        Ok(Response::new(image(&created)))
    }

    async fn get_image(&self, request: Request<v1::GetImageRequest>) -> Answer<v1::Image> {
        let found = self.engine.images().get(&request.get_ref().name).await.or_status()?;
        Ok(Response::new(image(&found)))
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Image).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Images, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = self.engine.images().list(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let (found, next_page_token) = page.split_page(found.items, |one| &one.name);
        let images = found.iter().map(image).collect();
        Ok(Response::new(v1::ListImagesResponse { images, next_page_token, unreadable_rows }))
    }

    async fn delete_image(&self, request: Request<v1::DeleteImageRequest>) -> Answer<v1::Image> {
        let requester = who(&request);
        let gone =
            self.engine.images().delete(&request.get_ref().name, requester).await.or_status()?;
        for orphan in &gone.orphans {
            self.artifacts.remove(orphan).await;
        }
        Ok(Response::new(image(&gone.image)))
    }

    async fn get_netboot_config(
        &self,
        request: Request<v1::GetNetbootConfigRequest>,
    ) -> Answer<v1::GetNetbootConfigResponse> {
        let v1::GetNetbootConfigRequest { interface, range } = request.into_inner();
        let network = Network { interface, range }.checked().or_status()?;
        let Some(url) = &self.netboot_url else {
            let message = "this server has no netboot service: netboot.listen is not set in its configuration";
            let refusal = Refusal::new(Reason::NetbootOff, message).next("farrier serve --help");
            return Err(refusal_status(refusal));
        };
        let machines = self.all_machines().await?;
        let dnsmasq = dnsmasq(url, &network, &machines);
        Ok(Response::new(v1::GetNetbootConfigResponse { dnsmasq }))
    }
}

impl GrpcServices {
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
