"""SQLAlchemy: the transaction is the session's own, and onced writes its key and its answer in it.

    onced print python > onced.py
    onced migrate --store $DATABASE_URL        # and examples/schema.sql
    DATABASE_URL=postgresql://… uvicorn app:app
"""

import json
import os
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy import BigInteger, Identity, LargeBinary, Text, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import onced

url = os.environ["DATABASE_URL"].replace("postgres://", "postgresql://").replace("postgresql://", "postgresql+psycopg://")
open_session = sessionmaker(create_engine(url, pool_size=5))
app = FastAPI()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant: Mapped[str] = mapped_column(Text)
    body: Mapped[bytes] = mapped_column(LargeBinary)


# The glue between FastAPI, SQLAlchemy and onced.
async def delivered(request: Request) -> tuple[str | None, bytes, bytes]:
    """The key, the fingerprint and the body."""
    head, scope, body = request.headers, request.scope, await request.body()
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    media, coding = head.get("content-type", ""), head.get("content-encoding", "")
    key = onced.header_key(head.getlist("idempotency-key"))
    return key, onced.raw_hash(request.method, path, query, media, body, coding), body


def in_session(session: Session, key: str, request_hash: bytes, work: Callable[[Session], onced.Answer]) -> onced.Answer:
    conn = session.connection().connection.driver_connection  # the driver's own, which is in the session's transaction
    claim = onced.begin(conn, "shop.order", key, request_hash)
    return claim if isinstance(claim, onced.Answer) else claim.complete(conn, work(session))


# The application.


@app.post("/api/order")
def order(incoming: Annotated[tuple, Depends(delivered)]) -> Response:
    key, request_hash, body = incoming

    def work(session: Session) -> onced.Answer:
        placed = Order(tenant="shop", body=body)
        session.add(placed)
        session.flush()
        return onced.Answer(201, json.dumps({"order": placed.id}).encode(), [("content-type", "application/json")])

    answer = onced.whole(open_session.begin, "shop.order", key, lambda session: in_session(session, key, request_hash, work))
    return Response(answer.body, answer.status, dict(answer.headers))
