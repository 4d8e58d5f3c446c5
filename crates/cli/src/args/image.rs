//! `farrier image` and `farrier netboot`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Add an image to the catalogue; an image is immutable
    #[command(alias = "add")]
    Create(ImageCreateArgs),
    /// List images
    #[command(
        after_help = "Filters:\n  kind in (raw, qcow2)    raw, qcow2, tar, kernel, iso\n  name"
    )]
    List(FilteredListArgs),
    /// Show one image with its files
    Get(ImageArg),
    /// Delete an image and its files
    Delete(ImageArg),
}

#[derive(Debug, Args)]
pub struct ImageArg {
    /// Name of the image, from `farrier image list`
    pub name: String,
}

const IMAGE_HELP: &str = "\
Examples:
  farrier image create debian-12 --file debian-12-genericcloud-amd64.qcow2
  farrier image create rootfs-7 --file rootfs.tar.zst --kind tar
  farrier image create big --kind raw --url http://10.0.0.2/big.raw --sha256 9f86… --size 42949672960
  farrier image create installer --kernel linux --initrd initrd.gz --cmdline 'auto url={url}/preseed'
  farrier image create rescue --file rescue.iso

Kinds:
  raw     a whole disk                   qcow2   a whole disk in QEMU's format
  tar     the files of a root file system, made bootable during the installation
  kernel  a custom installer, booted over the network
  iso     a disc image, which the BMC attaches as virtual media";

#[derive(Debug, Args)]
#[command(after_help = IMAGE_HELP)]
pub struct ImageCreateArgs {
    /// Name: lower-case letters, digits, dots, dashes and underscores
    pub name: String,
    /// Kind: raw, qcow2, tar, kernel or iso (default: from the file's name)
    #[arg(long)]
    pub kind: Option<String>,
    /// File to upload
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "kernel"], required_unless_present_any = ["url", "kernel"])]
    pub file: Option<PathBuf>,
    /// URL that machines download the file from (http://…), instead of an upload
    #[arg(long, requires = "sha256", requires = "size", conflicts_with = "kernel")]
    pub url: Option<String>,
    /// Expected SHA-256 checksum of the file
    #[arg(long, value_name = "DIGITS")]
    pub sha256: Option<String>,
    /// Size of the file at --url, in bytes
    #[arg(long, value_name = "BYTES", requires = "url")]
    pub size: Option<i64>,
    /// Kernel to upload, for a custom installer
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Initial ramdisk of the kernel
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Kernel command line; {url}, {token}, {mac}, {hostname}, {machine} are replaced
    #[arg(
        long,
        value_name = "WORDS",
        requires = "kernel",
        default_value = "",
        hide_default_value = true
    )]
    pub cmdline: String,
}

#[derive(Debug, Subcommand)]
pub enum NetbootCommand {
    /// Print a dnsmasq configuration that lets machines boot from Farrier
    Config(NetbootConfigArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier netboot config --interface eth1 > /etc/dnsmasq.d/farrier.conf"
)]
pub struct NetbootConfigArgs {
    /// Interface to serve DHCP on (default: all)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub interface: String,
    /// Address range to assign (default: only registered machines get an address)
    #[arg(long, value_name = "FIRST,LAST", default_value = "", hide_default_value = true)]
    pub range: String,
}
