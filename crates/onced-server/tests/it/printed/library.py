"""onced.py without a framework: `hashes`, and `own-transaction`, in which a known key is met between two rows of the caller."""

import json
import sys

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
