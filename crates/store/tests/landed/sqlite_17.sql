-- A database of schema version 17, written by a farrier of that version, on SQLite. Of its history
-- and its logs the newest rows are left.
PRAGMA foreign_keys = OFF;
CREATE TABLE machines (
    id          TEXT   NOT NULL PRIMARY KEY,
    version     BIGINT NOT NULL,
    phase       TEXT   NOT NULL,
    -- The conditions that are true, as bits, for filters.
    holds       BIGINT NOT NULL,
    active_run  TEXT,
    provider    TEXT   NOT NULL,
    labels      TEXT   NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
, rack_id TEXT);
INSERT INTO machines VALUES('m-1',13,'MAINTENANCE',15,NULL,'sim','{"env":"prod"}','{"spec":{"ssh_endpoint":"","bmc_endpoint":"","target_cluster_ref":"c","mac_addresses":[],"provider":"sim","serial":"S7","customer_id":"","bmc_credential":"","ssh_credential":"","rack":"rack-1","slot":3,"root_disk":"","feeds":["ps-1"]},"conditions":{"Reachable":{"status":true,"reason":"Booted","last_transition":1794964247297688},"BMCReachable":{"status":true,"reason":"RedfishOK","last_transition":1794964247297688},"Provisioned":{"status":true,"reason":"Image:ubuntu-2204","last_transition":1794964248142067},"InCustomerCluster":{"status":true,"reason":"Joined:c","last_transition":1794964248145575},"Drained":{"status":false,"reason":"Joined","last_transition":1794964248145575},"Degraded":{"status":false,"reason":"Healthy","last_transition":1794964247297688}}}',1794964247295123,1794964248146926,'rack-1');
INSERT INTO machines VALUES('m-2',8,'FACTORY_READY',7,NULL,'sim','{}','{"spec":{"ssh_endpoint":"","bmc_endpoint":"","target_cluster_ref":"c","mac_addresses":[],"provider":"sim","serial":"","customer_id":"","bmc_credential":"","ssh_credential":"","rack":null,"slot":null,"root_disk":"","node_name":"gpu-2"},"conditions":{"Reachable":{"status":true,"reason":"PingOK","last_transition":1794964247328914},"BMCReachable":{"status":true,"reason":"RedfishOK","last_transition":1794964247328914},"Provisioned":{"status":true,"reason":"Image:ubuntu/jammy","last_transition":1794964248289172},"InCustomerCluster":{"status":false,"reason":"NotJoined","last_transition":1794964247328914},"Degraded":{"status":false,"reason":"Healthy","last_transition":1794964247328914}}}',1794964247317414,1794964248298723,NULL);
CREATE TABLE plans (
    id          TEXT   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE TABLE subjects (
    id            TEXT   NOT NULL PRIMARY KEY,
    kind          TEXT   NOT NULL,
    -- One active run per machine; null once the run has ended.
    holds_machine TEXT,
    version       BIGINT NOT NULL,
    epoch         BIGINT NOT NULL,
    owner         TEXT,
    due_at        BIGINT,
    wakes_asked   BIGINT NOT NULL,
    wakes_handled BIGINT NOT NULL,
    phase         TEXT   NOT NULL,
    workflow      TEXT   NOT NULL,
    state         TEXT   NOT NULL,
    updated_at    BIGINT NOT NULL
, ended_at BIGINT);
INSERT INTO subjects VALUES('rack-1','rack',NULL,14,20,NULL,NULL,22,22,'Ready','Ready','',1794964247390942,NULL);
INSERT INTO subjects VALUES('ps-1','power_shelf',NULL,8,5,NULL,NULL,7,7,'Ready','Ready','',1794964247385891,NULL);
INSERT INTO subjects VALUES('op-01m7p39mnxnangqagm33','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964247231194,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"Read: Simulated SIM011422","started_at":1794964247231194,"waiting_since":1794964247231194,"finished_at":1794964247235398}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247231194,"finished_at":1794964247235398,"failure":null}',1794964247235398,1794964247235398);
INSERT INTO subjects VALUES('op-01m7p39mpb9021rj49re','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964247245423,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"The credentials work, and it is watched","started_at":1794964247245423,"waiting_since":1794964247245423,"finished_at":1794964247248792}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247245423,"finished_at":1794964247248792,"failure":null}',1794964247248792,1794964247248792);
INSERT INTO subjects VALUES('sw-1','switch',NULL,14,7,NULL,NULL,11,11,'Ready','Ready','',1794964247390088,NULL);
INSERT INTO subjects VALUES('op-01m7p39mpkc5hs5fak3d','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964247253272,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"Read: Simulated SIM827093","started_at":1794964247253272,"waiting_since":1794964247253272,"finished_at":1794964247254445}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247253272,"finished_at":1794964247254445,"failure":null}',1794964247254445,1794964247254445);
INSERT INTO subjects VALUES('op-01m7p39mpqx4dnmtp24a','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964247257000,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"The credentials work, and it is watched","started_at":1794964247257000,"waiting_since":1794964247257000,"finished_at":1794964247258242}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247257000,"finished_at":1794964247258242,"failure":null}',1794964247258242,1794964247258242);
INSERT INTO subjects VALUES('op-01m7p39mpvg13ktn8v5d','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":6,"open":false,"attempt_since":1794964247260793,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"As it should be","started_at":1794964247260793,"waiting_since":1794964247260793,"finished_at":1794964247261998}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247260793,"finished_at":1794964247261998,"failure":null}',1794964247261998,1794964247261998);
INSERT INTO subjects VALUES('op-01m7p39mr2emprzy71nn','run',NULL,9,1,NULL,NULL,10,10,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247300829,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done","started_at":1794964247300829,"waiting_since":1794964247300829,"finished_at":1794964247318810},{"of":1,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247318810,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done","started_at":1794964247318810,"waiting_since":1794964247318810,"finished_at":1794964247344926},{"of":2,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247344926,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done","started_at":1794964247344926,"waiting_since":1794964247344926,"finished_at":1794964247349484},{"of":3,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247349484,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done, 1 of them already were as wanted","started_at":1794964247349484,"waiting_since":1794964247349484,"finished_at":1794964247360041},{"of":4,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247360041,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done, 1 of them already were as wanted","started_at":1794964247360041,"waiting_since":1794964247360041,"finished_at":1794964247365606},{"of":5,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247365606,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"1 device done, 1 of them already were as wanted","started_at":1794964247365606,"waiting_since":1794964247365606,"finished_at":1794964247369903},{"of":6,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964247369903,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"3 devices done","started_at":1794964247369903,"waiting_since":1794964247369903,"finished_at":1794964247382402}],"at":7,"scan":null,"halt":null,"adopted":false,"started_at":1794964247300829,"finished_at":1794964247382402,"failure":null}',1794964247382402,1794964247382402);
INSERT INTO subjects VALUES('op-01m7p39mr7hxt6abjp33','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247304954,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"fabric OFF","started_at":1794964247304954,"waiting_since":1794964247304954,"finished_at":1794964247306273}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247304954,"finished_at":1794964247306273,"failure":null}',1794964247306273,1794964247306273);
INSERT INTO subjects VALUES('op-01m7p39ms8gfz0xrfcea','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247337972,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"fabric MANAGER","started_at":1794964247337972,"waiting_since":1794964247337972,"finished_at":1794964247343022}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247337972,"finished_at":1794964247343022,"failure":null}',1794964247343022,1794964247343022);
INSERT INTO subjects VALUES('op-01m7p39mshp64z26ndyy','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247347188,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"fabric MANAGER","started_at":1794964247347188,"waiting_since":1794964247347188,"finished_at":1794964247348346}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247347188,"finished_at":1794964247348346,"failure":null}',1794964247348346,1794964247348346);
INSERT INTO subjects VALUES('op-01m7p39msp367vyrxv70','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247351328,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"It was on already","started_at":1794964247351328,"waiting_since":1794964247351328,"finished_at":1794964247352782}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247351328,"finished_at":1794964247352782,"failure":null}',1794964247352782,1794964247352782);
INSERT INTO subjects VALUES('op-01m7p39mt1njkrkaa7sn','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247363339,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"It was on already","started_at":1794964247363339,"waiting_since":1794964247363339,"finished_at":1794964247364584}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247363339,"finished_at":1794964247364584,"failure":null}',1794964247364584,1794964247364584);
INSERT INTO subjects VALUES('op-01m7p39mt65bb5zefx6f','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247367723,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"It was on already","started_at":1794964247367723,"waiting_since":1794964247367723,"finished_at":1794964247368687}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247367723,"finished_at":1794964247368687,"failure":null}',1794964247368687,1794964247368687);
INSERT INTO subjects VALUES('host:m-1','host',NULL,2,2,NULL,NULL,2,2,'Ready','Ready','',1794964247385896,NULL);
INSERT INTO subjects VALUES('op-01m7p39mtf6vcbbzdt8t','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247377660,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"As it should be","started_at":1794964247377660,"waiting_since":1794964247377660,"finished_at":1794964247378759}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247377660,"finished_at":1794964247378759,"failure":null}',1794964247378759,1794964247378759);
INSERT INTO subjects VALUES('op-01m7p39mtf6vcfbzdt8t','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247377680,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"As it should be","started_at":1794964247377680,"waiting_since":1794964247377680,"finished_at":1794964247380416}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247377680,"finished_at":1794964247380416,"failure":null}',1794964247380416,1794964247380416);
INSERT INTO subjects VALUES('op-01m7p39mtf6vckbzdt8t','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964247377687,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"As it should be","started_at":1794964247377687,"waiting_since":1794964247377687,"finished_at":1794964247379837}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247377687,"finished_at":1794964247379837,"failure":null}',1794964247379837,1794964247379837);
INSERT INTO subjects VALUES('op-01m7p39mtsqrtq577hgs','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":6,"open":false,"attempt_since":1794964247387614,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"As it should be","started_at":1794964247387614,"waiting_since":1794964247387614,"finished_at":1794964247389012}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964247387614,"finished_at":1794964247389012,"failure":null}',1794964247389012,1794964247389012);
INSERT INTO subjects VALUES('op-01m7p39nfzzpxnq63a3s','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248098337,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"the machine is in no cluster, so nothing is left to drain","started_at":1794964248098337,"waiting_since":1794964248098337,"finished_at":1794964248101368}],"at":1,"scan":null,"halt":null,"adopted":false,"started_at":1794964248098337,"finished_at":1794964248101368,"failure":null}',1794964248101368,1794964248101368);
INSERT INTO subjects VALUES('op-01m7p39nj8p66tj5yy83','run',NULL,7,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248138661,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"Next boot from PXE","started_at":1794964248138661,"waiting_since":1794964248138661,"finished_at":1794964248140583},{"of":1,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248140583,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"Image ubuntu-2204 is on disk","started_at":1794964248140583,"waiting_since":1794964248140583,"finished_at":1794964248142067},{"of":2,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248142067,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"Booted (boot 3)","started_at":1794964248142067,"waiting_since":1794964248142067,"finished_at":1794964248143629},{"of":3,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248143629,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"The machine is in cluster c","started_at":1794964248143629,"waiting_since":1794964248143629,"finished_at":1794964248145575},{"of":4,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":6,"open":false,"attempt_since":1794964248145575,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"The machine is in cluster c","started_at":1794964248145575,"waiting_since":1794964248145575,"finished_at":1794964248146926}],"at":5,"scan":null,"halt":null,"adopted":false,"started_at":1794964248138661,"finished_at":1794964248146926,"failure":null}',1794964248146926,1794964248146926);
INSERT INTO subjects VALUES('site-a','site',NULL,2,1,NULL,NULL,1,1,'Connected','Connected','',1794964248180402,NULL);
INSERT INTO subjects VALUES('node-01m7p39nnhjf85cm2kp8','node',NULL,8,2,NULL,NULL,2,2,'active','active','',1794964248302789,NULL);
INSERT INTO subjects VALUES('op-01m7p39nnh7v4rxhry4j','run',NULL,18,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964248246066,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"load_site_config: MAAS has the machine as absent","started_at":1794964248246066,"waiting_since":1794964248246066,"finished_at":1794964248252077},{"of":1,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248252077,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"resolve_power_credentials: MAAS has the machine as absent","started_at":1794964248252077,"waiting_since":1794964248252077,"finished_at":1794964248257412},{"of":2,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":4,"open":false,"attempt_since":1794964248257412,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"create_or_find_in_maas: MAAS has the machine as New","started_at":1794964248257412,"waiting_since":1794964248257412,"finished_at":1794964248260098},{"of":3,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248260098,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"commission_node: MAAS has the machine as Commissioning","started_at":1794964248260098,"waiting_since":1794964248260098,"finished_at":1794964248262655},{"of":4,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248262655,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"wait_for_ready: MAAS has the machine as Ready","started_at":1794964248262655,"waiting_since":1794964248262655,"finished_at":1794964248266158},{"of":5,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248266158,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"configure_storage: MAAS has the machine as Ready","started_at":1794964248266158,"waiting_since":1794964248266158,"finished_at":1794964248268819},{"of":6,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248268819,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"apply_roce_phase2: MAAS has the machine as Ready","started_at":1794964248268819,"waiting_since":1794964248268819,"finished_at":1794964248271785},{"of":7,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248271785,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"ensure_pxe_interface_auto: MAAS has the machine as Ready","started_at":1794964248271785,"waiting_since":1794964248271785,"finished_at":1794964248274434},{"of":8,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248274434,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"render_cloud_init: MAAS has the machine as Ready","started_at":1794964248274434,"waiting_since":1794964248274434,"finished_at":1794964248276965},{"of":9,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248276965,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"deploy_via_maas: MAAS has the machine as Deploying","started_at":1794964248276965,"waiting_since":1794964248276965,"finished_at":1794964248279747},{"of":10,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964248279747,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"wait_for_deployed: MAAS has the machine as Deployed","started_at":1794964248279747,"waiting_since":1794964248279747,"finished_at":1794964248283812},{"of":11,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248283812,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"classify_deploy_failure: MAAS has the machine as Deployed","started_at":1794964248283812,"waiting_since":1794964248283812,"finished_at":1794964248285717},{"of":12,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":1,"open":false,"attempt_since":1794964248285717,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"recover_for_datasource_retry: MAAS has the machine as Deployed","started_at":1794964248285717,"waiting_since":1794964248285717,"finished_at":1794964248289172},{"of":13,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":3,"open":false,"attempt_since":1794964248289172,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"ensure_hardware_sync_configured: MAAS has the machine as Deployed","started_at":1794964248289172,"waiting_since":1794964248289172,"finished_at":1794964248292400},{"of":14,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248292400,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"wait_for_hardware_sync_healthy: MAAS has the machine as Deployed","started_at":1794964248292400,"waiting_since":1794964248292400,"finished_at":1794964248294421},{"of":15,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1794964248294421,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"its agent has enrolled","started_at":1794964248294421,"waiting_since":1794964248294421,"finished_at":1794964248298723}],"at":16,"scan":null,"halt":null,"adopted":false,"started_at":1794964248246066,"finished_at":1794964248298723,"failure":null}',1794964248298723,1794964248298723);
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    tx          BIGINT NOT NULL DEFAULT 0,
    ts          BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    object_id   TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    word        TEXT   NOT NULL,
    cause       TEXT   NOT NULL,
    actor       TEXT   NOT NULL,
    message     TEXT   NOT NULL,
    decided_by  TEXT   NOT NULL,
    body        TEXT   NOT NULL
);
INSERT INTO events VALUES(1,0,1794964246660050,'image','image/ubuntu-2204',1,'ADDED','request','demo','raw image added','engine::image:82','');
INSERT INTO events VALUES(87,0,1794964247378759,'host','host:m-1',2,'Ready','engine','engine','step check succeeded: As it should be; SUCCEEDED after 1ms','model::run::classify:423, model::run::next:233','');
INSERT INTO events VALUES(93,0,1794964247382402,'power_shelf','ps-1',8,'Ready','engine','engine','released by op-01m7p39mr2emprzy71nn','model::run::classify:423, model::run::next:233','');
INSERT INTO events VALUES(94,0,1794964247385406,'rack','rack-1',14,'Ready','engine','engine','all is as it should be','model::rack:328','{"head":{"id":"rack-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964247385406,"version":14,"created_at":1794964246971908,"updated_at":1794964247385406},"spec":{"hardware_type":"","expected":{"machines":1,"switches":1,"power_shelves":1}},"state":{"state":"ready"},"topology_changed":false,"reprovision_requested":null,"maintenance_requested":[],"active":[],"unmended":null}');
INSERT INTO events VALUES(100,0,1794964247390088,'switch','sw-1',14,'Ready','engine','engine','it is as it should be','model::switch:215','');
INSERT INTO events VALUES(118,0,1794964248146926,'machine','m-1',13,'MAINTENANCE','engine','engine','step verify succeeded: The machine is in cluster c; SUCCEEDED after 8ms','model::run::classify:423, model::run::next:233','{"id":"m-1","labels":{"env":"prod"},"spec":{"ssh_endpoint":"","bmc_endpoint":"","target_cluster_ref":"c","mac_addresses":[],"provider":"sim","serial":"S7","customer_id":"","bmc_credential":"","ssh_credential":"","rack":"rack-1","slot":3,"root_disk":"","feeds":["ps-1"]},"phase":"MAINTENANCE","conditions":{"Reachable":{"status":true,"reason":"Booted","last_transition":1794964247297688},"BMCReachable":{"status":true,"reason":"RedfishOK","last_transition":1794964247297688},"Provisioned":{"status":true,"reason":"Image:ubuntu-2204","last_transition":1794964248142067},"InCustomerCluster":{"status":true,"reason":"Joined:c","last_transition":1794964248145575},"Drained":{"status":false,"reason":"Joined","last_transition":1794964248145575},"Degraded":{"status":false,"reason":"Healthy","last_transition":1794964247297688}},"active_run":null,"version":13,"created_at":1794964247295123,"updated_at":1794964248146926}');
INSERT INTO events VALUES(120,0,1794964248179733,'site','site-a',2,'Connected','probe','reconciler','its MAAS answers','engine::node::watch:324','');
INSERT INTO events VALUES(151,0,1794964248298723,'machine','m-2',8,'IDLE','engine','engine','step wait_for_agent_enrollment succeeded: its agent has enrolled; SUCCEEDED after 52ms','model::run::classify:423, model::run::next:233','{"id":"m-2","labels":{},"spec":{"ssh_endpoint":"","bmc_endpoint":"","target_cluster_ref":"c","mac_addresses":[],"provider":"sim","serial":"","customer_id":"","bmc_credential":"","ssh_credential":"","rack":null,"slot":null,"root_disk":"","node_name":"gpu-2"},"phase":"FACTORY_READY","conditions":{"Reachable":{"status":true,"reason":"PingOK","last_transition":1794964247328914},"BMCReachable":{"status":true,"reason":"RedfishOK","last_transition":1794964247328914},"Provisioned":{"status":true,"reason":"Image:ubuntu/jammy","last_transition":1794964248289172},"InCustomerCluster":{"status":false,"reason":"NotJoined","last_transition":1794964247328914},"Degraded":{"status":false,"reason":"Healthy","last_transition":1794964247328914}},"active_run":null,"version":8,"created_at":1794964247317414,"updated_at":1794964248298723}');
INSERT INTO events VALUES(152,0,1794964248298723,'node','node-01m7p39nnhjf85cm2kp8',8,'active','engine','engine','op-01m7p39nnh7v4rxhry4j has onboarded it','model::run::classify:423, model::run::next:233','{"head":{"id":"node-01m7p39nnhjf85cm2kp8","labels":{"machine":"m-2","site":"site-a"},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964248298723,"version":8,"created_at":1794964248241247,"updated_at":1794964248298723},"state":"active","moved_by":"onboarding","reason":"op-01m7p39nnh7v4rxhry4j has onboarded it","quarantine":null,"machine":"m-2","site":"site-a","workflow":"op-01m7p39nnh7v4rxhry4j","system_id":"sim-m-2","upstream":{"state":"deployed","said":"","on":true,"at":1794964248282008},"passes":0,"agent":null,"served":true}');
CREATE TABLE logs (
    run_id      TEXT   NOT NULL,
    start       BIGINT NOT NULL,
    ts          BIGINT NOT NULL,
    step        TEXT   NOT NULL,
    attempt     BIGINT NOT NULL,
    stream      TEXT   NOT NULL,
    data        BLOB NOT NULL,
    PRIMARY KEY (run_id, start)
);
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',0,1794964248140499,'set-netboot',1,'stdout',X'436f6e6669677572696e672050584520666f72206d2d310a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',24,1794964248140503,'set-netboot',1,'stdout',X'4448435020757064617465640a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',37,1794964248140503,'set-netboot',1,'stdout',X'4e65787420626f6f742066726f6d205058450a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',56,1794964248142019,'repave-os',1,'stdout',X'426f6f74696e672066726f6d205058450a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',73,1794964248142021,'repave-os',1,'stdout',X'57726974696e6720696d616765207562756e74752d323230340a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',99,1794964248142022,'repave-os',1,'stdout',X'50726f67726573733a203130250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',113,1794964248142022,'repave-os',1,'stdout',X'50726f67726573733a203230250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',127,1794964248142022,'repave-os',1,'stdout',X'50726f67726573733a203330250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',141,1794964248142024,'repave-os',1,'stdout',X'50726f67726573733a203430250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',155,1794964248142024,'repave-os',1,'stdout',X'50726f67726573733a203530250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',169,1794964248142024,'repave-os',1,'stdout',X'50726f67726573733a203630250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',183,1794964248142025,'repave-os',1,'stdout',X'50726f67726573733a203730250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',197,1794964248142025,'repave-os',1,'stdout',X'50726f67726573733a203830250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',211,1794964248142026,'repave-os',1,'stdout',X'50726f67726573733a203930250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',225,1794964248142026,'repave-os',1,'stdout',X'50726f67726573733a20313030250a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',240,1794964248142026,'repave-os',1,'stdout',X'496d616765207562756e74752d32323034206973206f6e206469736b0a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',269,1794964248143584,'reboot',1,'stdout',X'53656e64696e6720706f776572206379636c650a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',289,1794964248143587,'reboot',1,'stdout',X'57616974696e6720666f7220746865206d616368696e6520746f20636f6d65206261636b0a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',326,1794964248143587,'reboot',1,'stdout',X'426f6f7465642028626f6f742033290a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',342,1794964248145494,'join-cluster',1,'stdout',X'4a6f696e696e6720636c757374657220630a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',360,1794964248145496,'join-cluster',1,'stdout',X'52756e6e696e67206b75626561646d206a6f696e0a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',381,1794964248145496,'join-cluster',1,'stdout',X'57616974696e6720666f7220746865206e6f646520746f206265636f6d652052656164790a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',418,1794964248145497,'join-cluster',1,'stdout',X'546865206d616368696e6520697320696e20636c757374657220630a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',446,1794964248146888,'verify',1,'stdout',X'4c6f6f6b696e6720666f72206d2d3120696e20636c757374657220630a');
INSERT INTO logs VALUES('op-01m7p39nj8p66tj5yy83',475,1794964248146890,'verify',1,'stdout',X'546865206d616368696e6520697320696e20636c757374657220630a');
CREATE TABLE replicas (
    name        TEXT   NOT NULL PRIMARY KEY,
    incarnation TEXT   NOT NULL,
    expires_at  BIGINT NOT NULL,
    started_at  BIGINT NOT NULL
, version TEXT NOT NULL DEFAULT '', heartbeat_at BIGINT);
CREATE TABLE removed (
    kind        TEXT   NOT NULL PRIMARY KEY,
    tx          BIGINT NOT NULL,
    seq         BIGINT NOT NULL
);
CREATE TABLE machine_labels (
    key         TEXT   NOT NULL,
    value       TEXT   NOT NULL,
    machine_id  TEXT   NOT NULL,
    PRIMARY KEY (key, value, machine_id)
) WITHOUT ROWID;
INSERT INTO machine_labels VALUES('env','prod','m-1');
CREATE TABLE notes (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    barred      BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE TABLE credentials (
    name        TEXT   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    login       TEXT   NOT NULL,
    sealed      BLOB NOT NULL,
    version     BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE TABLE identities (
    peer        TEXT   NOT NULL PRIMARY KEY,
    identity    TEXT   NOT NULL,
    first_seen  BIGINT NOT NULL
, version BIGINT NOT NULL DEFAULT 1);
CREATE TABLE lockouts (
    peer        TEXT   NOT NULL PRIMARY KEY,
    credential  TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    said        TEXT   NOT NULL,
    since       BIGINT NOT NULL
);
CREATE TABLE images (
    name        TEXT   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO images VALUES('ubuntu-2204','{"name":"ubuntu-2204","body":{"kind":"disk","format":"raw","file":{"sha256":"e653f9045196b524c2c7ad681c7fcb794528dc1d4163ebf8e8d0981f498739d5","size":65,"url":null}},"created_at":1794964246660050}',1794964246660050);
CREATE TABLE deployments (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    machine_id  TEXT   NOT NULL,
    image       TEXT   NOT NULL,
    token       TEXT   NOT NULL UNIQUE,
    session     TEXT   UNIQUE,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE TABLE deployment_macs (
    mac         TEXT   NOT NULL PRIMARY KEY,
    key         TEXT   NOT NULL
);
CREATE TABLE IF NOT EXISTS "runs" (
    id          TEXT   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL,
    request_id  TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    plan_id     TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    part_of     TEXT,
    reports_to  TEXT
);
INSERT INTO runs VALUES('op-01m7p39mnxnangqagm33','power_shelf:ps-1','op-01m7p39mnxnangqagm33','INTAKE','lifecycle-intake','{"id":"op-01m7p39mnxnangqagm33","machine_id":"power_shelf:ps-1","request_id":"op-01m7p39mnxnangqagm33","run_type":"INTAKE","plan_id":"lifecycle-intake","steps":[{"name":"read","timeout_seconds":120,"max_retries":3,"effect":{"kind":"device","work":{"work":"read"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"power_shelf","id":"ps-1"},"engine":1,"created_at":1794964247229252}',1794964247229252,NULL,'ps-1');
INSERT INTO runs VALUES('op-01m7p39mpb9021rj49re','power_shelf:ps-1','op-01m7p39mpb9021rj49re','INTAKE','lifecycle-intake','{"id":"op-01m7p39mpb9021rj49re","machine_id":"power_shelf:ps-1","request_id":"op-01m7p39mpb9021rj49re","run_type":"INTAKE","plan_id":"lifecycle-intake","steps":[{"name":"configure","timeout_seconds":120,"max_retries":3,"effect":{"kind":"device","work":{"work":"configure"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"power_shelf","id":"ps-1"},"engine":1,"created_at":1794964247243934}',1794964247243934,NULL,'ps-1');
INSERT INTO runs VALUES('op-01m7p39mpkc5hs5fak3d','switch:sw-1','op-01m7p39mpkc5hs5fak3d','INTAKE','lifecycle-intake','{"id":"op-01m7p39mpkc5hs5fak3d","machine_id":"switch:sw-1","request_id":"op-01m7p39mpkc5hs5fak3d","run_type":"INTAKE","plan_id":"lifecycle-intake","steps":[{"name":"read","timeout_seconds":120,"max_retries":3,"effect":{"kind":"device","work":{"work":"read"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"switch","id":"sw-1"},"engine":1,"created_at":1794964247251322}',1794964247251322,NULL,'sw-1');
INSERT INTO runs VALUES('op-01m7p39mpqx4dnmtp24a','switch:sw-1','op-01m7p39mpqx4dnmtp24a','INTAKE','lifecycle-intake','{"id":"op-01m7p39mpqx4dnmtp24a","machine_id":"switch:sw-1","request_id":"op-01m7p39mpqx4dnmtp24a","run_type":"INTAKE","plan_id":"lifecycle-intake","steps":[{"name":"configure","timeout_seconds":120,"max_retries":3,"effect":{"kind":"device","work":{"work":"configure"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"switch","id":"sw-1"},"engine":1,"created_at":1794964247255722}',1794964247255722,NULL,'sw-1');
INSERT INTO runs VALUES('op-01m7p39mpvg13ktn8v5d','switch:sw-1','op-01m7p39mpvg13ktn8v5d','CHECK','lifecycle-check','{"id":"op-01m7p39mpvg13ktn8v5d","machine_id":"switch:sw-1","request_id":"op-01m7p39mpvg13ktn8v5d","run_type":"CHECK","plan_id":"lifecycle-check","steps":[{"name":"validate","timeout_seconds":120,"max_retries":5,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"switch","id":"sw-1"},"engine":1,"created_at":1794964247259175}',1794964247259175,NULL,'sw-1');
INSERT INTO runs VALUES('op-01m7p39mr2emprzy71nn','rack:rack-1','op-01m7p39mr2emprzy71nn','RACK_MAINTENANCE','lifecycle-rack-maintenance','{"id":"op-01m7p39mr2emprzy71nn","machine_id":"rack:rack-1","request_id":"op-01m7p39mr2emprzy71nn","run_type":"RACK_MAINTENANCE","plan_id":"lifecycle-rack-maintenance","steps":[{"name":"fabric-off","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"switch:sw-1","run_type":"FABRIC","steps":[{"name":"fabric-off","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"OFF"}}}]}],"at_once":16,"unless":[{"target":"switch:sw-1","run_type":"FABRIC","steps":[{"name":"fabric-manager","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"MANAGER"}}}]}]}}},{"name":"fabric-manager","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"switch:sw-1","run_type":"FABRIC","steps":[{"name":"fabric-manager","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"MANAGER"}}}]}],"at_once":16}}},{"name":"fabric-configured","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"switch:sw-1","run_type":"FABRIC","steps":[{"name":"fabric-configured","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"CONFIGURED"}}}]}],"at_once":16}}},{"name":"power-on-shelves","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"power_shelf:ps-1","run_type":"POWER","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}]}],"at_once":16}}},{"name":"power-on-switches","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"switch:sw-1","run_type":"POWER","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}]}],"at_once":16}}},{"name":"power-on-machines","timeout_seconds":1800,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"m-1","run_type":"POWER","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}]}],"at_once":16}}},{"name":"validate","timeout_seconds":900,"max_retries":0,"effect":{"kind":"parts","group":{"parts":[{"target":"m-1","run_type":"CHECK","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}]},{"target":"switch:sw-1","run_type":"CHECK","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}]},{"target":"power_shelf:ps-1","run_type":"CHECK","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}]}],"at_once":16}}}],"params":{"firmware_skipped":"the rack has no hardware type, so there is no default firmware for it","notes":"no firmware is applied: the rack has no hardware type, so there is no default firmware for it","trigger":"ingestion"},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"rack","id":"rack-1"},"claims":["m-1","switch:sw-1","power_shelf:ps-1"],"engine":1,"created_at":1794964247298415}',1794964247298415,NULL,'rack-1');
INSERT INTO runs VALUES('op-01m7p39mr7hxt6abjp33','switch:sw-1','op-01m7p39mr2emprzy71nn/fabric-off/1','FABRIC','lifecycle-fabric','{"id":"op-01m7p39mr7hxt6abjp33","machine_id":"switch:sw-1","request_id":"op-01m7p39mr2emprzy71nn/fabric-off/1","run_type":"FABRIC","plan_id":"lifecycle-fabric","steps":[{"name":"fabric-off","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"OFF"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247303388}',1794964247303388,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39ms8gfz0xrfcea','switch:sw-1','op-01m7p39mr2emprzy71nn/fabric-manager/1','FABRIC','lifecycle-fabric','{"id":"op-01m7p39ms8gfz0xrfcea","machine_id":"switch:sw-1","request_id":"op-01m7p39mr2emprzy71nn/fabric-manager/1","run_type":"FABRIC","plan_id":"lifecycle-fabric","steps":[{"name":"fabric-manager","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"MANAGER"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247336424}',1794964247336424,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mshp64z26ndyy','switch:sw-1','op-01m7p39mr2emprzy71nn/fabric-configured/1','FABRIC','lifecycle-fabric','{"id":"op-01m7p39mshp64z26ndyy","machine_id":"switch:sw-1","request_id":"op-01m7p39mr2emprzy71nn/fabric-configured/1","run_type":"FABRIC","plan_id":"lifecycle-fabric","steps":[{"name":"fabric-configured","timeout_seconds":900,"max_retries":2,"effect":{"kind":"device","work":{"work":"fabric","to":"CONFIGURED"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247345695}',1794964247345695,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39msp367vyrxv70','power_shelf:ps-1','op-01m7p39mr2emprzy71nn/power-on-shelves/1','POWER','lifecycle-power','{"id":"op-01m7p39msp367vyrxv70","machine_id":"power_shelf:ps-1","request_id":"op-01m7p39mr2emprzy71nn/power-on-shelves/1","run_type":"POWER","plan_id":"lifecycle-power","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247350241}',1794964247350241,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mt1njkrkaa7sn','switch:sw-1','op-01m7p39mr2emprzy71nn/power-on-switches/1','POWER','lifecycle-power','{"id":"op-01m7p39mt1njkrkaa7sn","machine_id":"switch:sw-1","request_id":"op-01m7p39mr2emprzy71nn/power-on-switches/1","run_type":"POWER","plan_id":"lifecycle-power","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247361859}',1794964247361859,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mt65bb5zefx6f','m-1','op-01m7p39mr2emprzy71nn/power-on-machines/1','POWER','lifecycle-power','{"id":"op-01m7p39mt65bb5zefx6f","machine_id":"m-1","request_id":"op-01m7p39mr2emprzy71nn/power-on-machines/1","run_type":"POWER","plan_id":"lifecycle-power","steps":[{"name":"power-on","timeout_seconds":600,"max_retries":2,"effect":{"kind":"power","to":"ON"}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247366477}',1794964247366477,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mtf6vcbbzdt8t','m-1','op-01m7p39mr2emprzy71nn/validate/1','CHECK','lifecycle-check','{"id":"op-01m7p39mtf6vcbbzdt8t","machine_id":"m-1","request_id":"op-01m7p39mr2emprzy71nn/validate/1","run_type":"CHECK","plan_id":"lifecycle-check","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247375606}',1794964247375606,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mtf6vcfbzdt8t','switch:sw-1','op-01m7p39mr2emprzy71nn/validate/1','CHECK','lifecycle-check','{"id":"op-01m7p39mtf6vcfbzdt8t","machine_id":"switch:sw-1","request_id":"op-01m7p39mr2emprzy71nn/validate/1","run_type":"CHECK","plan_id":"lifecycle-check","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247375606}',1794964247375606,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mtf6vckbzdt8t','power_shelf:ps-1','op-01m7p39mr2emprzy71nn/validate/1','CHECK','lifecycle-check','{"id":"op-01m7p39mtf6vckbzdt8t","machine_id":"power_shelf:ps-1","request_id":"op-01m7p39mr2emprzy71nn/validate/1","run_type":"CHECK","plan_id":"lifecycle-check","steps":[{"name":"check","timeout_seconds":120,"max_retries":2,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","part_of":"op-01m7p39mr2emprzy71nn","reports_to":{"kind":"rack","id":"rack-1"},"engine":1,"created_at":1794964247375606}',1794964247375606,'op-01m7p39mr2emprzy71nn','rack-1');
INSERT INTO runs VALUES('op-01m7p39mtsqrtq577hgs','switch:sw-1','op-01m7p39mtsqrtq577hgs','CHECK','lifecycle-check','{"id":"op-01m7p39mtsqrtq577hgs","machine_id":"switch:sw-1","request_id":"op-01m7p39mtsqrtq577hgs","run_type":"CHECK","plan_id":"lifecycle-check","steps":[{"name":"validate","timeout_seconds":120,"max_retries":5,"effect":{"kind":"device","work":{"work":"check","firmware":{},"power":"ON"}}}],"params":{},"initiator":"engine","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"switch","id":"sw-1"},"engine":1,"created_at":1794964247385894}',1794964247385894,NULL,'sw-1');
INSERT INTO runs VALUES('op-01m7p39nfzzpxnq63a3s','m-1','req-24721e55f69e','ENTER_MAINTENANCE','plan-enter-maintenance-v1','{"id":"op-01m7p39nfzzpxnq63a3s","machine_id":"m-1","request_id":"req-24721e55f69e","run_type":"ENTER_MAINTENANCE","plan_id":"plan-enter-maintenance-v1","steps":[{"name":"check-drained","timeout_seconds":60,"max_retries":2,"effect":{"kind":"verify","cluster_ref":"c","expect":"DRAINED","advisory":true}}],"params":{},"initiator":"unknown","parent":null,"again":null,"on_failure":"KEEP_PHASE","engine":1,"created_at":1794964248063883}',1794964248063883,NULL,NULL);
INSERT INTO runs VALUES('op-01m7p39nj8p66tj5yy83','m-1','req-4bf8710b7bb1','REIMAGE','plan-repave-v1','{"id":"op-01m7p39nj8p66tj5yy83","machine_id":"m-1","request_id":"req-4bf8710b7bb1","run_type":"REIMAGE","plan_id":"plan-repave-v1","steps":[{"name":"set-netboot","timeout_seconds":60,"max_retries":2,"effect":{"kind":"netboot","mode":"PXE"}},{"name":"repave-os","timeout_seconds":1800,"max_retries":1,"effect":{"kind":"repave","image":"ubuntu-2204"}},{"name":"reboot","timeout_seconds":900,"max_retries":2,"effect":{"kind":"reboot","mode":"bmc"}},{"name":"join-cluster","timeout_seconds":600,"max_retries":1,"effect":{"kind":"join","cluster_ref":"c"}},{"name":"verify","timeout_seconds":300,"max_retries":5,"effect":{"kind":"verify","cluster_ref":"c","expect":"READY","advisory":false}}],"params":{"image_ref":"ubuntu-2204"},"initiator":"unknown","parent":null,"again":null,"on_failure":"KEEP_PHASE","engine":1,"created_at":1794964248136693}',1794964248136693,NULL,NULL);
INSERT INTO runs VALUES('op-01m7p39nnh7v4rxhry4j','m-2','req-d28ec18e850c','ONBOARD','plan-node-onboard-v1','{"id":"op-01m7p39nnh7v4rxhry4j","machine_id":"m-2","request_id":"req-d28ec18e850c","run_type":"ONBOARD","plan_id":"plan-node-onboard-v1","steps":[{"name":"load_site_config","timeout_seconds":120,"max_retries":3,"effect":{"kind":"stage","stage":"load_site_config","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"resolve_power_credentials","timeout_seconds":120,"max_retries":2,"effect":{"kind":"stage","stage":"resolve_power_credentials","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"create_or_find_in_maas","timeout_seconds":300,"max_retries":3,"effect":{"kind":"stage","stage":"create_or_find_in_maas","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"commission_node","timeout_seconds":600,"max_retries":2,"effect":{"kind":"stage","stage":"commission_node","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"wait_for_ready","timeout_seconds":3600,"max_retries":1,"effect":{"kind":"stage","stage":"wait_for_ready","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"configure_storage","timeout_seconds":300,"max_retries":2,"effect":{"kind":"stage","stage":"configure_storage","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"apply_roce_phase2","timeout_seconds":300,"max_retries":2,"effect":{"kind":"stage","stage":"apply_roce_phase2","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"ensure_pxe_interface_auto","timeout_seconds":300,"max_retries":2,"effect":{"kind":"stage","stage":"ensure_pxe_interface_auto","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"render_cloud_init","timeout_seconds":60,"max_retries":1,"effect":{"kind":"stage","stage":"render_cloud_init","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"deploy_via_maas","timeout_seconds":600,"max_retries":2,"effect":{"kind":"stage","stage":"deploy_via_maas","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"wait_for_deployed","timeout_seconds":3600,"max_retries":0,"effect":{"kind":"stage","stage":"wait_for_deployed","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"classify_deploy_failure","timeout_seconds":300,"max_retries":2,"effect":{"kind":"stage","stage":"classify_deploy_failure","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"recover_for_datasource_retry","timeout_seconds":14400,"max_retries":0,"effect":{"kind":"stage","stage":"recover_for_datasource_retry","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"ensure_hardware_sync_configured","timeout_seconds":300,"max_retries":2,"effect":{"kind":"stage","stage":"ensure_hardware_sync_configured","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"wait_for_hardware_sync_healthy","timeout_seconds":3600,"max_retries":1,"effect":{"kind":"stage","stage":"wait_for_hardware_sync_healthy","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}},{"name":"wait_for_agent_enrollment","timeout_seconds":1800,"max_retries":1,"effect":{"kind":"stage","stage":"wait_for_agent_enrollment","node":"node-01m7p39nnhjf85cm2kp8","site":"site-a","by":"sim"}}],"params":{"node":"node-01m7p39nnhjf85cm2kp8"},"initiator":"unknown","parent":null,"again":null,"on_failure":"KEEP_PHASE","reports_to":{"kind":"node","id":"node-01m7p39nnhjf85cm2kp8"},"engine":1,"created_at":1794964248241247}',1794964248241247,NULL,'node-01m7p39nnhjf85cm2kp8');
CREATE TABLE records (
    id          TEXT   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    rack_id     TEXT,
    state       TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
INSERT INTO records VALUES('rack-1','rack',NULL,'Ready',14,'{"head":{"id":"rack-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964247385406,"version":14,"created_at":1794964246971908,"updated_at":1794964247385406},"spec":{"hardware_type":"","expected":{"machines":1,"switches":1,"power_shelves":1}},"state":{"state":"ready"},"topology_changed":false,"reprovision_requested":null,"maintenance_requested":[],"active":[],"unmended":null}',1794964246971908,1794964247385406);
INSERT INTO records VALUES('ps-1','power_shelf','rack-1','Ready',8,'{"head":{"id":"ps-1","labels":{},"rack":"rack-1","slot":1,"active_run":null,"deleted":false,"since":1794964247251088,"version":8,"created_at":1794964247052297,"updated_at":1794964247382402},"spec":{"provider":"sim","bmc_endpoint":"","bmc_credential":"","ssh_endpoint":"","ssh_credential":"","serial":""},"facts":{"manufacturer":"Farrier","model":"Simulated","serial":"SIM011422","firmware":{"BIOS":"1.0","BMC":"1.0"},"power":"ON"},"observed":null,"state":{"state":"ready"},"run":null,"maintenance_requested":null,"retry_requested":false,"intake_owed":false}',1794964247052297,1794964247382402);
INSERT INTO records VALUES('sw-1','switch','rack-1','Ready',14,'{"head":{"id":"sw-1","labels":{},"rack":"rack-1","slot":2,"active_run":null,"deleted":false,"since":1794964247390088,"version":14,"created_at":1794964247248656,"updated_at":1794964247390088},"spec":{"provider":"sim","bmc_endpoint":"","bmc_credential":"","ssh_endpoint":"","ssh_credential":"","serial":""},"facts":{"manufacturer":"Farrier","model":"Simulated","serial":"SIM827093","firmware":{"BIOS":"1.0","BMC":"1.0"},"power":"ON"},"observed":null,"state":{"state":"ready"},"run":null,"retry_requested":false}',1794964247248656,1794964247390088);
INSERT INTO records VALUES('host:m-1','host',NULL,'Ready',2,'{"head":{"id":"m-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964247368687,"version":2,"created_at":1794964247368687,"updated_at":1794964247378759},"state":{"state":"ready"},"request":null,"run":null,"facts":{"manufacturer":"Farrier","model":"Simulated","serial":"SIM109594","firmware":{"BIOS":"1.0","BMC":"1.0"},"power":"ON"},"request_id":""}',1794964247368687,1794964247378759);
INSERT INTO records VALUES('site-a','site',NULL,'Connected',2,'{"head":{"id":"site-a","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964248179733,"version":2,"created_at":1794964248177333,"updated_at":1794964248179733},"spec":{"provider":"sim","maas_url":"","maas_credential":"","zone":"","pool":"","image":"ubuntu/jammy","storage_layout":"flat","boot_disk_model":"BOSS","network":{"roce_interfaces":"","roce_mtu":0,"roce_subnet":""},"cloud_init":"","datasource_retries":2,"erase_on_release":true,"keep_in_maas":false,"calls_at_once":16,"calls_per_second":50},"machines":0,"unreachable":null,"silence":null,"drift":null}',1794964248177333,1794964248179733);
INSERT INTO records VALUES('node-01m7p39nnhjf85cm2kp8','node',NULL,'active',8,'{"head":{"id":"node-01m7p39nnhjf85cm2kp8","labels":{"machine":"m-2","site":"site-a"},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1794964248298723,"version":8,"created_at":1794964248241247,"updated_at":1794964248298723},"state":"active","moved_by":"onboarding","reason":"op-01m7p39nnh7v4rxhry4j has onboarded it","quarantine":null,"machine":"m-2","site":"site-a","workflow":"op-01m7p39nnh7v4rxhry4j","system_id":"sim-m-2","upstream":{"state":"deployed","said":"","on":true,"at":1794964248282008},"passes":0,"agent":null,"served":true}',1794964248241247,1794964248298723);
CREATE TABLE firmware (
    id            TEXT   NOT NULL PRIMARY KEY,
    hardware_type TEXT   NOT NULL,
    is_default    BIGINT NOT NULL,
    available     BIGINT NOT NULL,
    body          TEXT   NOT NULL,
    created_at    BIGINT NOT NULL
, version BIGINT NOT NULL DEFAULT 1);
CREATE TABLE firmware_applied (
    run_id      TEXT   NOT NULL,
    step        TEXT   NOT NULL,
    device      TEXT   NOT NULL,
    component   TEXT   NOT NULL,
    previous    TEXT   NOT NULL,
    version     TEXT   NOT NULL,
    changed     BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    PRIMARY KEY (run_id, step)
);
CREATE TABLE health (
    object_id   TEXT   NOT NULL,
    source      TEXT   NOT NULL,
    kind        TEXT   NOT NULL,
    allocations BIGINT NOT NULL,
    changes     BIGINT NOT NULL,
    other       BIGINT NOT NULL,
    suppressed  BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (object_id, source)
);
CREATE TABLE nodes (
    id          TEXT   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL,
    site_id     TEXT,
    live        BIGINT NOT NULL,
    heard_at    BIGINT,
    -- When the node went offline because of its silence; null after the next heartbeat.
    lost_at     BIGINT,
    problems    TEXT   NOT NULL,
    -- Checksums of the enrollment token and of the session.
    token       TEXT,
    ticket      TEXT,
    session     TEXT
);
INSERT INTO nodes VALUES('node-01m7p39nnhjf85cm2kp8','m-2','site-a',1,NULL,NULL,'',NULL,NULL,NULL);
CREATE TABLE site_answers (
    id          TEXT   NOT NULL PRIMARY KEY,
    answered_at BIGINT NOT NULL
);
INSERT INTO site_answers VALUES('site-a',1794964248179733);
CREATE TABLE tasks (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    node_id     TEXT   NOT NULL,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE TABLE feeds (
    shelf_id    TEXT   NOT NULL,
    device      TEXT   NOT NULL,
    PRIMARY KEY (shelf_id, device)
) WITHOUT ROWID;
INSERT INTO feeds VALUES('ps-1','m-1');
CREATE TABLE inspections (
    machine_id   TEXT   NOT NULL PRIMARY KEY REFERENCES machines (id) ON DELETE CASCADE,
    inspected_at BIGINT NOT NULL,
    body         TEXT   NOT NULL
);
CREATE TABLE set_aside (
    kind         TEXT   NOT NULL,
    id           TEXT   NOT NULL,
    problem      TEXT   NOT NULL,
    actor        TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    set_aside_at BIGINT NOT NULL,
    stored       TEXT   NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE TABLE oldest_writer (
    version     BIGINT NOT NULL
);
INSERT INTO oldest_writer VALUES(16);
CREATE TABLE node_names (
    cluster     TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    machine_id  TEXT   NOT NULL,
    PRIMARY KEY (cluster, name)
) WITHOUT ROWID;
INSERT INTO node_names VALUES('c','m-1','m-1');
INSERT INTO node_names VALUES('c','gpu-2','m-2');
CREATE TABLE step_durations (
    step        TEXT   NOT NULL,
    model       TEXT   NOT NULL,
    ended_at    BIGINT NOT NULL,
    run_id      TEXT   NOT NULL,
    duration_ms BIGINT NOT NULL,
    PRIMARY KEY (step, model, ended_at, run_id)
);
CREATE TABLE refused_requests (
    object_id  TEXT   NOT NULL PRIMARY KEY,
    refused_at BIGINT NOT NULL,
    actor      TEXT   NOT NULL,
    request    TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    message    TEXT   NOT NULL
);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('events',152);
CREATE INDEX machines_active ON machines (active_run) WHERE active_run IS NOT NULL;
CREATE UNIQUE INDEX subjects_holds ON subjects (holds_machine) WHERE holds_machine IS NOT NULL;
CREATE INDEX subjects_due ON subjects (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX subjects_owner ON subjects (owner) WHERE owner IS NOT NULL;
CREATE UNIQUE INDEX events_object ON events (object_id, version);
CREATE INDEX subjects_ended ON subjects (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX subjects_phase ON subjects (phase, id) WHERE ended_at IS NOT NULL;
CREATE INDEX events_aged ON events (ts, seq, kind) WHERE kind <> 'run';
CREATE INDEX machine_labels_machine ON machine_labels (machine_id);
CREATE INDEX notes_run ON notes (run_id);
CREATE INDEX deployments_run ON deployments (run_id);
CREATE INDEX deployments_open ON deployments (machine_id) WHERE is_open = 1;
CREATE INDEX deployment_macs_key ON deployment_macs (key);
CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id);
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);
CREATE INDEX runs_part_of ON runs (part_of, id) WHERE part_of IS NOT NULL;
CREATE INDEX machines_rack ON machines (rack_id, id) WHERE rack_id IS NOT NULL;
CREATE INDEX records_kind ON records (kind, id);
CREATE INDEX records_rack ON records (rack_id, kind, id) WHERE rack_id IS NOT NULL;
CREATE UNIQUE INDEX firmware_default ON firmware (hardware_type) WHERE is_default = 1;
CREATE INDEX firmware_applied_device ON firmware_applied (device, at, run_id, step);
CREATE INDEX firmware_applied_at ON firmware_applied (at, run_id, step);
CREATE UNIQUE INDEX nodes_machine ON nodes (machine_id) WHERE live = 1;
CREATE INDEX nodes_site ON nodes (site_id, id) WHERE live = 1;
CREATE UNIQUE INDEX nodes_token ON nodes (token) WHERE token IS NOT NULL;
CREATE UNIQUE INDEX nodes_session ON nodes (session) WHERE session IS NOT NULL;
CREATE INDEX tasks_open ON tasks (node_id, created_at, key) WHERE is_open = 1;
CREATE INDEX tasks_run ON tasks (run_id);
CREATE INDEX feeds_device ON feeds (device);
CREATE INDEX machines_created ON machines (created_at, id);
CREATE INDEX machines_updated ON machines (updated_at, id);
CREATE INDEX records_created ON records (kind, created_at, id);
CREATE INDEX records_updated ON records (kind, updated_at, id);
CREATE INDEX node_names_machine ON node_names (machine_id);
CREATE TRIGGER machines_labels_new AFTER INSERT ON machines BEGIN INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END;
CREATE TRIGGER machines_labels_changed AFTER UPDATE OF labels ON machines WHEN OLD.labels <> NEW.labels BEGIN DELETE FROM machine_labels WHERE machine_id = OLD.id; INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END;
CREATE TRIGGER machines_labels_gone AFTER DELETE ON machines BEGIN DELETE FROM machine_labels WHERE machine_id = OLD.id; END;
PRAGMA user_version = 17;
