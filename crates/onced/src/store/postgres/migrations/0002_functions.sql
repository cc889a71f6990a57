-- The protocol as functions, for every language: docs/reference/sql.md. Their decisions are those of the library, to which
-- `_decide` and `_begin` keep arm by arm (onced-core's decision.rs, onced's guard/begin.rs); the suite runs both.
--
-- Those without a leading `_` are for applications. They run with the rights of their owner and by a fixed search path, so
-- that a role that may call them needs no right to any table. Those with one are steps of theirs, for the owner alone.
-- Other sessions' settings reach none of them: names are written in full, and times are compared as times.

-- What a claimant asks for, and what it writes, whichever way it gets the record.
CREATE TYPE onced.claim AS (
    scope text, key text, request_hash bytea, hash_version text, enter text, token text, lease interval,
    downstream_key text, retry_window interval, keep interval, delivery uuid
);

-- What the scope wants.
CREATE TYPE onced.policy AS (
    lease interval, max_attempts integer, mismatch text, on_unknown text, downstream_window interval, log_deliveries text
);

-- A record that was read, the step of its outside call where that is recorded, and the time of reading.
CREATE TYPE onced.seen AS (record onced.idempotency_keys, call onced.idempotency_keys, now timestamptz);

-- What a delivery means: `execute`, `give_up`, `replay`, `in_progress`, `mismatch`, `unknown`, `exhausted`, `not_understood`.
CREATE TYPE onced.verdict AS (
    decision text, attempt integer, resumed boolean, taking text, retry_after interval, payload_differs boolean
);

-- What came of a claim or a taking: `yes`, `no` (the record is there, or no longer as it was read), `lock_missed`.
CREATE TYPE onced.claimed AS (result text, attempt integer, expires_at timestamptz);

-- What a caller of `begin` is told.
CREATE TYPE onced.begun AS (
    decision text, attempt integer, resumed boolean, lease_token text, downstream_key text, retry_after integer,
    response_code integer, response_headers text, response_body bytea, body_omitted boolean,
    call_known boolean, call_code integer, call_headers text, call_body bytea, call_omitted boolean,
    payload_differs boolean, expires_at timestamptz
);

