//! The first administrator's token: made once, into a file that only its owner can read.
//!
//! The file is written before the database knows the token, so a crash between the two loses
//! nothing: the next start takes the token from the file.

use crate::private_files::create_whole;
use crate::serve::ServeError;
use engine::access::{AccessControl, Bootstrap, new_secret};
use model::access::{TOKEN_PREFIX, TokenKind};
use secrecy::{ExposeSecret, SecretString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The name of the file in the data directory.
const FILE: &str = "admin.token";
/// The shortest token that an operator may choose.
const MIN_TOKEN_BYTES: usize = 32;

/// The administrator's token of this server, if it has one.
pub(crate) struct AdminToken {
    pub path: PathBuf,
    pub secret: SecretString,
}

/// Makes sure that an administrator exists. `chosen` is the operator's own file; none: the file in
/// the data directory. None: the administrator's token is elsewhere, with another replica.
pub(crate) async fn ensure_administrator(
    access: &AccessControl,
    data_dir: &Path,
    chosen: Option<&Path>,
) -> Result<Option<AdminToken>, ServeError> {
    let path = chosen.map_or_else(|| data_dir.join(FILE), Path::to_path_buf);
    let wrong = |message: String| {
        ServeError::Refused(format!("the token file {}: {message}", path.display()))
    };
    let (secret, created) = match fs::read_to_string(&path) {
        Ok(text) => (check_token(&text).map_err(wrong)?, false),
        Err(error) if error.kind() == ErrorKind::NotFound && chosen.is_none() => {
            let secret = new_secret(TokenKind::Api);
            let line = format!("{}\n", secret.expose_secret());
            create_whole(&path, line.as_bytes()).map_err(|error| wrong(error.to_string()))?;
            (secret, true)
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    match access.bootstrap(&secret).await? {
        Bootstrap::Created | Bootstrap::Known => Ok(Some(AdminToken { path, secret })),
        Bootstrap::Foreign => {
            if created {
                let _ = fs::remove_file(&path);
            } else {
                let path = path.display();
                tracing::warn!(%path, "the token in this file is not known, or was revoked");
            }
            Ok(None)
        }
    }
}

fn check_token(text: &str) -> Result<SecretString, String> {
    let text = text.trim();
    if text.len() < MIN_TOKEN_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "holds no token; write {MIN_TOKEN_BYTES} or more random characters, such as \
             {TOKEN_PREFIX} and 64 hexadecimal digits"
        ));
    }
    Ok(text.to_string().into())
}
