"""Behind the gateway with effect = "same-database": the gateway has claimed the key, the application completes it.

    onced print python > onced.py
    onced serve --config onced.toml
    DATABASE_URL=… uvicorn app:app --port 3000
"""

import json
import os

from fastapi import Body, FastAPI, Request, Response
from psycopg_pool import ConnectionPool

import onced

pool = ConnectionPool(os.environ["DATABASE_URL"], max_size=5, timeout=5, open=True)
app = FastAPI()


@app.post("/api/order")
def order(request: Request, body: dict = Body()) -> Response:
    # The glue between the gateway and onced: what the gateway has claimed is in the request's head.
    head = request.headers
    token, attempt = head["onced-lease-token"], int(head["onced-attempt"])
    claim = onced.Claim(head["onced-scope"], head["onced-key"], token, attempt, head["idempotency-key"])
    # The application.

    def run(conn):
        insert = "INSERT INTO orders (tenant, body) VALUES ('shop', %s) RETURNING id"
        row = conn.execute(insert, (json.dumps(body).encode(),)).fetchone()
        answer = onced.Answer(201, json.dumps({"order": row[0]}).encode(), [("content-type", "application/json")])
        return claim.complete(conn, answer)

    answer = onced.whole(pool.connection, claim.scope, claim.key, run)
    return Response(answer.body, answer.status, dict(answer.headers))