-- Arguments ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION onced._refuse(message text, hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'OC003', MESSAGE = message, HINT = hint;
END $$;

-- A key as it stands in messages: enough to find it, not enough to use it.
CREATE FUNCTION onced._shortened(key text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(key) > 12 THEN left(key, 6) || chr(8230) || right(key, 3) ELSE key END
$$;

-- Whatever the session's time zone and its summer time: a day is 24 hours.
CREATE FUNCTION onced._exact(length interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT make_interval(secs => extract(epoch FROM length)::double precision)
$$;

CREATE FUNCTION onced._check_lease(lease interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (lease >= interval '1 second') IS NOT TRUE THEN
        PERFORM onced._refuse('a lease is one second or longer', 'Give the time that an attempt may take before others may take over.');
    END IF;
END $$;

CREATE FUNCTION onced._check_claim(claim onced.claim, policy onced.policy) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (claim.scope ~ '^[A-Za-z0-9._:/@-]+$' AND length(claim.scope) <= 96) IS NOT TRUE THEN
        PERFORM onced._refuse('a scope is 1 to 96 of A-Z a-z 0-9 . _ : / @ -', 'Name the kind of effect, such as stripe.charge or acme:orders.create.');
    ELSIF (claim.key ~ '^[!-~]([ -~]*[!-~])?$' AND length(claim.key) <= 255) IS NOT TRUE THEN
        PERFORM onced._refuse('a key is 1 to 255 printable ASCII characters without a space at either end', 'Refuse the request (400): a key that the sender did not make cannot be made up here.');
    ELSIF (octet_length(claim.request_hash) = 32) IS NOT TRUE THEN
        PERFORM onced._refuse('a request hash has 32 bytes', 'Make it by onced.raw_hash(method, path, query, media_type, body).');
    ELSIF onced._is_known_version(claim.hash_version) IS NOT TRUE THEN
        PERFORM onced._refuse('this hash version is unknown here', 'Name the recipe of the hash: 1:raw for onced.raw_hash.');
    ELSIF (claim.token ~ '^[A-Za-z0-9_-]+$' AND length(claim.token) BETWEEN 16 AND 64) IS NOT TRUE THEN
        PERFORM onced._refuse('a lease token is 16 to 64 of A-Z a-z 0-9 _ -', 'Leave it out, or make a random one for each delivery, such as a UUID.');
    ELSIF (claim.keep > interval '0' AND claim.retry_window >= interval '0') IS NOT TRUE THEN
        PERFORM onced._refuse('a retention is longer than nothing, and a retry window not negative', 'Give twice the time for which the sender retries.');
    ELSIF claim.enter IS NULL OR claim.enter NOT IN ('in_progress', 'pending_external') THEN
        PERFORM onced._refuse('enter is in_progress or pending_external', 'Take pending_external only where an outside call follows at once.');
    ELSIF policy.max_attempts < 1 THEN
        PERFORM onced._refuse('max_attempts is 1 or more, or null for no limit', 'Give how often execution may begin.');
    ELSIF policy.mismatch IS NULL OR policy.mismatch NOT IN ('reject', 'note') THEN
        PERFORM onced._refuse('mismatch is reject or note', 'Take note only for senders that cannot mend their request.');
    ELSIF policy.on_unknown IS NULL OR policy.on_unknown NOT IN ('retry', 'reconcile', 'hold') THEN
        PERFORM onced._refuse('on_unknown is retry, reconcile or hold', 'Take retry only where the downstream deduplicates by the downstream key.');
    ELSIF policy.downstream_window IS NULL THEN
        PERFORM onced._refuse('downstream_window is missing', 'Give how long the downstream remembers its key.');
    ELSIF policy.log_deliveries IS NULL OR policy.log_deliveries NOT IN ('all', 'executed', 'off') THEN
        PERFORM onced._refuse('log_deliveries is all, executed or off', 'Leave it out to log every delivery.');
    END IF;
    PERFORM onced._check_lease(claim.lease);
END $$;

-- Header names in lower case with their values, as the column holds them: a JSON array of [name, value] pairs, in which
-- each byte of a value is the character of that number. Whatever else stood there, no reader would understand the record.
CREATE FUNCTION onced._are_headers(headers text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    pair json;
BEGIN
    IF json_typeof(headers::json) <> 'array' THEN RETURN false; END IF;
    FOR pair IN SELECT json_array_elements(headers::json) LOOP
        IF json_typeof(pair) <> 'array' THEN RETURN false; END IF;
        IF json_array_length(pair) <> 2 OR json_typeof(pair -> 0) <> 'string' OR json_typeof(pair -> 1) <> 'string' THEN
            RETURN false;
        END IF;
        IF (pair ->> 0) !~ '^[a-z0-9!#$%&''*+.^_`|~-]+$' OR (pair ->> 1) !~ '^[\u0009\u0020-\u007e\u0080-\u00ff]*$' THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END $$;

CREATE FUNCTION onced._check_response(code integer, headers text, body bytea, omitted boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF code NOT BETWEEN 100 AND 999 THEN
        PERFORM onced._refuse('a response code is 100 to 999', 'Give the status that a duplicate shall be answered with.');
    ELSIF code IS NULL AND (headers IS NOT NULL OR body IS NOT NULL OR omitted) THEN
        PERFORM onced._refuse('headers and a body need a response code', 'Give the status that a duplicate shall be answered with.');
    ELSIF omitted IS NULL OR (omitted AND body IS NOT NULL) THEN
        PERFORM onced._refuse('body_omitted is false, or true where no body is given', 'Give the body, or say that it is too large to keep.');
    ELSIF headers IS NOT NULL AND NOT onced._are_headers(headers) THEN
        PERFORM onced._refuse('response headers are a JSON array of [name, value] pairs, names in lower case', 'Give text such as [["content-type","application/json"]].');
    END IF;
END $$;

-- Hashes ---------------------------------------------------------------------------------------------------------------

-- A hash over parts that cannot run into each other: each is preceded by its length (four bytes, big endian).
-- The name of the recipe is put together so that it is the same in a schema of another name.
CREATE FUNCTION onced.raw_hash(
    method text, path text, query text, media_type text, body bytea, coding text DEFAULT ''
) RETURNS bytea LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(string_agg(int4send(octet_length(part)) || part, ''::bytea ORDER BY number))
      FROM unnest(
               ARRAY[convert_to('onced' || '.request.1', 'UTF8'), convert_to(coalesce(method, ''), 'UTF8'),
                     convert_to(coalesce(path, ''), 'UTF8'), convert_to(coalesce(query, ''), 'UTF8'),
                     convert_to(lower(btrim(split_part(coalesce(media_type, ''), ';', 1), E' \t') COLLATE "C"), 'UTF8')]
               || CASE WHEN coalesce(coding, '') = '' THEN ARRAY['raw'::bytea]
                       ELSE ARRAY['encoded'::bytea, convert_to(coding, 'UTF8')] END
               || ARRAY[coalesce(body, ''::bytea)]
           ) WITH ORDINALITY AS parts (part, number)
$$;

CREATE FUNCTION onced.downstream_key(scope text, key text, step text DEFAULT 'call') RETURNS text
    LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'onced1_' || rtrim(translate(encode(sha256(string_agg(int4send(octet_length(part)) || part, ''::bytea ORDER BY number)), 'base64'), '+/', '-_'), '=')
      FROM unnest(ARRAY[convert_to(scope, 'UTF8'), convert_to(key, 'UTF8'), convert_to(step, 'UTF8')]) WITH ORDINALITY AS parts (part, number)
$$;

CREATE FUNCTION onced._is_known_version(version text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT version ~ '^1:(all|raw|none|(only|ignore)(=[!-~]*)?)$'
$$;

-- How a request stands to the one of a record: `same`, `differs`, or `unknown`. A hash can be compared with one of its own
-- recipe; under `1:none` all requests are the same. Under another recipe this one's hash would be another, which only who
-- has the request can make. Where the scope merely notes a difference, the careful answer to that is `differs`; but
-- not where the rules themselves are unknown.
CREATE FUNCTION onced._compare(record onced.idempotency_keys, claim onced.claim, policy onced.policy) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN record.hash_version = claim.hash_version
            THEN CASE WHEN record.request_hash = claim.request_hash THEN 'same' ELSE 'differs' END
        WHEN record.hash_version = '1:none' THEN 'same'
        WHEN policy.mismatch = 'note' AND onced._is_known_version(record.hash_version) THEN 'differs'
        ELSE 'unknown'
    END
$$;

-- The decision ---------------------------------------------------------------------------------------------------------

CREATE FUNCTION onced._execute(attempt integer, resumed boolean, taking text) RETURNS onced.verdict LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('execute', attempt, resumed, taking, NULL, false)::onced.verdict
$$;

CREATE FUNCTION onced._plainly(decision text, retry_after interval DEFAULT NULL) RETURNS onced.verdict LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(decision, NULL, NULL, NULL, retry_after, false)::onced.verdict
$$;

CREATE FUNCTION onced._rival_is_at_work() RETURNS onced.verdict LANGUAGE sql IMMUTABLE AS $$
    SELECT onced._plainly('in_progress', interval '1 second')
$$;

-- At least a second, at most the lease.
CREATE FUNCTION onced._wait(until timestamptz, now timestamptz, lease interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(until - now, interval '1 second'), greatest(lease, interval '1 second'))
$$;

-- Gives the facts their meaning.
CREATE FUNCTION onced._decide(seen onced.seen, lock_got boolean, claim onced.claim, policy onced.policy)
    RETURNS onced.verdict LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    record onced.idempotency_keys := seen.record;
    compared text;
    decided onced.verdict;
BEGIN
    -- A rival's transaction is open: what it has written is not visible, what is visible it may be replacing.
    IF record.key IS NULL THEN
        RETURN CASE WHEN lock_got THEN onced._execute(1, false, 'insert') ELSE onced._rival_is_at_work() END;
    ELSIF record.status IN ('completed', 'failed') AND record.expires_at <= seen.now THEN
        RETURN CASE WHEN lock_got THEN onced._execute(1, false, 'expired') ELSE onced._rival_is_at_work() END;
    END IF;
    compared := onced._compare(record, claim, policy);
    IF compared = 'unknown' THEN
        RETURN onced._plainly('not_understood');
    -- Before everything else: a foreign payload never sees a stored response.
    ELSIF compared = 'differs' AND policy.mismatch = 'reject' THEN
        RETURN onced._plainly('mismatch');
    END IF;
    decided := onced._of_record(seen, compared = 'differs', policy);
    IF NOT lock_got AND decided.decision NOT IN ('replay', 'not_understood') THEN
        decided := onced._rival_is_at_work();
    END IF;
    decided.payload_differs := compared = 'differs';
    RETURN decided;
END $$;

CREATE FUNCTION onced._of_record(seen onced.seen, differs boolean, policy onced.policy)
    RETURNS onced.verdict LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    record onced.idempotency_keys := seen.record;
    attempts_left boolean := policy.max_attempts IS NULL OR record.attempt < policy.max_attempts;
    next integer := record.attempt + 1;
    -- Past the downstream's memory the same key would be a new call.
    downstream_remembers boolean := record.called_at IS NULL OR seen.now - record.called_at < policy.downstream_window;
    -- Also where the attempt that called has failed, and a later one was cut off before it announced a call.
    may_begin_again boolean := attempts_left AND (policy.on_unknown <> 'retry' OR downstream_remembers);
    call_known boolean := (seen.call).key IS NOT NULL;
    unknown onced.verdict := onced._plainly('unknown',
        CASE WHEN record.next_probe_at IS NULL THEN policy.lease ELSE onced._wait(record.next_probe_at, seen.now, policy.lease) END);
BEGIN
    RETURN CASE
        WHEN record.status = 'completed' THEN onced._plainly('replay')
        WHEN record.status = 'queued' THEN onced._execute(1, false, 'queued')
        WHEN record.status IN ('in_progress', 'pending_external') AND record.lease_until > seen.now
            THEN onced._plainly('in_progress', onced._wait(record.lease_until, seen.now, policy.lease))
        WHEN record.status = 'in_progress' AND may_begin_again THEN onced._execute(next, true, 'lease_over')
        WHEN record.status = 'in_progress' THEN onced._plainly('give_up')
        -- The downstream key is bound to the first payload, which nobody has any more.
        WHEN record.status = 'pending_external' AND differs THEN unknown
        WHEN record.status = 'pending_external' AND call_known THEN onced._execute(next, true, 'pending_lease_over')
        WHEN record.status = 'pending_external' AND policy.on_unknown = 'retry' AND attempts_left AND downstream_remembers
            THEN onced._execute(next, true, 'pending_lease_over')
        WHEN record.status = 'pending_external' THEN unknown
        WHEN record.status = 'failed' AND may_begin_again
            THEN onced._execute(next, false, 'failed')
        WHEN record.status = 'failed' AND record.response_code IS NOT NULL THEN onced._plainly('replay')
        WHEN record.status = 'failed' THEN onced._plainly('exhausted')
        ELSE onced._plainly('not_understood')
    END;
END $$;

-- The steps, as in sql/*.sql ----------------------------------------------------------------------------------------------

-- A random id that is ordered by time, as sweeping the log needs it.
CREATE FUNCTION onced._delivery_id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(onced.micros(at) / 1000), 12, '0') || '7' || right(replace(gen_random_uuid()::text, '-', ''), 19))::uuid
$$;

CREATE FUNCTION onced._log(delivery uuid, scope text, key text, at timestamptz, decision text, request_hash bytea, attempt integer)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF delivery IS NOT NULL THEN
        INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
        VALUES (_log.delivery, _log.scope, _log.key, _log.at, _log.decision, _log.request_hash, _log.attempt);
    END IF;
END $$;

-- Claim a key that has no record, without ever waiting for a rival: the lock is tried, not taken, and is got before the
-- insert meets the unique constraint. A record that is seen is not inserted upon: ON CONFLICT would wait for an owner
-- that has written its outcome there and not yet committed.
CREATE FUNCTION onced._claim(claim onced.claim) RETURNS onced.claimed LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := onced.clock();
    claimed onced.claimed := ROW('yes', NULL, NULL);
BEGIN
    IF NOT pg_try_advisory_xact_lock(onced.lock_id(claim.scope, claim.key)) THEN
        RETURN ROW('lock_missed', NULL, NULL)::onced.claimed;
    END IF;
    INSERT INTO onced.idempotency_keys AS k
        (scope, key, request_hash, hash_version, status, attempt, lease_token, lease_until, downstream_key, called_at,
         retry_window, created_at, updated_at, expires_at)
    SELECT claim.scope, claim.key, claim.request_hash, claim.hash_version, claim.enter, 1, claim.token, at + claim.lease,
           claim.downstream_key, CASE WHEN claim.enter = 'pending_external' THEN at END,
           claim.retry_window, at, at, at + claim.keep
     WHERE NOT EXISTS (SELECT FROM onced.idempotency_keys o WHERE o.scope = claim.scope AND o.key = claim.key)
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING k.attempt, k.expires_at INTO claimed.attempt, claimed.expires_at;
    IF NOT FOUND THEN
        RETURN ROW('no', NULL, NULL)::onced.claimed;
    END IF;
    PERFORM onced._log(claim.delivery, claim.scope, claim.key, at, 'execute', claim.request_hash, claimed.attempt);
    RETURN claimed;
END $$;

-- Read a record, in a statement of its own: only a new snapshot is sure to see the row that a claim ran into.
CREATE FUNCTION onced._find(scope text, key text) RETURNS onced.seen LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seen onced.seen;
BEGIN
    SELECT k, s, onced.clock() INTO seen.record, seen.call, seen.now
      FROM onced.idempotency_keys k
      LEFT JOIN onced.idempotency_keys s
        ON k.status = 'pending_external' AND s.scope = k.scope || '#call' AND s.key = k.key AND s.status = 'completed'
     WHERE k.scope = _find.scope AND k.key = _find.key;
    RETURN seen;
END $$;

-- Take an existing record for the next attempt. Repeats all that was decided on: status, attempt, token, and the time at
-- which it became free. Never waits: the claim lock is tried, and a row that a rival has locked is skipped.
CREATE FUNCTION onced._take(claim onced.claim, record onced.idempotency_keys, taking text)
    RETURNS onced.claimed LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := onced.clock();
    -- A pending record stays pending: whatever the claimant meant to do, a call may have happened.
    next text := CASE WHEN taking = 'pending_lease_over' THEN record.status ELSE claim.enter END;
    claimed onced.claimed := ROW('yes', NULL, NULL);
BEGIN
    IF NOT pg_try_advisory_xact_lock(onced.lock_id(claim.scope, claim.key)) THEN
        RETURN ROW('lock_missed', NULL, NULL)::onced.claimed;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT k.scope, k.key
          FROM onced.idempotency_keys k
         WHERE k.scope = claim.scope AND k.key = claim.key AND k.status = record.status AND k.attempt = record.attempt
           AND k.lease_token IS NOT DISTINCT FROM record.lease_token
           AND (taking NOT IN ('lease_over', 'pending_lease_over') OR k.lease_until <= at)
           FOR UPDATE OF k SKIP LOCKED
    )
    UPDATE onced.idempotency_keys k
       SET status = next, attempt = k.attempt + 1, lease_token = claim.token, lease_until = at + claim.lease,
           downstream_key = coalesce(k.downstream_key, claim.downstream_key),
           called_at = CASE WHEN next = 'pending_external' THEN coalesce(k.called_at, at) ELSE k.called_at END,
           called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, completed_at = NULL,
           updated_at = at
      FROM free
     WHERE k.scope = free.scope AND k.key = free.key AND k.status = record.status AND k.attempt = record.attempt
       AND k.lease_token IS NOT DISTINCT FROM record.lease_token
       AND (taking NOT IN ('lease_over', 'pending_lease_over') OR k.lease_until <= at)
    RETURNING k.attempt, k.expires_at INTO claimed.attempt, claimed.expires_at;
    IF NOT FOUND THEN
        RETURN ROW('no', NULL, NULL)::onced.claimed;
    END IF;
    PERFORM onced._log(claim.delivery, claim.scope, claim.key, at, 'execute', claim.request_hash, claimed.attempt);
    RETURN claimed;
END $$;

-- Replace a finished record that has expired: the key counts as unknown again. Never waits. The steps of the old life go
-- with it.
CREATE FUNCTION onced._replace(claim onced.claim, record onced.idempotency_keys)
    RETURNS onced.claimed LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := onced.clock();
    claimed onced.claimed := ROW('yes', NULL, NULL);
BEGIN
    IF NOT pg_try_advisory_xact_lock(onced.lock_id(claim.scope, claim.key)) THEN
        RETURN ROW('lock_missed', NULL, NULL)::onced.claimed;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT k.scope, k.key
          FROM onced.idempotency_keys k
         WHERE k.scope = claim.scope AND k.key = claim.key AND k.status IN ('completed', 'failed')
           AND k.lease_token IS NOT DISTINCT FROM record.lease_token AND k.expires_at <= at
           FOR UPDATE OF k SKIP LOCKED
    )
    UPDATE onced.idempotency_keys k
       SET request_hash = claim.request_hash, hash_version = claim.hash_version, status = claim.enter, attempt = 1,
           lease_token = claim.token, lease_until = at + claim.lease, downstream_key = claim.downstream_key,
           called_at = CASE WHEN claim.enter = 'pending_external' THEN at END,
           retry_window = claim.retry_window, created_at = at, updated_at = at, expires_at = at + claim.keep,
           response_code = NULL, response_headers = NULL, response_body = NULL, body_omitted = false,
           called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, error = NULL, completed_at = NULL
      FROM free
     WHERE k.scope = free.scope AND k.key = free.key AND k.status IN ('completed', 'failed')
       AND k.lease_token IS NOT DISTINCT FROM record.lease_token AND k.expires_at <= at
    RETURNING k.attempt, k.expires_at INTO claimed.attempt, claimed.expires_at;
    IF NOT FOUND THEN
        RETURN ROW('no', NULL, NULL)::onced.claimed;
    END IF;
    DELETE FROM onced.idempotency_keys s
     WHERE s.key = claim.key AND s.scope > claim.scope || '#' AND s.scope < claim.scope || '$';
    PERFORM onced._log(claim.delivery, claim.scope, claim.key, at, 'execute', claim.request_hash, claimed.attempt);
    RETURN claimed;
END $$;

-- Mark a record that is out of attempts as failed; false means that a rival is at work or was faster. Never waits. The
-- token goes, so that its owner does not take the record for its own.
CREATE FUNCTION onced._give_up(scope text, key text, record onced.idempotency_keys, why text)
    RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := onced.clock();
BEGIN
    IF NOT pg_try_advisory_xact_lock(onced.lock_id(_give_up.scope, _give_up.key)) THEN
        RETURN false;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT k.scope, k.key
          FROM onced.idempotency_keys k
         WHERE k.scope = _give_up.scope AND k.key = _give_up.key AND k.status = 'in_progress' AND k.attempt = record.attempt
           AND k.lease_token IS NOT DISTINCT FROM record.lease_token AND k.lease_until <= at
           FOR UPDATE OF k SKIP LOCKED
    )
    UPDATE onced.idempotency_keys k
       SET status = 'failed', lease_token = NULL, lease_until = NULL, error = why, updated_at = at,
           expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, at + k.retry_window) END
      FROM free
     WHERE k.scope = free.scope AND k.key = free.key AND k.status = 'in_progress' AND k.attempt = record.attempt
       AND k.lease_token IS NOT DISTINCT FROM record.lease_token AND k.lease_until <= at;
    RETURN FOUND;
END $$;

-- Beginning -----------------------------------------------------------------------------------------------------------

-- The record is the caller's.
CREATE FUNCTION onced._ours(claim onced.claim, claimed onced.claimed, seen onced.seen, verdict onced.verdict)
    RETURNS onced.begun LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    record onced.idempotency_keys := seen.record;
    call onced.idempotency_keys;
    begun onced.begun;
BEGIN
    begun.decision := 'execute';
    begun.attempt := claimed.attempt;
    begun.resumed := verdict.resumed;
    begun.lease_token := claim.token;
    -- What earlier attempts sent along; an expired record begins a new life, with a key of its own making.
    begun.downstream_key := claim.downstream_key;
    IF verdict.taking NOT IN ('insert', 'expired') THEN
        begun.downstream_key := coalesce(record.downstream_key, claim.downstream_key);
    END IF;
    begun.call_known := false;
    IF verdict.taking = 'pending_lease_over' AND (seen.call).key IS NOT NULL THEN
        call := seen.call;
        begun.call_known := true;
        begun.call_code := coalesce(call.response_code, 204);
        begun.call_headers := call.response_headers;
        begun.call_body := call.response_body;
        begun.call_omitted := call.body_omitted;
    END IF;
    begun.payload_differs := verdict.payload_differs;
    begun.expires_at := claimed.expires_at;
    RETURN begun;
END $$;

-- The record is not the caller's, or there is none.
CREATE FUNCTION onced._told(claim onced.claim, policy onced.policy, seen onced.seen, verdict onced.verdict)
    RETURNS onced.begun LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    record onced.idempotency_keys := seen.record;
    at timestamptz := onced.clock();
    begun onced.begun;
BEGIN
    IF verdict.decision = 'not_understood' THEN
        RAISE EXCEPTION USING ERRCODE = 'OC002',
            MESSAGE = format('the record of scope %s, key %s was made by another recipe (%s) than this request (%s), or by a newer onced',
                             claim.scope, onced._shortened(claim.key), record.hash_version, claim.hash_version),
            HINT = 'Nothing was executed or replayed. Answer 503, and give all callers of this scope the same recipe and version.';
    END IF;
    -- A rival kept changing the record until our rounds were used up.
    begun.decision := CASE WHEN verdict.decision IN ('execute', 'give_up') THEN 'in_progress' ELSE verdict.decision END;
    begun.attempt := coalesce(record.attempt, 0);
    begun.retry_after := ceil(extract(epoch FROM verdict.retry_after));
    begun.payload_differs := verdict.payload_differs;
    begun.expires_at := record.expires_at;
    IF verdict.decision = 'replay' THEN
        -- An application that completes its record without a response has nothing to say again.
        begun.response_code := coalesce(record.response_code, 204);
        begun.response_headers := CASE WHEN record.response_code IS NOT NULL THEN record.response_headers END;
        begun.response_body := CASE WHEN record.response_code IS NOT NULL THEN record.response_body END;
        begun.body_omitted := record.response_code IS NOT NULL AND record.body_omitted;
    END IF;
    IF policy.log_deliveries = 'all' THEN
        PERFORM onced._log(onced._delivery_id(at), claim.scope, claim.key, at,
                           replace(begun.decision, '_', '-') || CASE WHEN begun.payload_differs THEN ', payload differs' ELSE '' END,
                           claim.request_hash, begun.attempt);
    END IF;
    RETURN begun;
END $$;

-- Claim, else read, decide, take. Each of these is a statement with a snapshot of its own.
CREATE FUNCTION onced._begin(claim onced.claim, policy onced.policy) RETURNS onced.begun LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    look_first boolean := false;
    lock_got boolean;
    claimed onced.claimed;
    seen onced.seen;
    verdict onced.verdict;
BEGIN
    -- So often a record that keeps changing under our eyes is looked at again.
    FOR round IN 1..5 LOOP
        lock_got := true;
        IF NOT look_first THEN
            claimed := onced._claim(claim);
            IF claimed.result = 'yes' THEN
                RETURN onced._ours(claim, claimed, NULL, onced._execute(1, false, 'insert'));
            END IF;
            lock_got := claimed.result <> 'lock_missed';
        END IF;
        seen := onced._find(claim.scope, claim.key);
        IF (seen.record).key IS NULL THEN
            IF NOT lock_got THEN
                RETURN onced._told(claim, policy, NULL, onced._rival_is_at_work());
            END IF;
            -- Not there yet, or gone in between: claim.
            look_first := false;
            CONTINUE;
        END IF;
        look_first := true;
        -- After a lost reply: an unfinished record that carries the caller's own token is the caller's. What the lost
        -- reply said of earlier attempts is said again as far as the record knows.
        IF (seen.record).lease_token = claim.token AND (seen.record).status IN ('in_progress', 'pending_external') THEN
            verdict := onced._execute((seen.record).attempt, (seen.record).attempt > 1,
                CASE WHEN (seen.record).status = 'pending_external' THEN 'pending_lease_over' ELSE 'lease_over' END);
            RETURN onced._ours(claim, ROW('yes', (seen.record).attempt, (seen.record).expires_at)::onced.claimed, seen, verdict);
        END IF;
        verdict := onced._decide(seen, lock_got, claim, policy);
        CASE verdict.decision
            WHEN 'execute' THEN
                IF verdict.taking = 'expired' THEN
                    claimed := onced._replace(claim, seen.record);
                ELSE
                    claimed := onced._take(claim, seen.record, verdict.taking);
                END IF;
                IF claimed.result = 'yes' THEN
                    RETURN onced._ours(claim, claimed, seen, verdict);
                END IF;
            WHEN 'give_up' THEN
                claimed.result := 'lock_missed';
                IF onced._give_up(claim.scope, claim.key, seen.record, format('gave up after %s starts', (seen.record).attempt)) THEN
                    claimed.result := 'no';
                END IF;
            ELSE
                RETURN onced._told(claim, policy, seen, verdict);
        END CASE;
        IF claimed.result = 'lock_missed' THEN
            -- What a rival has written is not visible: only a replay or a mismatch may be answered.
            seen := onced._find(claim.scope, claim.key);
            RETURN onced._told(claim, policy, seen, onced._decide(seen, false, claim, policy));
        END IF;
    END LOOP;
    RETURN onced._told(claim, policy, NULL, onced._rival_is_at_work());
END $$;

-- A transaction has no lease to save anyone from an owner that hangs inside it: where it has no bounds, the lease bounds
-- it from the next statement on. A tighter bound of the caller's own stays.
CREATE FUNCTION onced._bound_transaction(lease interval) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    bound text := least(extract(epoch FROM lease) * 1000, 2147483647)::bigint::text;
BEGIN
    IF current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN interval '1 ms' AND lease THEN
        PERFORM set_config('idle_in_transaction_session_timeout', bound, true);
    END IF;
    IF current_setting('statement_timeout')::interval = interval '0' THEN
        PERFORM set_config('statement_timeout', bound, true);
    END IF;
END $$;

-- For applications ----------------------------------------------------------------------------------------------------
-- Each bounds its own waits for a lock, as the library's connections do.

CREATE FUNCTION onced.begin(
    scope text, key text, request_hash bytea, hash_version text DEFAULT '1:raw',
    lease interval DEFAULT '30 seconds', retention interval DEFAULT '7 days', retry_window interval DEFAULT NULL,
    max_attempts integer DEFAULT 5, on_unknown text DEFAULT 'reconcile', downstream_window interval DEFAULT '24 hours',
    mismatch text DEFAULT 'reject', enter text DEFAULT 'in_progress', log_deliveries text DEFAULT 'all',
    lease_token text DEFAULT NULL
) RETURNS onced.begun LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    claim onced.claim;
    policy onced.policy := ROW(lease, max_attempts, mismatch, on_unknown, downstream_window, log_deliveries);
BEGIN
    claim.scope := scope;
    claim.key := key;
    claim.request_hash := request_hash;
    claim.hash_version := hash_version;
    claim.enter := enter;
    claim.token := coalesce(lease_token, replace(gen_random_uuid()::text, '-', ''));
    claim.lease := onced._exact(lease);
    claim.keep := onced._exact(retention);
    claim.retry_window := coalesce(onced._exact(retry_window), claim.keep / 2);
    PERFORM onced._check_claim(claim, policy);
    claim.downstream_key := onced.downstream_key(scope, key);
    IF log_deliveries <> 'off' THEN
        claim.delivery := onced._delivery_id(onced.clock());
    END IF;
    PERFORM onced._bound_transaction(claim.lease);
    RETURN onced._begin(claim, policy);
END $$;

CREATE FUNCTION onced._claim_lost(scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'OC001',
        MESSAGE = format('the claim of scope %s, key %s was lost: nothing may be written', scope, onced._shortened(key)),
        HINT = 'Roll back. Another attempt has taken over, or the record has ended: ask by onced.begin what it has come to.';
END $$;

-- Store the outcome. Status and token guard the change.
CREATE FUNCTION onced.complete(
    scope text, key text, lease_token text, response_code integer DEFAULT NULL, response_headers text DEFAULT NULL,
    response_body bytea DEFAULT NULL, body_omitted boolean DEFAULT false, only_from text DEFAULT NULL
) RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    PERFORM onced._check_response(complete.response_code, complete.response_headers, complete.response_body, complete.body_omitted);
    UPDATE onced.idempotency_keys k
       SET status = 'completed', lease_until = NULL, response_code = complete.response_code,
           response_headers = complete.response_headers, response_body = complete.response_body,
           body_omitted = complete.body_omitted, error = NULL, held_at = NULL, next_probe_at = NULL,
           completed_at = onced.clock(), updated_at = onced.clock(),
           expires_at = CASE WHEN expires_at IS NOT NULL THEN greatest(expires_at, onced.clock() + retry_window) END
     WHERE scope = complete.scope AND key = complete.key AND lease_token = complete.lease_token
       AND status IN ('in_progress', 'pending_external') AND (complete.only_from IS NULL OR status = complete.only_from)
    RETURNING k.expires_at INTO until;
    IF NOT FOUND THEN PERFORM onced._claim_lost(complete.scope, complete.key); END IF;
    RETURN until;
END $$;

-- Record a failed attempt. Status and token guard the change: an error path after a lost commit reply cannot turn
-- `completed` into `failed`. The error goes into a column that people read.
CREATE FUNCTION onced.fail(
    scope text, key text, lease_token text, error text, response_code integer DEFAULT NULL,
    response_headers text DEFAULT NULL, response_body bytea DEFAULT NULL, body_omitted boolean DEFAULT false,
    only_from text DEFAULT NULL
) RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    PERFORM onced._check_response(fail.response_code, fail.response_headers, fail.response_body, fail.body_omitted);
    UPDATE onced.idempotency_keys k
       SET status = 'failed', lease_until = NULL, response_code = fail.response_code,
           response_headers = fail.response_headers, response_body = fail.response_body, body_omitted = fail.body_omitted,
           error = left(regexp_replace(fail.error, '[\u0001-\u001f\u007f-\u009f]', '', 'g'), 200), updated_at = onced.clock(),
           expires_at = CASE WHEN expires_at IS NOT NULL THEN greatest(expires_at, onced.clock() + retry_window) END
     WHERE scope = fail.scope AND key = fail.key AND lease_token = fail.lease_token
       AND status IN ('in_progress', 'pending_external') AND (fail.only_from IS NULL OR status = fail.only_from)
    RETURNING k.expires_at INTO until;
    IF NOT FOUND THEN PERFORM onced._claim_lost(fail.scope, fail.key); END IF;
    RETURN until;
END $$;

-- Announce an outside call, and set the lease anew.
CREATE FUNCTION onced.external(scope text, key text, lease_token text, lease interval DEFAULT '30 seconds')
    RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    PERFORM onced._check_lease(external.lease);
    UPDATE onced.idempotency_keys k
       SET status = 'pending_external', called_at = coalesce(called_at, onced.clock()), updated_at = onced.clock(),
           lease_until = onced.clock() + onced._exact(external.lease)
     WHERE scope = external.scope AND key = external.key AND lease_token = external.lease_token AND status = 'in_progress'
    RETURNING k.expires_at INTO until;
    IF NOT FOUND THEN PERFORM onced._claim_lost(external.scope, external.key); END IF;
    RETURN until;
END $$;

-- Extend the lease. Never waits: who is slow to commit an ending holds the row, and must not hold up others as well.
CREATE FUNCTION onced.renew(scope text, key text, lease_token text, lease interval DEFAULT '30 seconds')
    RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    PERFORM onced._check_lease(renew.lease);
    WITH mine AS MATERIALIZED (
        SELECT o.scope, o.key FROM onced.idempotency_keys o
         WHERE o.scope = renew.scope AND o.key = renew.key AND o.lease_token = renew.lease_token
           AND o.status IN ('in_progress', 'pending_external')
           FOR UPDATE NOWAIT
    )
    UPDATE onced.idempotency_keys k
       SET lease_until = onced.clock() + onced._exact(renew.lease), updated_at = onced.clock()
      FROM mine
     WHERE k.scope = mine.scope AND k.key = mine.key AND k.lease_token = renew.lease_token
       AND k.status IN ('in_progress', 'pending_external')
    RETURNING k.expires_at INTO until;
    IF NOT FOUND THEN PERFORM onced._claim_lost(renew.scope, renew.key); END IF;
    RETURN until;
END $$;

-- Give a key back, as if it had never been claimed: not after an earlier attempt, a step, or the announcement of a call.
CREATE FUNCTION onced.release(scope text, key text, lease_token text)
    RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    DELETE FROM onced.idempotency_keys k
     WHERE k.scope = release.scope AND k.key = release.key AND k.lease_token = release.lease_token
       AND k.status = 'in_progress' AND k.attempt = 1
       AND NOT EXISTS (SELECT FROM onced.idempotency_keys s
                        WHERE s.key = k.key AND s.scope > k.scope || '#' AND s.scope < k.scope || '$')
    RETURNING k.expires_at INTO until;
    IF NOT FOUND THEN PERFORM onced._claim_lost(release.scope, release.key); END IF;
    RETURN until;
END $$;

-- A person says what came of an outside call. False means that the record is not pending, that its owner may be alive, that
-- it has changed since it was read, or that too little time has passed to believe that nothing happened. The reason
-- commits with it.
CREATE FUNCTION onced.resolve(
    scope text, key text, lease_token text, outcome text, who text, reason text, response_code integer DEFAULT NULL,
    response_headers text DEFAULT NULL, response_body bytea DEFAULT NULL, body_omitted boolean DEFAULT false,
    settle interval DEFAULT '60 seconds'
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    at timestamptz := onced.clock();
BEGIN
    IF resolve.outcome IS NULL OR resolve.outcome NOT IN ('happened', 'did_not_happen') THEN
        PERFORM onced._refuse('an outcome is happened or did_not_happen', 'Ask the downstream first; nothing is guessed.');
    ELSIF (resolve.who ~ '\S' AND resolve.reason ~ '\S') IS NOT TRUE THEN
        PERFORM onced._refuse('who decided it, and why, is kept', 'Give both.');
    ELSIF resolve.outcome = 'did_not_happen' AND resolve.response_code IS NOT NULL THEN
        PERFORM onced._refuse('what did not happen has no response', 'Leave the response out.');
    ELSIF (resolve.settle >= interval '0') IS NOT TRUE THEN
        PERFORM onced._refuse('settle is not negative', 'Give twice the time for which a call may be under way.');
    END IF;
    PERFORM onced._check_response(resolve.response_code, resolve.response_headers, resolve.response_body, resolve.body_omitted);
    IF resolve.outcome = 'happened' THEN
        UPDATE onced.idempotency_keys k
           SET status = 'completed', lease_token = NULL, lease_until = NULL,
               response_code = coalesce(resolve.response_code, 204), response_headers = resolve.response_headers,
               response_body = resolve.response_body, body_omitted = resolve.body_omitted,
               error = NULL, held_at = NULL, next_probe_at = NULL, completed_at = at, updated_at = at,
               expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, at + k.retry_window) END
         WHERE k.scope = resolve.scope AND k.key = resolve.key AND k.lease_token IS NOT DISTINCT FROM resolve.lease_token
           AND k.status = 'pending_external' AND k.lease_until <= at;
    ELSE
        UPDATE onced.idempotency_keys k
           SET status = 'failed', lease_token = NULL, lease_until = NULL,
               error = 'resolved as not having happened: ' || resolve.reason, held_at = NULL, next_probe_at = NULL, updated_at = at,
               expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, at + k.retry_window) END
         WHERE k.scope = resolve.scope AND k.key = resolve.key AND k.lease_token IS NOT DISTINCT FROM resolve.lease_token
           AND k.status = 'pending_external' AND k.lease_until <= at
           AND coalesce(k.called_until, k.lease_until) + onced._exact(resolve.settle) <= at;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- What is true of the whole is true of a step that has no outcome.
    UPDATE onced.idempotency_keys s
       SET status = CASE WHEN resolve.outcome = 'happened' THEN 'completed' ELSE 'failed' END, lease_token = NULL,
           lease_until = NULL, error = 'resolved with the whole', updated_at = at,
           completed_at = CASE WHEN resolve.outcome = 'happened' THEN at END
     WHERE s.key = resolve.key AND s.scope > resolve.scope || '#' AND s.scope < resolve.scope || '$'
       AND s.status = 'pending_external';
    INSERT INTO onced.audit (id, at, who, action, scope, key, reason)
    VALUES (onced._delivery_id(at), at, resolve.who,
            CASE WHEN resolve.outcome = 'happened' THEN 'resolve --happened' ELSE 'resolve --did-not-happen' END,
            resolve.scope, resolve.key, resolve.reason);
    RETURN true;
END $$;

-- Rights ---------------------------------------------------------------------------------------------------------------
-- PostgreSQL lets everybody call a new function. Here whoever may do so is named: `onced migrate --grant ROLE`.

REVOKE ALL ON FUNCTION
    onced._refuse, onced._shortened, onced._exact, onced._check_lease, onced._check_claim, onced._are_headers,
    onced._check_response, onced._is_known_version, onced._compare, onced._execute, onced._plainly, onced._rival_is_at_work,
    onced._wait, onced._decide, onced._of_record, onced._delivery_id, onced._log, onced._claim, onced._find, onced._take,
    onced._replace, onced._give_up, onced._ours, onced._told, onced._begin, onced._bound_transaction, onced._claim_lost,
    onced.raw_hash, onced.downstream_key, onced.begin, onced.complete, onced.fail, onced.external, onced.renew,
    onced.release, onced.resolve
    FROM PUBLIC;
