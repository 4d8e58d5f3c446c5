-- Opens a transaction with an id, which holds back the events of later ones until it ends.
BEGIN; SELECT pg_current_xact_id()
