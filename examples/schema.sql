-- The business tables of the examples. They know nothing of onced.
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    -- What the order is about, where something outside names it: two events about one subscription make one order.
    reference text UNIQUE,
    body bytea NOT NULL
);
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    payload text NOT NULL,
    -- Taken until then; in the past where nobody is at work on it.
    not_before timestamptz NOT NULL DEFAULT now()
);
