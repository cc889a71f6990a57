"""FastAPI and psycopg: orders, refunds and events in the application's own transaction, charges with a call to a provider.

    onced print python > onced.py
    onced migrate --store $DATABASE_URL        # and examples/schema.sql
    DATABASE_URL=… PROVIDER=http://… TENANTS='{"a-token": "acme"}' uvicorn app:app
"""

import json
import os
import urllib.error
import urllib.request
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from psycopg_pool import ConnectionPool

import onced

pool = ConnectionPool(os.environ["DATABASE_URL"], max_size=5, timeout=5, open=True)
PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:9000")
TENANTS: dict[str, str] = json.loads(os.environ.get("TENANTS", "{}"))
app = FastAPI()


# The glue between FastAPI and onced.
async def delivered(request: Request) -> tuple[str | None, bytes, bytes]:
    """The key, the fingerprint and the body."""
    head, scope, body = request.headers, request.scope, await request.body()
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    media, coding = head.get("content-type", ""), head.get("content-encoding", "")
    key = onced.header_key(head.getlist("idempotency-key"))
    return key, onced.raw_hash(request.method, path, query, media, body, coding), body


def reply(answer: onced.Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
    return response


# The application.
def tenant(authorization: Annotated[str, Header()] = "") -> str:
    """Who calls; looked at before the key, so that no stranger learns whether a key exists."""
    if name := TENANTS.get(authorization.removeprefix("Bearer ")):
        return name
    raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})


Incoming, Tenant = Annotated[tuple, Depends(delivered)], Annotated[str, Depends(tenant)]


def told(status: int, **content: Any) -> onced.Answer:
    return onced.Answer(status, json.dumps(content).encode(), [("content-type", "application/json")])


@app.get("/healthz")
def healthz() -> str:
    return "ok"


@app.api_route("/api/order", methods=["POST", "PUT"])
@app.post("/api/order/{number}")
def order(incoming: Incoming, tenant: Tenant) -> Response:
    key, request_hash, body = incoming

    def work(conn, claim):
        insert = "INSERT INTO orders (tenant, body) VALUES (%s, %s) RETURNING id"
        return told(201, tenant=tenant, order=conn.execute(insert, (tenant, body)).fetchone()[0])

    return reply(onced.atomic(pool.connection, f"{tenant}:api.order", key, request_hash, work))


@app.post("/api/refund")
def refund(incoming: Incoming, tenant: Tenant) -> Response:
    key, request_hash, _ = incoming

    def work(conn, claim):
        conn.execute("INSERT INTO jobs (kind, payload) VALUES ('refund', %s)", (tenant,))
        return told(202, tenant=tenant, refund="queued")

    return reply(onced.atomic(pool.connection, f"{tenant}:api.refund", key, request_hash, work))


@app.post("/hooks/stripe")
def event(incoming: Incoming) -> Response:
    """An event's id is its key. Two events about one subscription are two keys, and one order, by its unique reference."""
    _, request_hash, body = incoming
    event = json.loads(body)
    about = event["data"]["object"]

    def work(conn, claim):
        insert = "INSERT INTO orders (tenant, reference, body) VALUES ('stripe', %s, %s) ON CONFLICT (reference) DO NOTHING"
        reference = about.get("subscription") or about["id"]
        if conn.execute(insert, (reference, body)).rowcount == 1:
            # The mail goes out after the commit, by the example of a queue: job_queue.
            conn.execute("INSERT INTO jobs (kind, payload) VALUES ('mail', %s)", (reference,))
        return told(200, ok=True)

    return reply(onced.atomic(pool.connection, "stripe.events", event["id"], request_hash, work, mismatch="note"))


@app.post("/api/charge")
def charge(incoming: Incoming, tenant: Tenant) -> Response:
    """The provider deduplicates by the key that it is sent, so that an unknown outcome may be asked for again."""
    key, request_hash, body = incoming

    def call(claim):
        headers = {"Idempotency-Key": claim.downstream_key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{PROVIDER}/charges", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return onced.Answer(response.status, response.read())
        except urllib.error.HTTPError as refused:
            answer = onced.Answer(refused.code, refused.read())
            if refused.code >= 500 or refused.code in (401, 403, 407, 408, 409, 425, 429):  # no outcome: ask again
                raise onced.NoEffect(answer)
            return answer

    def work(conn, claim, answered):
        if answered.status < 300:
            conn.execute("INSERT INTO orders (tenant, body) VALUES (%s, %s)", (tenant, answered.body))
        return onced.Answer(answered.status, answered.body, [("content-type", "application/json")])

    scope, lease = f"{tenant}:api.charge", timedelta(seconds=60)
    answer = onced.leased(pool.connection, scope, key, request_hash, call, work, lease, on_unknown="retry")
    return reply(answer)
