//! `farrier serve`: the configuration file, overridden by the command line, and the start message.

use crate::args::{ServeArgs, SimSpeed};
use crate::context::{LOCAL, remember_local};
use crate::exit::{Exit, Failure, Result, eprintln_quietly};

use server::config::{Config, Speed};
use server::{Listening, ServeError};
use std::io::{IsTerminal, Write};
use std::net::IpAddr;
use std::path::Path;

pub async fn run(args: ServeArgs) -> Result<Exit> {
    let (demo, print) = (args.demo, args.print_config);
    let config = build_config(args).map_err(Failure::refused)?;
    if print {
        let text =
            toml::to_string(&config.redacted()).map_err(|error| Failure::bug(error.to_string()))?;
        print_text(text.trim_end());
        return Ok(Exit::Success);
    }
    match server::serve(config, demo, &|started| print_text(&start_message(started, demo))).await {
        Ok(()) => Ok(Exit::Success),
        Err(ServeError::Refused(message)) => Err(Failure::refused(message)),
        Err(ServeError::Unavailable(message)) => Err(Failure::new(Exit::Unreachable, message)),
    }
}

/// Prints to stdout. Errors are ignored: a closed stdout must not stop the server.
fn print_text(screen: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{screen}").and_then(|()| stdout.flush());
}

fn build_config(args: ServeArgs) -> Result<Config, String> {
    let mut config = match &args.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    config.insecure |= args.insecure;
    if let Some(data_dir) = args.data_dir {
        config.data_dir = data_dir;
    }
    if let Some(url) = args.database_url {
        config.database_url = url.into();
    }
    if let Some(name) = args.replica_name {
        config.replica_name = name;
    }
    if let Some(count) = args.simulate {
        config.sim.machines = count as usize;
    }
    config.sim.enabled |= args.demo || args.simulate.is_some();
    if let Some(speed) = args.sim_speed {
        config.sim.speed = match speed {
            SimSpeed::Zero => Speed::Zero,
            SimSpeed::Fast => Speed::Fast,
            SimSpeed::Human => Speed::Human,
        };
    }
    if args.demo {
        // Frequent probes make changes visible during a demo.
        config.probes.interval_ms = config.probes.interval_ms.min(10_000);
    }
    config.check()?;
    Ok(config)
}

/// Remembers the server for the next commands of this user. Returns another context that is
/// current. A failure must not stop the server.
fn remember(started: &Listening, token_file: &Path) -> Option<String> {
    let mut reached = started.config.clone();
    if reached.listen.ip().is_unspecified() {
        reached.listen.set_ip(IpAddr::from([127, 0, 0, 1]));
    }
    let server = reached.url();
    match remember_local(&server, token_file, started.server_ca()) {
        Ok(other) => other,
        Err(failure) => {
            eprintln_quietly(&format!("the context {LOCAL} was not written: {}", failure.message));
            None
        }
    }
}

/// The start message, with the first commands to try.
fn start_message(started: &Listening, demo: bool) -> String {
    let Listening { config, admin_token, sign_in } = started;
    let store = match config.database_url.is_empty() {
        true => format!("SQLite in {}", config.data_dir.display()),
        false => "PostgreSQL".to_string(),
    };
    let url = config.url();
    let mut screen = format!("Farrier serves gRPC and HTTP on {url}, with {store}.\n");
    for warning in config.exposure_warnings() {
        screen.push_str(&format!("WARNING: {warning}.\n"));
    }
    let other = admin_token.as_ref().and_then(|path| remember(started, path));
    match sign_in {
        // The journal of a service is read by others.
        Some(path) if std::io::stdout().is_terminal() => {
            screen.push_str(&format!("Console, signed in (this link works once): {url}{path}\n"));
        }
        Some(_) => screen.push_str("`farrier console` prints a link that signs a browser in.\n"),
        None => {}
    }
    if !demo {
        screen
            .push_str("Try `farrier list`, or `farrier serve --demo` for a fleet to play with.\n");
        return screen;
    }
    let binary = std::env::args().next().unwrap_or_else(|| "farrier".into());
    let server = other.map_or_else(String::new, |other| {
        format!("    farrier context use {LOCAL}                    # {other} is current\n")
    });
    screen.push_str(&format!(
        "\nA simulated datacenter is up: 2 racks, 36 machines, 4 of them GPU nodes. In another terminal:\n\n\
         \x20   alias farrier={binary}\n{server}\
         \x20   farrier rack list                             # on the first start, until both are Ready\n\
         \x20   farrier list                                  # the fleet\n\
         \x20   farrier enter-maintenance r1-m01              # the safety gate\n\
         \x20   farrier reimage r1-m01 --image ubuntu-2204    # steps and logs, live\n\
         \x20   farrier exit-maintenance r1-m01\n\
         \x20   farrier why r1-m01                            # why, and what to type now\n\
         \x20   farrier node list                             # and what else there is\n\n\
         Kill this server in the middle of the reimage (kill -9 {}), start it again, and watch the\n\
         operation finish. Ctrl-C stops in good order.\n",
        std::process::id()
    ));
    screen
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::config::Tls;

    fn started(config: &Config) -> Listening {
        Listening { config: config.clone(), admin_token: None, sign_in: None }
    }

    #[test]
    fn a_listener_without_tls_is_on_the_first_screen() {
        let listen = "10.0.0.7:7411".parse().unwrap();
        let open = Config { listen, insecure: true, ..Config::default() };
        let screen = start_message(&started(&open), false);
        assert!(screen.contains("WARNING: insecure: listen 10.0.0.7:7411 has no TLS"), "{screen}");
        assert!(screen.contains("http://10.0.0.7:7411"), "{screen}");
        let tls = Tls { certificate: "c".into(), key: "k".into(), ..Tls::default() };
        for safe in [Config { tls, ..open }, Config::default()] {
            let screen = start_message(&started(&safe), true);
            assert!(!screen.contains("WARNING"), "{screen}");
            assert!(screen.contains(&safe.url()), "{screen}");
        }
    }
}
