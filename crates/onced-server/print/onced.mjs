/** onced for Node: a trigger (a webhook, an API request, a task of a queue) takes effect once.
 *
 * The key is a row beside your own rows in PostgreSQL, written by the SQL functions that `onced migrate` makes. This file, by
 * `onced print node`, only calls them, and puts their decisions as HTTP answers. It needs the driver `pg` and nothing else.
 *
 *     const answer = await atomic(pool, 'shop.order', key, rawHash('POST', '/orders', '', 'application/json', body), async (client) => {
 *       await client.query('INSERT INTO orders (item) VALUES ($1)', ['tea'])   // all that it writes, it writes through client
 *       return { status: 201, headers: [['content-type', 'application/json']], body: Buffer.from('{"ok":true}') }
 *     })
 *
 * What the work returns is the outcome, which duplicates get; where it throws, nothing is kept. With an outside call: `leased`.
 * In a transaction that something else opens: `begin` and `Claim.complete`. A policy has the parameters of `onced.begin`.
 * @typedef {{ status: number, headers?: [string, string][], body?: Buffer }} Answer  names of headers are in lower case */
import { createHash, randomUUID } from 'node:crypto'
const SCHEMA = 'onced' // another one where the ledger's setting `schema` names it
const KEPT = new Set(['content-type', 'content-language', 'content-disposition', 'content-encoding', 'content-location',
  'location', 'etag', 'last-modified', 'cache-control', 'vary', 'link']) // they describe an answer; no other header is stored
const PROBLEMS = {
  in_progress: [409, 'in-progress', 'same-key', 'This request is being executed'],
  unknown: [409, 'outcome-unknown', 'same-key', 'The outcome is not known'],
  lost: [504, 'outcome-unknown', 'same-key', 'The outcome is not known'],
  unavailable: [503, 'store-unavailable', 'same-key', 'The ledger cannot be used'],
  mismatch: [422, 'key-reused', 'new-key', 'The key belongs to another request'],
  exhausted: [409, 'attempts-exhausted', 'never', 'All attempts are used up'],
  missing: [400, 'key-missing', 'never', 'The request has no idempotency key'],
  invalid: [400, 'key-invalid', 'never', 'The idempotency key cannot be used'],
}

/** `throw new NoEffect(answer)` in a call: no attempt had an effect outside, or on_unknown is retry. The next delivery calls again. */
export class NoEffect extends Error {
  constructor(/** @type {Answer} */ answer) { super('no effect'); this.answer = answer }
}
function until(answer, expires, ...more) {
  const at = expires ? [['onced-key-expires', expires.toUTCString()]] : []
  return { body: Buffer.alloc(0), ...answer, headers: [...(answer.headers ?? []), ...more, ...at] }
}
export function problem(cause, scope, key, wait = 1, expires = null) {
  const [status, code, retry, title] = PROBLEMS[cause]
  const told = { type: `urn:onced:problem:${code}`, code, title, status, retry, scope, ...(key && { key }) }
  const headers = [['content-type', 'application/problem+json'], ['cache-control', 'no-store'], ['retry-after', String(wait)]]
  return until({ status, headers: headers.slice(0, retry === 'same-key' ? 3 : 2), body: Buffer.from(JSON.stringify(told)) }, expires)
}
async function ask(client, name, given) {
  const idle = ['begin', 'complete', 'fail'].includes(name) && client.getTransactionStatus?.() === 'I'
  if (idle) throw new Error(`onced.${name} needs a transaction: begin one`)
  const named = Object.keys(given).map((parameter, index) => `${parameter} => $${index + 1}`)
  return (await client.query(`SELECT * FROM ${SCHEMA}.${name}(${named.join(', ')})`, Object.values(given))).rows[0]
}

/** The right to execute one attempt. Its methods run in the client's transaction, and fail with OC001 once it is lost. Send
 * `downstream_key` along with outside calls, as their Idempotency-Key. Where `call` is, it is their recorded answer: call no more. */
export class Claim {
  constructor({ scope, key, lease_token, downstream_key, attempt = 1, resumed = false, call = null }) {
    Object.assign(this, { scope, key, lease_token, downstream_key, attempt, resumed, call })
  }
  /** `external`, `renew` or `release`, with the parameters of that SQL function. */
  async do(client, name, given = {}) {
    return (await ask(client, name, { scope: this.scope, key: this.key, lease_token: this.lease_token, ...given }))[name]
  }
  /** Stores the outcome beside the business rows; with "fail" and an `error`, an attempt that had no effect. */
  async complete(client, /** @type {Answer} */ answer, name = 'complete', given = {}) {
    const response_headers = JSON.stringify((answer.headers ?? []).map(([header, value]) => [header.toLowerCase(), value]).filter(([header]) => KEPT.has(header)))
    const stored = { response_code: answer.status, response_headers, response_body: Buffer.from(answer.body ?? '') }
    return until(answer, await this.do(client, name, { ...stored, ...given }))
  }
}
function restored(row, of, omitted) {
  const headers = [...JSON.parse(row[`${of}_headers`] ?? '[]'), ...(omitted ? [['onced-body', 'omitted']] : [])]
  return { status: row[`${of}_code`], headers, body: row[`${of}_body`] ?? Buffer.alloc(0) }
}

