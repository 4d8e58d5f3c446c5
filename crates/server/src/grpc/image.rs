//! ImageService: the catalogue of images, and their files.

use super::GrpcServices;
use super::convert::{initiator, time};
use super::page::{List, MAX_SIZE, Page};
use super::status::{refusal_status, store_error_status};
use crate::netboot::artifacts::UploadError;
use crate::netboot::dhcp::{Network, dnsmasq};
use futures_util::StreamExt;
use model::filter::Filter;
use model::image::{Artifact, Body, DiskFormat, Image};
use model::refusal::Refusal;
use model::run::act::Who;
use model::time::Timestamp;
use proto::v1;
use tonic::{Request, Response, Status, Streaming};

type Answer<T> = Result<Response<T>, Status>;

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
            model::image::sha256("sha256", &first.sha256).map_err(refusal_status)?;
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

    async fn add_image(&self, request: Request<v1::AddImageRequest>) -> Answer<v1::Image> {
        let who = who(&request);
        let asked = request.into_inner().image;
        let asked = asked.ok_or_else(|| refusal_status(Refusal::missing("image")))?;
        let body = self.body_from(&asked).await.map_err(refusal_status)?;
        let wanted = Image { name: asked.name, body, created_at: Timestamp::default() };
        let added = self.engine.images().add(wanted, who).await.map_err(store_error_status)?;
        Ok(Response::new(image(&added)))
    }

    async fn get_image(&self, request: Request<v1::GetImageRequest>) -> Answer<v1::Image> {
        let found =
            self.engine.images().get(&request.get_ref().name).await.map_err(store_error_status)?;
        Ok(Response::new(image(&found)))
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let asked = request.into_inner();
        let page = Page::new(List::Images, "", asked.page_size, &asked.page_token)
            .map_err(refusal_status)?;
        let found = self
            .engine
            .images()
            .list(page.after(), page.size + 1)
            .await
            .map_err(store_error_status)?;
        let (found, next_page_token) = page.split_page(found, |one| &one.name);
        let images = found.iter().map(image).collect();
        Ok(Response::new(v1::ListImagesResponse { images, next_page_token }))
    }

    async fn delete_image(&self, request: Request<v1::DeleteImageRequest>) -> Answer<v1::Image> {
        let who = who(&request);
        let gone = self
            .engine
            .images()
            .delete(&request.get_ref().name, who)
            .await
            .map_err(store_error_status)?;
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
        let network = Network { interface, range }.checked().map_err(refusal_status)?;
        let Some(url) = &self.netboot_url else {
            let said = "this server has no netboot service: netboot.listen is not set in its configuration";
            let refusal = Refusal::precondition("NETBOOT_OFF", said).next("farrier serve --help");
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
            let page = page.map_err(store_error_status)?;
            machines.extend(page.machines);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(machines),
            }
        }
    }

    /// The content of an image. A file without a URL must be in the artifact store, which knows its
    /// size.
    async fn body_from(&self, asked: &v1::Image) -> Result<Body, Refusal> {
        let empty = |field: &str, given: bool| match given {
            true => {
                let problem = format!("does not belong to an image of kind {:?}", asked.kind);
                Err(Refusal::invalid(field, problem, "leave it out"))
            }
            false => Ok(()),
        };
        match asked.kind.as_str() {
            "" => Err(Refusal::invalid("image.kind", "is missing", KINDS)),
            "kernel" => {
                empty("image.file", asked.file.is_some())?;
                let kernel = self.artifact_from("image.kernel", asked.kernel.as_ref()).await?;
                let initrd = match &asked.initrd {
                    None => None,
                    Some(initrd) => Some(self.artifact_from("image.initrd", Some(initrd)).await?),
                };
                Ok(Body::Kernel { kernel, initrd, cmdline: asked.cmdline.clone() })
            }
            kind => {
                let format = DiskFormat::parse(kind);
                if format.is_none() && kind != "iso" {
                    return Err(Refusal::invalid("image.kind", format!("is {kind:?}"), KINDS));
                }
                empty("image.kernel", asked.kernel.is_some())?;
                empty("image.initrd", asked.initrd.is_some())?;
                empty("image.cmdline", !asked.cmdline.is_empty())?;
                let file = self.artifact_from("image.file", asked.file.as_ref()).await?;
                Ok(match format {
                    Some(format) => Body::Disk { format, file },
                    None => Body::Iso { file },
                })
            }
        }
    }

    async fn artifact_from(
        &self,
        field: &str,
        asked: Option<&v1::Artifact>,
    ) -> Result<Artifact, Refusal> {
        let asked = asked.ok_or_else(|| Refusal::missing(field))?;
        if asked.url.is_empty() {
            return self.artifacts.find(field, &asked.sha256).await;
        }
        let size = u64::try_from(asked.size).unwrap_or_default();
        let url = Some(asked.url.clone());
        Ok(Artifact { sha256: asked.sha256.clone(), size, url })
    }
}

fn who<T>(request: &Request<T>) -> Who {
    Who { by: initiator(request.metadata()), reason: String::new() }
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
        Body::Disk { file: one, .. } | Body::Iso { file: one } => file = Some(artifact(one)),
        Body::Kernel { kernel: one, initrd: two, cmdline: words } => {
            kernel = Some(artifact(one));
            initrd = two.as_ref().map(artifact);
            cmdline.clone_from(words);
        }
    }
    v1::Image {
        name: image.name.clone(),
        kind: image.body.kind().into(),
        file,
        kernel,
        initrd,
        cmdline,
        created_at: Some(time(image.created_at)),
    }
}
