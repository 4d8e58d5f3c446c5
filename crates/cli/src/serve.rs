//! `farrier serve`: the configuration file, overridden by the command line, and the start message.

use crate::args::{ServeArgs, SimSpeed};
use crate::exit::{Exit, Failure, Result};

use server::ServeError;
use server::config::{Config, Speed};
use std::io::Write;

pub async fn run(args: ServeArgs) -> Result<Exit> {
    let (demo, print) = (args.demo, args.print_config);
    let config = build_config(args).map_err(Failure::refused)?;
    if print {
        let text =
            toml::to_string(&config.redacted()).map_err(|error| Failure::bug(error.to_string()))?;
        print_text(text.trim_end());
        return Ok(Exit::Success);
    }
    match server::serve(config, demo, &|config| print_text(&start_message(config, demo))).await {
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
    if let Some(data_dir) = args.data_dir {
        config.data_dir = data_dir;
    }
    if let Some(url) = args.database_url {
        config.database_url = url;
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

/// The start message, with the first commands to try.
fn start_message(config: &Config, demo: bool) -> String {
    let listen = config.listen;
    let store = match config.database_url.is_empty() {
        true => format!("SQLite in {}", config.data_dir.display()),
        false => "PostgreSQL".to_string(),
    };
    let mut screen = format!("Farrier serves gRPC and HTTP on http://{listen}, with {store}.\n");
    if !demo {
        screen
            .push_str("Try `farrier list`, or `farrier serve --demo` for a fleet to play with.\n");
        return screen;
    }
    let binary = std::env::args().next().unwrap_or_else(|| "farrier".into());
    let server = match listen.port() {
        7411 => String::new(),
        _ => format!("    export FARRIER_SERVER=http://{listen}\n"),
    };
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
         operation finish. The console is at http://{listen}/ and Ctrl-C stops in good order.\n",
        std::process::id()
    ));
    screen
}