/** Claims the key, first of all in the client's transaction. What is not a `Claim` is an answer for the caller. */
export async function begin(client, scope, key, request_hash, policy = {}) {
  const row = await ask(client, 'begin', { scope, key, request_hash, ...policy })
  if (row.decision === 'execute') return new Claim({ ...row, scope, key, call: row.call_known ? restored(row, 'call', row.call_omitted) : null })
  if (row.decision === 'replay') return until(restored(row, 'response', row.body_omitted), row.expires_at, ['idempotent-replayed', 'true'])
  return problem(row.decision, scope, key, row.retry_after, row.expires_at)
}
async function transaction(pool, run) {
  const client = await pool.connect().catch((error) => { throw Object.assign(error, { lost: true }) })
  let lost, failed
  const broken = (error) => { lost ??= error }
  client.on('error', broken) // without a listener it would end the process
  try {
    await client.query('BEGIN')
    return [await run(client), await client.query('COMMIT')][0]
  } catch (error) {
    failed = await client.query('ROLLBACK').then(() => error, broken) // parts of the work may still be using the client: it goes
    throw lost ? Object.assign(error, { lost: true }) : error
  } finally { client.off('error', broken).release(lost ?? failed) }
}

/** Runs a whole transaction, and again after a conflict or a lost connection; 503 where that does not pass. */
export async function whole(pool, scope, key, run) {
  const began = performance.now()
  for (let tries = 1; key != null && tries <= 5; tries += 1) {
    try {
      return await transaction(pool, run)
    } catch (error) {
      const [state, said] = error.severity ? [error.code, `${error.message} ${error.where}`] : ['', ''] // else it is not PostgreSQL's
      const passes = error.lost || /^(40|53|55P03|57|25P03)/.test(state)
      if ((state === 'OC003' && !said.includes('a key is')) || !(passes || /^OC/.test(state) || said.includes(`${SCHEMA}.`))) throw error
      console.warn(`onced: scope ${scope}, key ${JSON.stringify(key.slice(0, 6))}: ${state === 'OC001' ? 'lost ownership' : error.name} ${state}`)
      if (!passes || performance.now() - began > 5000) return problem({ OC001: 'in_progress', OC003: 'invalid' }[state] ?? 'unavailable', scope, key)
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 20 * 2 ** tries))
    }
  }
  return problem(key == null ? 'missing' : 'unavailable', scope, key)
}

/** `work(client, claim)`, its key and its answer in one transaction. */
export function atomic(pool, scope, key, hash, work, policy = {}) {
  return whole(pool, scope, key, async (client) => {
    const claim = await begin(client, scope, key, hash, policy)
    return claim instanceof Claim ? claim.complete(client, await work(client, claim)) : claim
  })
}

/** `call(claim)` asks outside, done well within the lease; then `work(client, claim, its answer)` and the outcome together. */
export async function leased(pool, scope, key, hash, call, work, { leaseSeconds = 30, ...policy } = {}) {
  if ('lease' in policy) throw new TypeError('leased: give the lease as leaseSeconds')
  const given = { enter: 'pending_external', lease_token: randomUUID(), ...policy, lease: `${leaseSeconds} seconds` }
  let started, claim = await whole(pool, scope, key, (client) => { started ??= performance.now(); return begin(client, scope, key, hash, given) }) // the lease counts from the first `begin`
  if (!(claim instanceof Claim)) return claim
  try {
    if (!claim.call && performance.now() - started > leaseSeconds * 667) throw new Error('too little is left of the lease to call')
    const answered = claim.call ?? (await call(claim))
    return await whole(pool, scope, key, async (client) => claim.complete(client, await work(client, claim, answered)))
  } catch (error) {
    if (error instanceof NoEffect) return whole(pool, scope, key, (client) => claim.complete(client, error.answer, 'fail', { error: 'no effect' }))
    console.error(`onced: scope ${scope}, key ${JSON.stringify(key.slice(0, 6))}: the outcome is not known`, error)
    return problem('lost', scope, key, Math.ceil(leaseSeconds))
  }
}

/** What identifies a request, as `onced.raw_hash` makes it: all as sent, but the body decoded, or its coding named. */
export function rawHash(method, path, query, mediaType, body, coding = '') {
  const media = (mediaType ?? '').split(';')[0].replace(/^[ \t]+|[ \t]+$/g, '').replace(/[A-Z]/g, (letter) => letter.toLowerCase())
  const parts = ['onced.request.1', method, path, query, media, ...(coding ? ['encoded', coding] : ['raw']), body].map((part) => Buffer.from(part))
  const length = ({ length: n }) => Buffer.from([n >>> 24, n >>> 16, n >>> 8, n])
  return createHash('sha256').update(Buffer.concat(parts.flatMap((part) => [length(part), part]))).digest()
}

/** The key in the lines of `Idempotency-Key`, bare or quoted; null without any. What cannot be a key is refused later. */
export function headerKey(lines = []) {
  const value = lines.join('\n')
  const quoted = /^"((?:[^"\\\n]|\\["\\])*)"[ \t]*(;[^\n]*)?$/.exec(value)
  return quoted ? quoted[1].replace(/\\(.)/g, '$1') : lines.length === 0 ? null : value.startsWith('"') ? '' : value
}
