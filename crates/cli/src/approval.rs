//! `farrier approve` and `farrier approval`: requests that need a second person.

use crate::access::{permission_from, permission_words};
use crate::args::{
    ApprovalCommand, ApprovalDecisionArgs, ApprovalIdArg, ApprovalListArgs, ApprovalPolicyArgs,
    ApprovalPolicyCommand,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    Approval, ApprovalPolicy, ApprovalState, DenyApprovalRequest, GetApprovalPolicyRequest,
    GetApprovalRequest, GrantApprovalRequest, ListApprovalsRequest, UpdateApprovalPolicyRequest,
};
use proto::words::{self, WireEnum};

pub async fn run(client: &Client, screen: &mut Screen, command: ApprovalCommand) -> Result<Exit> {
    match command {
        ApprovalCommand::List(args) => list(client, screen, &args).await,
        ApprovalCommand::Get(ApprovalIdArg { approval_id }) => {
            let request = GetApprovalRequest { approval_id };
            let found = client.call(client.approvals().get_approval(request)).await?;
            screen.print_record(&found, |found| describe(found, &Clock::system()))?;
            Ok(Exit::Success)
        }
        ApprovalCommand::Approve(args) => approve(client, screen, args).await,
        ApprovalCommand::Deny(ApprovalDecisionArgs { approval_id, comment }) => {
            let dry_run = client.is_dry_run();
            let request = DenyApprovalRequest { approval_id, comment, dry_run };
            let done = client.call(client.approvals().deny_approval(request)).await?;
            print_decision(client, screen, &done)
        }
        ApprovalCommand::Policy(command) => run_policy(client, screen, command).await,
    }
}

pub async fn approve(
    client: &Client,
    screen: &mut Screen,
    args: ApprovalDecisionArgs,
) -> Result<Exit> {
    let ApprovalDecisionArgs { approval_id, comment } = args;
    let request = GrantApprovalRequest { approval_id, comment, dry_run: client.is_dry_run() };
    let done = client.call(client.approvals().grant_approval(request)).await?;
    print_decision(client, screen, &done)
}

fn print_decision(client: &Client, screen: &mut Screen, done: &Approval) -> Result<Exit> {
    let state = client.outcome(done.state().word());
    screen.print_record(done, |done| {
        let requester = one_line(&done.requester);
        let head = format!(
            "{}: {state} ({}, requested by {requester})\n",
            one_line(&done.approval_id),
            what(done)
        );
        match (done.state(), done.request_id.as_str()) {
            (ApprovalState::Approved, "") => {
                format!("{head}{requester} can repeat the request now.\n")
            }
            (ApprovalState::Approved, id) => {
                let id = one_line(id);
                format!("{head}{requester} can repeat the request now, with --request-id {id}\n")
            }
            (
                ApprovalState::Unspecified
                | ApprovalState::Pending
                | ApprovalState::Denied
                | ApprovalState::Used
                | ApprovalState::Expired
                | ApprovalState::BreakGlass
                | ApprovalState::Reviewed,
                _,
            ) => head,
        }
    })?;
    Ok(Exit::Success)
}

/// The request in a few words.
fn what(approval: &Approval) -> String {
    let request = one_line(&approval.request);
    match approval.target_ids.as_slice() {
        [] => request.into_owned(),
        [one] => format!("{request} on {}", one_line(one)),
        [first, others @ ..] => {
            format!("{request} on {} and {} others", one_line(first), others.len())
        }
    }
}

async fn list(client: &Client, screen: &mut Screen, args: &ApprovalListArgs) -> Result<Exit> {
    let approvals = fetch_pages(Some(args.limit), async |page_size, page_token| {
        let request = ListApprovalsRequest { include_closed: args.all, page_size, page_token };
        let answer = client.call(client.approvals().list_approvals(request)).await?;
        Ok((answer.approvals, answer.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.print_list(&approvals, |found, _| table(found, &clock), "no approvals")?;
    Ok(Exit::Success)
}

fn table(approvals: &[Approval], clock: &Clock) -> Table {
    let mut table =
        Table::new(&["APPROVAL", "STATE", "REQUESTER", "REQUEST", "DECIDED_BY", "EXPIRES"]);
    for one in approvals {
        table.add_row(vec![
            (&one.approval_id).into(),
            words::word::<ApprovalState>(one.state).into(),
            (&one.requester).into(),
            what(one).into(),
            (&one.decided_by).into(),
            clock.absolute(one.expires_at.as_ref()).into(),
        ]);
    }
    table
}

fn describe(approval: &Approval, clock: &Clock) -> String {
    let decided = match approval.decided_by.as_str() {
        "" => String::new(),
        user => format!("{user} at {}", clock.absolute(approval.decided_at.as_ref())),
    };
    let fields = [
        ("Approval:", approval.approval_id.clone()),
        ("State:", approval.state().word().to_string()),
        ("Request:", what(approval)),
        ("Requester:", approval.requester.clone()),
        ("Request id:", approval.request_id.clone()),
        ("Permissions:", permission_words(&approval.permissions)),
        ("Created:", clock.absolute(approval.created_at.as_ref())),
        ("Expires:", clock.absolute(approval.expires_at.as_ref())),
        ("Decided by:", decided),
        ("Comment:", approval.comment.clone()),
        ("Reason:", approval.reason.clone()),
        ("Operations:", approval.operation_ids.join(" ")),
        ("Hash:", approval.digest.clone()),
    ];
    let shown = fields.iter().filter(|(_, value)| !value.is_empty());
    let mut text: String =
        shown.map(|(name, value)| format!("{name:<13}{}\n", one_line(value))).collect();
    if !approval.plan.is_empty() {
        text += "What it would do:\n";
    }
    for line in &approval.plan {
        text += &format!("  {}\n", one_line(line));
    }
    text
}

async fn run_policy(
    client: &Client,
    screen: &mut Screen,
    command: ApprovalPolicyCommand,
) -> Result<Exit> {
    let mut approvals = client.approvals();
    let policy = match command {
        ApprovalPolicyCommand::Get => {
            client.call(approvals.get_approval_policy(GetApprovalPolicyRequest {})).await?
        }
        ApprovalPolicyCommand::Set(ApprovalPolicyArgs { permissions, expires_in, .. }) => {
            let permissions = permissions.iter().map(|word| permission_from(word));
            let request = UpdateApprovalPolicyRequest {
                permissions: permissions.collect::<Result<Vec<_>>>()?,
                lifetime_seconds: expires_in.map_or(0, |life| life.as_secs()),
                dry_run: client.is_dry_run(),
            };
            client.call(approvals.update_approval_policy(request)).await?
        }
    };
    screen.print_record(&policy, describe_policy)?;
    Ok(Exit::Success)
}

fn describe_policy(policy: &ApprovalPolicy) -> String {
    let minutes = policy.lifetime_seconds / 60;
    match policy.permissions.is_empty() {
        true => "No request needs a second person.\n".to_string(),
        false => format!(
            "Requests that need a second person: {}\nApprovals expire after {minutes} min.\n",
            permission_words(&policy.permissions)
        ),
    }
}
