"""onced.py without a framework: `hashes`, `own-transaction`, in which a known key is met between two rows of the caller, and
`mistakes`, which says what each comes to."""

import contextlib
import json
import sys
import types

import psycopg

import onced

if sys.argv[1] == "hashes":
    requests = json.loads(sys.argv[2])
    print(json.dumps([onced.raw_hash(*head, bytes.fromhex(body), coding).hex() for *head, body, coding in requests]))
    sys.exit()

url, fingerprint = sys.argv[2], onced.raw_hash("POST", "/orders", "", "", b"")
insert = "INSERT INTO orders (tenant, body) VALUES ('t1', %s)"


def work(conn, claim):
    conn.execute(insert, (b"first",))
    return onced.Answer(201, b'{"order":1}')


def raises(kind, run):
    try:
        run()
    except kind:
        return True
    return False


def rows(text):
    with psycopg.connect(url) as conn:
        return conn.execute("SELECT count(*) FROM orders WHERE body = %s", (text,)).fetchone()[0]


if sys.argv[1] == "mistakes":
    begin = dict(scope="shop.order", request_hash=fingerprint)
    alone = lambda: psycopg.connect(url, autocommit=True)
    with psycopg.connect(url) as conn:
        claim = onced.begin(conn, key="alone", **begin)
    told = {}
    with alone() as conn:
        told["ended alone"] = not raises(ValueError, lambda: claim.complete(conn, onced.Answer(201)))
    told["begun alone"] = not raises(ValueError, lambda: onced.atomic(alone, "shop.order", "other", fingerprint, work))
    in_text = lambda conn, claim: conn.execute(insert, (b"text",)) and onced.Answer(201, "{}")
    told["text kept"] = not raises(TypeError, lambda: onced.atomic(lambda: psycopg.connect(url), "shop.order", "text", fingerprint, in_text))
    told["rows of text"] = rows(b"text")

    named = lambda conn, claim: onced.Answer(201, b"{}", [("Content-Type", "application/json"), ("Set-Cookie", "secret")])
    for _ in range(2):
        again = onced.atomic(lambda: psycopg.connect(url), "shop.order", "named", fingerprint, named)
    told["headers"] = sorted(name for name, _ in again.headers)

    # The pool is busy for longer than the lease has room for a call.
    clock = [0.0]
    onced.time = types.SimpleNamespace(monotonic=lambda: clock[0], sleep=None)

    @contextlib.contextmanager
    def busy():
        clock[0] += 25
        with psycopg.connect(url) as conn:
            yield conn

    call = lambda claim: onced.Answer(200)
    told["after a wait"] = onced.leased(busy, "shop.order", "busy", fingerprint, call, lambda conn, claim, answered: answered).status
    print(json.dumps(told))
    sys.exit()

onced.atomic(lambda: psycopg.connect(url), "shop.order", "o30-1", fingerprint, work)
with psycopg.connect(url) as conn:
    conn.execute(insert, (b"before",))
    answer = onced.begin(conn, "shop.order", "o30-1", fingerprint)
    conn.execute(insert, (b"after",))

# Without a transaction a claim would be nobody's: refused, whatever the key.
try:
    with psycopg.connect(url, autocommit=True) as conn:
        onced.begin(conn, "shop.order", "another", fingerprint)
    sys.exit("a claim without a transaction was not refused")
except ValueError:
    pass
print(json.dumps({"status": answer.status, "replayed": dict(answer.headers)["idempotent-replayed"], "body": answer.body.decode()}))
