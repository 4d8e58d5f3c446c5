-- The credentials of a farrier that knew no bindings.
UPDATE credentials SET policy = NULL;
