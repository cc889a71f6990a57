/**
 * Express and pg: orders, refunds and events in the application's own transaction, charges with a call to a provider.
 *
 *     onced print node > onced.mjs
 *     onced migrate --store $DATABASE_URL        # and examples/schema.sql
 *     DATABASE_URL=… PROVIDER=http://… TENANTS='{"a-token": "acme"}' PORT=3000 node app.mjs
 */
import express from 'express'
import pg from 'pg'
import { NoEffect, atomic, headerKey, leased, rawHash } from './onced.mjs'

const { DATABASE_URL, PROVIDER = 'http://127.0.0.1:9000', TENANTS = '{}', PORT = '3000' } = process.env
const tenants = new Map(Object.entries(JSON.parse(TENANTS)))
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 5, connectionTimeoutMillis: 5000 })
pool.on('error', () => {}) // a connection that broke while nobody used it: the pool makes another
const app = express()

// The glue between Express and onced.
function delivered(request) {
  const [path, ...query] = request.originalUrl.split('?')
  const body = request.body ?? Buffer.alloc(0)
  const hash = rawHash(request.method, path, query.join('?'), request.get('content-type'), body)
  return { key: headerKey(request.headersDistinct['idempotency-key']), hash, body }
}
function reply(response, answer) {
  for (const [name, value] of answer.headers) response.append(name, value)
  response.status(answer.status).end(answer.body)
}

// The application.
const raw = express.raw({ type: () => true, limit: '1mb' })

/** Who calls; looked at before the key, so that no stranger learns whether a key exists. */
function tenant(request, response, next) {
  request.tenant = tenants.get((request.get('authorization') ?? '').replace(/^Bearer /, ''))
  if (request.tenant) next()
  else response.set('WWW-Authenticate', 'Bearer').sendStatus(401)
}

const told = (status, content) => ({
  status, headers: [['content-type', 'application/json']], body: Buffer.from(JSON.stringify(content)),
})

app.get('/healthz', (request, response) => { response.json('ok') })

async function order(request, response) {
  const { key, hash, body } = delivered(request)
  const answer = await atomic(pool, `${request.tenant}:api.order`, key, hash, async (client) => {
    const insert = 'INSERT INTO orders (tenant, body) VALUES ($1, $2) RETURNING id'
    const { rows } = await client.query(insert, [request.tenant, body])
    return told(201, { tenant: request.tenant, order: Number(rows[0].id) })
  })
  reply(response, answer)
}
app.route('/api/order').all(tenant, raw).post(order).put(order)
app.post('/api/order/:number', tenant, raw, order)

app.post('/api/refund', tenant, raw, async (request, response) => {
  const { key, hash } = delivered(request)
  const answer = await atomic(pool, `${request.tenant}:api.refund`, key, hash, async (client) => {
    await client.query("INSERT INTO jobs (kind, payload) VALUES ('refund', $1)", [request.tenant])
    return told(202, { tenant: request.tenant, refund: 'queued' })
  })
  reply(response, answer)
})

/** An event's id is its key. Two events about one subscription are two keys, and one order, by its unique reference. */
app.post('/hooks/stripe', raw, async (request, response) => {
  const { hash, body } = delivered(request)
  const event = JSON.parse(body)
  const reference = event.data.object.subscription ?? event.data.object.id
  const answer = await atomic(pool, 'stripe.events', event.id, hash, async (client) => {
    const insert = "INSERT INTO orders (tenant, reference, body) VALUES ('stripe', $1, $2) ON CONFLICT (reference) DO NOTHING"
    const { rowCount } = await client.query(insert, [reference, body])
    // The mail goes out after the commit, by the example of a queue: job_queue.
    if (rowCount === 1) await client.query("INSERT INTO jobs (kind, payload) VALUES ('mail', $1)", [reference])
    return told(200, { ok: true })
  }, { mismatch: 'note' })
  reply(response, answer)
})

/** The provider deduplicates by the key that it is sent, so that an unknown outcome may be asked for again. */
app.post('/api/charge', tenant, raw, async (request, response) => {
  const { key, hash, body } = delivered(request)
  const call = async (claim) => {
    const headers = { 'idempotency-key': claim.downstream_key, 'content-type': 'application/json' }
    const answered = await fetch(`${PROVIDER}/charges`, { method: 'POST', headers, body, signal: AbortSignal.timeout(20_000) })
    const answer = { status: answered.status, body: Buffer.from(await answered.arrayBuffer()) }
    if (answer.status >= 500 || [401, 403, 407, 408, 409, 425, 429].includes(answer.status)) throw new NoEffect(answer)
    return answer
  }
  const work = async (client, claim, answered) => {
    const insert = 'INSERT INTO orders (tenant, body) VALUES ($1, $2)'
    if (answered.status < 300) await client.query(insert, [request.tenant, answered.body])
    return { status: answered.status, headers: [['content-type', 'application/json']], body: answered.body }
  }
  const policy = { leaseSeconds: 60, on_unknown: 'retry' }
  reply(response, await leased(pool, `${request.tenant}:api.charge`, key, hash, call, work, policy))
})

const server = app.listen(Number(PORT), '127.0.0.1', () => { console.error(`running on 127.0.0.1:${server.address().port}`) })
