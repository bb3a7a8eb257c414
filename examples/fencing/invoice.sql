-- fence: the largest fencing token that has written the row.
CREATE TABLE invoice (id BIGINT PRIMARY KEY, state TEXT NOT NULL, fence BIGINT NOT NULL);
INSERT INTO invoice VALUES (17, 'open', 0);
