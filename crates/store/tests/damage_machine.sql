-- Makes the machine m-1 unreadable. The tests of the binary use it.
UPDATE machines SET body = '{' WHERE id = 'm-1';
