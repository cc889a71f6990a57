-- Write down what a person decided.
INSERT INTO onced_audit (id, at, who, action, scope, key, reason)
SELECT ?1, t.now, ?2, ?3, ?4, ?5, ?6 FROM onced_clock t;
