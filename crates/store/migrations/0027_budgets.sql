-- Disruption budgets: how many machines of a part of the fleet may be out of service at once.
CREATE TABLE budgets (
    id              {id}   NOT NULL PRIMARY KEY,
    filter          TEXT   NOT NULL,
    max_unavailable TEXT   NOT NULL,
    per             TEXT   NOT NULL,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    version         BIGINT NOT NULL
);

-- The machines that count in a budget, by failure domain. The transaction that changes a machine, its
-- node or what takes it changes its rows here, so that admission counts and scans nothing.
CREATE TABLE budget_members (
    budget_id   {id}   NOT NULL,
    domain      {id}   NOT NULL,
    machine_id  {id}   NOT NULL,
    unavailable BIGINT NOT NULL,
    PRIMARY KEY (budget_id, domain, machine_id)
){keyed};
CREATE INDEX budget_members_machine ON budget_members (machine_id, budget_id, domain);
CREATE INDEX budget_members_unavailable ON budget_members (budget_id, domain, machine_id) WHERE unavailable = 1;

-- The number of machines in each domain of a budget.
CREATE TABLE budget_domains (
    budget_id {id}   NOT NULL,
    domain    {id}   NOT NULL,
    total     BIGINT NOT NULL,
    PRIMARY KEY (budget_id, domain)
){keyed};

-- The machines that an operation takes out of service, from its admission to its end, and those that
-- a power shelf leaves without power.
CREATE TABLE takes (
    taker      {id} NOT NULL,
    machine_id {id} NOT NULL,
    PRIMARY KEY (taker, machine_id)
){keyed};
CREATE INDEX takes_machine ON takes (machine_id, taker);

-- What operations of an older farrier take is not known: all that they hold.
INSERT INTO takes (taker, machine_id) SELECT active_run, id FROM machines WHERE active_run IS NOT NULL;
