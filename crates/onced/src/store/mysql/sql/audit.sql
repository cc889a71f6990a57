-- Write down what a person decided.
INSERT INTO onced_audit (id, at, who, action, scope, `key`, reason)
SELECT ?, t.now, ?, ?, ?, ?, ? FROM onced_clock t;
