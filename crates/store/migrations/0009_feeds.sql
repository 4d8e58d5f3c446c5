-- Which power shelves feed which machines and switches: an index of the feeds in their specs, by
-- shelf. A device is the key of a target. A row may outlive its device; the spec decides.
CREATE TABLE feeds (
    shelf_id    {id}   NOT NULL,
    device      {id}   NOT NULL,
    PRIMARY KEY (shelf_id, device)
){keyed};
CREATE INDEX feeds_device ON feeds (device);
