"""onced for Python: a trigger (a webhook, an API request, a task of a queue) takes effect once.

The key is a row beside your own rows in PostgreSQL, written by the SQL functions that `onced migrate` makes. This file, by
`onced print python`, only calls them, and puts their decisions as HTTP answers. It needs psycopg 3 and nothing else.

    def work(conn, claim):                    # all that it writes, it writes through conn
        conn.execute("INSERT INTO orders (item) VALUES (%s)", ["tea"])
        return onced.Answer(201, b'{"ok":true}', [("content-type", "application/json")])

    answer = onced.atomic(pool.connection, "shop.order", key, onced.raw_hash("POST", "/orders", "", "application/json", body), work)

What `work` returns is the outcome, which duplicates get; where it raises, nothing is kept. With an outside call: `leased`. In
a transaction that something else opens: `begin` and `Claim.complete` within `whole`. From `async` code: in a thread.
"""
from __future__ import annotations
import datetime, email.utils, hashlib, json, logging, random, re, time, uuid
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Sequence, TypeVar
import psycopg, psycopg.rows
SCHEMA, log = "onced", logging.getLogger("onced")  # another schema where the ledger's setting `schema` names one
Conn = psycopg.Connection[Any]; C = TypeVar("C"); T = TypeVar("T"); Connect = Callable[[], ContextManager[C]]  # commits at its end
KEPT = {"content-type", "content-language", "content-disposition", "content-encoding", "content-location", "location", "etag",
        "last-modified", "cache-control", "vary", "link"}  # they describe an answer; no other header is stored
PROBLEMS = {"in_progress": (409, "in-progress", "same-key", "This request is being executed"),
            "unknown": (409, "outcome-unknown", "same-key", "The outcome is not known"),
            "lost": (504, "outcome-unknown", "same-key", "The outcome is not known"),
            "unavailable": (503, "store-unavailable", "same-key", "The ledger cannot be used"),
            "mismatch": (422, "key-reused", "new-key", "The key belongs to another request"),
            "exhausted": (409, "attempts-exhausted", "never", "All attempts are used up"),
            "missing": (400, "key-missing", "never", "The request has no idempotency key"),
            "invalid": (400, "key-invalid", "never", "The idempotency key cannot be used")}

@dataclass(frozen=True)
class Answer:
    """What a caller is told and, once stored, its duplicates. Names of headers are in lower case."""
    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    def until(self, expires: Any, *more: tuple[str, str]) -> Answer:
        at = [("onced-key-expires", email.utils.format_datetime(expires.astimezone(datetime.timezone.utc), True))] if expires else []
        return replace(self, headers=[*self.headers, *more, *at])

class NoEffect(Exception):
    """`raise NoEffect(answer)` in `call`: no attempt had an effect outside, or on_unknown="retry". The next delivery calls again."""

def problem(cause: str, scope: str, key: str | None, wait: int = 1, expires: Any = None) -> Answer:
    status, code, retry, title = PROBLEMS[cause]
    told = dict(type=f"urn:onced:problem:{code}", code=code, title=title, status=status, retry=retry, scope=scope)
    headers = [("content-type", "application/problem+json"), ("cache-control", "no-store"), ("retry-after", str(wait))]
    return Answer(status, json.dumps({**told, "key": key} if key else told).encode(), headers[: 3 if retry == "same-key" else 2]).until(expires)

def _ask(conn: Conn, function: str, **given: Any) -> dict[str, Any]:
    if function in ("begin", "complete", "fail") and conn.autocommit and conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise ValueError(f"onced.{function} needs a transaction: open one, or turn autocommit off")
    named = ", ".join(f"{name} => %({name})s" for name in given)
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(f"SELECT * FROM {SCHEMA}.{function}({named})".encode(), given).fetchone() or {}

@dataclass(frozen=True)
class Claim:
    """The right to execute one attempt. Its methods run in conn's transaction, and fail with OC001 once it is lost."""
    scope: str
    key: str
    lease_token: str
    attempt: int
    downstream_key: str  # for outside calls, as their Idempotency-Key: the same for every attempt
    resumed: bool = False  # an earlier attempt was cut off
    call: Answer | None = None  # the recorded answer of the outside call: do not call again
    def do(self, conn: Conn, function: str, **given: Any) -> Any:
        """`external`, `renew` or `release`, with the parameters of that SQL function."""
        return _ask(conn, function, scope=self.scope, key=self.key, lease_token=self.lease_token, **given)[function]
    def complete(self, conn: Conn, answer: Answer, function: str = "complete", **given: Any) -> Answer:
        """Stores the outcome beside the business rows; with "fail" and an `error`, an attempt that had no effect."""
        stored = dict(response_code=answer.status, response_body=bytes(answer.body), **given)
        stored["response_headers"] = json.dumps([(name.lower(), value) for name, value in answer.headers if name.lower() in KEPT])
        return answer.until(self.do(conn, function, **stored))

