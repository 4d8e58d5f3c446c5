//! The commands of `farrier`: the client and the server.
//!
//! A command line becomes an API call, and its result becomes an exit code. This crate has no
//! business rules: the server decides; the client sends requests, prints results and waits.

mod access;
mod admin;
mod agent;
mod approval;
mod args;
mod audit;
mod bmc;
mod client;
mod client_tls;
mod cluster;
mod component;
mod context;
mod credential;
mod db;
mod device;
mod discover;
mod dry_run;
mod exit;
mod filter;
mod firmware;
mod follow;
mod hardware;
mod health;
mod history;
mod host;
mod image;
mod import;
mod logs;
mod machine;
mod node;
mod notify;
mod operation;
mod output;
mod plan;
mod power;
mod power_shelf;
mod rack;
mod secret;
mod serve;
mod sim;
mod site;
mod switch;
mod table;
mod text;
mod time;
mod tls;
mod update;
mod watch;
mod why;

use args::{Cli, ClientCommand, Command, CompletionsArgs};
use clap::{CommandFactory, Parser};
use client::Client;
use context::ConnectionOptions;
use exit::{Exit, Failure};
use output::Screen;
use std::process::ExitCode;

/// The prefix of operation IDs; no other ID starts with it.
const OPERATION_PREFIX: &str = "op-";

/// Carries out the command line of this process.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::report_usage(&error, std::env::args()).into(),
    };
    let format = cli.output;
    let ended = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let ended = runtime.block_on(dispatch(cli));
            // An open stream must not delay the exit.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::bug(format!("cannot start: {error}"))),
    };
    ended
        .map_err(|failure| failure.with_repetition(std::env::args()))
        .unwrap_or_else(|failure| failure.report(format))
        .into()
}

async fn dispatch(cli: Cli) -> Result<Exit, Failure> {
    let mut screen = Screen::stdout(cli.output);
    if cli.dry_run && !matches!(cli.command, Command::Client(_)) {
        return Err(Failure::refused("this command has no dry run; leave --dry-run out"));
    }
    let options = ConnectionOptions {
        context: cli.context.as_deref(),
        server: cli.server.as_deref(),
        token_file: cli.token_file.as_deref(),
        tls: Some(&cli.tls),
        insecure: cli.insecure,
    };
    match cli.command {
        Command::Serve(args) => serve::run(args).await,
        Command::Agent(command) => agent::run(&mut screen, command),
        Command::Tls(command) => tls::run(&mut screen, command),
        Command::Completions(args) => completions(&mut screen, &args),
        Command::Context(command) => context::run(&mut screen, command),
        Command::Login(args) => {
            let options = ConnectionOptions { server: Some(&args.url), ..options };
            let connection = context::connect(&options)?;
            access::login(&mut screen, args, connection).await
        }
        Command::Client(command) => {
            let connection = context::connect(&options)?;
            let client = match command.is_offline() {
                true => Client::new(&connection.server, &connection.tls)?,
                false => Client::open(&connection)?,
            };
            if !cli.dry_run {
                return run_client_command(&client, &mut screen, command).await;
            }
            let client = match command.is_offline() {
                true => client.for_offline_dry_run(),
                false => client.for_dry_run().await?,
            };
            let exit = run_client_command(&client, &mut screen, command).await?;
            screen.print_notice("dry run: nothing was changed")?;
            Ok(exit)
        }
    }
}

async fn run_client_command(
    client: &Client,
    screen: &mut Screen,
    command: ClientCommand,
) -> Result<Exit, Failure> {
    match command {
        ClientCommand::Import(args) => import::run(client, screen, &args).await,
        ClientCommand::List(args) => machine::list(client, screen, &args).await,
        ClientCommand::Get(args) if args.id.starts_with(OPERATION_PREFIX) => {
            operation::get(client, screen, &args.id).await
        }
        ClientCommand::Get(args) => machine::get(client, screen, &args.id).await,
        ClientCommand::Reboot(args) => machine::reboot(client, screen, &args).await,
        ClientCommand::Reimage(args) => machine::reimage(client, screen, &args).await,
        ClientCommand::EnterMaintenance(args) => {
            machine::enter_maintenance(client, screen, &args).await
        }
        ClientCommand::ExitMaintenance(args) => {
            machine::exit_maintenance(client, screen, &args).await
        }
        ClientCommand::Ops(args) => operation::list(client, screen, &args).await,
        ClientCommand::Watch(args) => watch::watch_operations(client, screen, args).await,
        ClientCommand::Logs(args) => logs::print_log(client, screen, args).await,
        ClientCommand::Cancel(args) => operation::cancel(client, screen, &args).await,
        ClientCommand::Plans(args) => plan::list(client, screen, &args).await,
        ClientCommand::Why(args) => match args.id {
            Some(id) => why::explain(client, screen, id).await,
            None => why::list_attention(client, screen).await,
        },
        ClientCommand::History(args) => history::list(client, screen, &args).await,
        ClientCommand::Fault(args) => why::show_fault_page(client, screen, args.code).await,
        ClientCommand::Machine(command) => machine::run(client, screen, command).await,
        ClientCommand::Operation(command) => operation::run(client, screen, command).await,
        ClientCommand::Plan(command) => plan::run(client, screen, command).await,
        ClientCommand::Credential(command) => credential::run(client, screen, command).await,
        ClientCommand::Trust(command) => credential::run_trust(client, screen, command).await,
        ClientCommand::Bmc(command) => bmc::run(client, screen, command).await,
        ClientCommand::Cluster(command) => cluster::run(client, screen, command).await,
        ClientCommand::Discover(args) => discover::run(client, screen, args).await,
        ClientCommand::Health(command) => health::run(client, screen, command).await,
        ClientCommand::Image(command) => image::run(client, screen, command).await,
        ClientCommand::Component(command) => component::run(client, screen, command).await,
        ClientCommand::Firmware(command) => firmware::run(client, screen, command).await,
        ClientCommand::Netboot(command) => image::run_netboot(client, screen, command).await,
        ClientCommand::Switch(command) => switch::run(client, screen, command).await,
        ClientCommand::PowerShelf(command) => power_shelf::run(client, screen, command).await,
        ClientCommand::Rack(command) => rack::run(client, screen, command).await,
        ClientCommand::Node(command) => node::run(client, screen, command).await,
        ClientCommand::Site(command) => site::run(client, screen, command).await,
        ClientCommand::Notify(command) => notify::run(client, screen, command).await,
        ClientCommand::Admin(command) => admin::run(client, screen, command).await,
        ClientCommand::Whoami => access::whoami(client, screen).await,
        ClientCommand::Console => access::console(client, screen).await,
        ClientCommand::Token(command) => access::run_token(client, screen, command).await,
        ClientCommand::Role(command) => access::run_role(client, screen, command).await,
        ClientCommand::Approve(args) => approval::approve(client, screen, args).await,
        ClientCommand::Approval(command) => approval::run(client, screen, command).await,
        ClientCommand::Audit(args) => audit::run(client, screen, args).await,
        ClientCommand::Db(command) => db::run(client, screen, command).await,
        ClientCommand::Secret(command) => secret::run(client, screen, command).await,
        ClientCommand::Sim(command) => sim::run(client, screen, command).await,
    }
}

fn completions(screen: &mut Screen, args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "farrier", &mut script);
    screen.print_raw(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
