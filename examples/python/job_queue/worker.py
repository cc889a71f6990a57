"""A queue in a table, each task keyed by its id: a task that is taken twice takes effect once.

`FOR UPDATE SKIP LOCKED` spreads the work over workers, and a task whose worker has died comes back after a minute. That does not
say whether it has been done: the ledger does. Run as many workers as you like.

    onced print python > onced.py
    onced migrate --store $DATABASE_URL        # and examples/schema.sql
    DATABASE_URL=… PROVIDER=http://… python worker.py
"""

import os
import sys
import time
import urllib.request
from datetime import timedelta

from psycopg_pool import ConnectionPool

import onced

pool = ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2, open=True)
PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:9000")
TAKE = """
UPDATE jobs SET not_before = clock_timestamp() + interval '60 seconds'
 WHERE id = (SELECT id FROM jobs WHERE not_before <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING id, kind, payload
"""


def send(kind: str, payload: str, downstream_key: str) -> int:
    """Asks the provider, which deduplicates by the key that it is sent."""
    request = urllib.request.Request(f"{PROVIDER}/{kind}s", payload.encode(), {"Idempotency-Key": downstream_key})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.status


# The glue between the queue and onced.
def perform(job: int, kind: str, payload: str) -> onced.Answer:
    def call(claim):
        return onced.Answer(send(kind, payload, claim.downstream_key))

    def work(conn, claim, answered):
        conn.execute("DELETE FROM jobs WHERE id = %s", (job,))
        return onced.Answer(204)

    scope, fingerprint = f"jobs.{kind}", onced.raw_hash("", "", "", "", payload.encode())
    policy = {"lease": timedelta(seconds=50), "on_unknown": "retry", "max_attempts": None}
    return onced.leased(pool.connection, scope, str(job), fingerprint, call, work, **policy)


# The application.
while True:
    with pool.connection() as conn:
        task = conn.execute(TAKE).fetchone()
    if task:
        answer = perform(*task)
        if ("idempotent-replayed", "true") in answer.headers:
            # Its outcome is known without its work: somebody has resolved it. It must not be taken when its key has expired.
            with pool.connection() as conn:
                conn.execute("DELETE FROM jobs WHERE id = %s", (task[0],))
        print("job", task[0], answer.status, flush=True)
    elif "--until-empty" in sys.argv:
        break
    else:
        time.sleep(1)
pool.close()