def _restored(row: dict[str, Any], of: str, omitted: bool) -> Answer:
    kept = [(name, value) for name, value in json.loads(row[of + "_headers"] or "[]")]
    return Answer(row[of + "_code"], row[of + "_body"] or b"", kept + [("onced-body", "omitted")] * omitted)

def begin(conn: Conn, scope: str, key: str, request_hash: bytes, **policy: Any) -> Claim | Answer:
    """Claims the key, first of all in conn's transaction. An `Answer` is for the caller. `policy`: as `onced.begin` has it."""
    row = _ask(conn, "begin", scope=scope, key=key, request_hash=request_hash, **policy)
    if row["decision"] == "execute":
        call = _restored(row, "call", row["call_omitted"]) if row["call_known"] else None
        return Claim(scope, key, row["lease_token"], row["attempt"], row["downstream_key"], row["resumed"], call)
    if row["decision"] == "replay":
        return _restored(row, "response", row["body_omitted"]).until(row["expires_at"], ("idempotent-replayed", "true"))
    return problem(row["decision"], scope, key, row["retry_after"], row["expires_at"])

def whole(connect: Connect[C], scope: str, key: str | None, run: Callable[[C], T]) -> T | Answer:
    """Runs a whole transaction, and again after a conflict or a lost connection; 503 where that does not pass."""
    began = time.monotonic()
    for tries in range(1, 6 if key is not None else 1):
        try:
            with connect() as conn:
                return run(conn)
        except Exception as error:
            cause = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's
            state, said = getattr(cause, "sqlstate", None) or "", str(cause)
            passes = isinstance(cause, psycopg.OperationalError) or state[:2] == "40" or state == "25P03"
            if state == "OC003" and "a key is" not in said or not passes and state[:2] != "OC" and not (isinstance(cause, psycopg.Error) and f"{SCHEMA}." in said):
                raise  # the work's own failure, or a mistake in the call of `begin`
            why = {"OC001": "lost ownership", "OC003": "no key"}.get(state, type(cause).__name__)
            log.warning("scope %s, key %.8r: %s %s", scope, key, why, state)
            if not passes or time.monotonic() - began > 5:
                return problem({"OC001": "in_progress", "OC003": "invalid"}.get(state, "unavailable"), scope, key)
            time.sleep(random.uniform(0, 0.02 * 2**tries))
    return problem("missing" if key is None else "unavailable", scope, key)

def atomic(connect: Connect[Conn], scope: str, key: str | None, request_hash: bytes, work: Callable[[Conn, Claim], Answer], **policy: Any) -> Answer:
    """`work(conn, claim)`, its key and its answer in one transaction."""
    def run(conn: Conn) -> Answer:
        claim = begin(conn, scope, key or "", request_hash, **policy)
        return claim if isinstance(claim, Answer) else claim.complete(conn, work(conn, claim))
    return whole(connect, scope, key, run)

def leased(connect: Connect[Conn], scope: str, key: str | None, request_hash: bytes, call: Callable[[Claim], Answer],
           work: Callable[[Conn, Claim, Answer], Answer], lease: datetime.timedelta = datetime.timedelta(seconds=30), **policy: Any) -> Answer:
    """`call(claim)` asks outside, done well within the lease; then `work(conn, claim, its answer)` and the outcome together."""
    policy = {"enter": "pending_external", "lease_token": uuid.uuid4().hex, "lease": lease, **policy}
    started: list[float] = []  # the lease counts from the first `begin`, not from the wait for a connection
    claim = whole(connect, scope, key, lambda conn: (started.append(time.monotonic()), begin(conn, scope, key or "", request_hash, **policy))[1])
    if isinstance(claim, Answer):
        return claim
    try:
        if not claim.call and time.monotonic() - started[0] > lease.total_seconds() * 2 / 3:
            raise TimeoutError("too little is left of the lease to call")
        answered = claim.call or call(claim)
        return whole(connect, scope, key, lambda conn: claim.complete(conn, work(conn, claim, answered)))
    except NoEffect as none:
        return whole(connect, scope, key, lambda conn: claim.complete(conn, none.args[0], "fail", error="no effect"))
    except Exception:
        log.exception("scope %s, key %.8r: the outcome is not known", scope, key)
        return problem("lost", scope, key, max(1, int(lease.total_seconds())))

def raw_hash(method: str, path: str, query: str, media_type: str, body: bytes, coding: str = "") -> bytes:
    """What identifies a request, as `onced.raw_hash` makes it: all as sent, but the body decoded, or its coding named."""
    media = media_type.split(";")[0].strip(" \t").encode().lower()
    head, kind = ["onced.request.1", method, path, query], ["encoded", coding] if coding else ["raw"]
    parts = [*map(str.encode, head), media, *map(str.encode, kind), body]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()

def header_key(lines: Sequence[str]) -> str | None:
    """The key in the lines of `Idempotency-Key`, bare or quoted; None without any. What cannot be a key is refused later."""
    value = "\n".join(lines)
    quoted = re.fullmatch(r'"((?:[^"\\\n]|\\["\\])*)"[ \t]*(;[^\n]*)?', value)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else None if not lines else "" if value.startswith('"') else value
