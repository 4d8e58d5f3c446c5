//! `farrier image` and `farrier netboot`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Put an image into the catalogue; one never changes afterwards
    Add(ImageAddArgs),
    /// List images
    List,
    /// Show one image with its files
    Get(ImageArg),
    /// Take an image out of the catalogue, and remove its files
    Delete(ImageArg),
}

#[derive(Debug, Args)]
pub struct ImageArg {
    /// The image, as `farrier image list` names it
    pub name: String,
}

const IMAGE_HELP: &str = "\
Examples:
  farrier image add debian-12 --file debian-12-genericcloud-amd64.qcow2
  farrier image add rootfs-7 --file rootfs.tar.zst --kind tar
  farrier image add big --kind raw --url http://10.0.0.2/big.raw --sha256 9f86… --size 42949672960
  farrier image add installer --kernel linux --initrd initrd.gz --cmdline 'auto url={url}/preseed'
  farrier image add rescue --file rescue.iso

Kinds:
  raw     a whole disk                   qcow2   a whole disk, as QEMU keeps it
  tar     the files of a root file system, made bootable when they are installed
  kernel  an installer of your own, booted over the network
  iso     a disc that the BMC shows to the machine";

#[derive(Debug, Args)]
#[command(after_help = IMAGE_HELP)]
pub struct ImageAddArgs {
    /// Lower-case letters, digits, dots, dashes and underscores
    pub name: String,
    /// raw, qcow2, tar, kernel or iso; seen from the file's name when not given
    #[arg(long)]
    pub kind: Option<String>,
    /// The file to upload
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "kernel"], required_unless_present_any = ["url", "kernel"])]
    pub file: Option<PathBuf>,
    /// Where machines fetch the file themselves (http://…), instead of uploading it
    #[arg(long, requires = "sha256", requires = "size", conflicts_with = "kernel")]
    pub url: Option<String>,
    /// The checksum that the file must have
    #[arg(long, value_name = "DIGITS")]
    pub sha256: Option<String>,
    /// The size of the file behind --url, in bytes
    #[arg(long, value_name = "BYTES", requires = "url")]
    pub size: Option<i64>,
    /// The kernel to upload, for an installer of your own
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Its ramdisk
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Its command line; {url}, {token}, {mac}, {hostname} and {machine} are filled in
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
    /// Print the configuration for dnsmasq, so that machines find Farrier when they boot
    Config(NetbootConfigArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier netboot config --interface eth1 > /etc/dnsmasq.d/farrier.conf"
)]
pub struct NetbootConfigArgs {
    /// The interface that DHCP is served on; all of them when not given
    #[arg(long, default_value = "", hide_default_value = true)]
    pub interface: String,
    /// The addresses to give out; only registered machines get one when not given
    #[arg(long, value_name = "FIRST,LAST", default_value = "", hide_default_value = true)]
    pub range: String,
}
