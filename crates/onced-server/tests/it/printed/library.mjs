// onced.mjs without a framework: `hashes`, `own-transaction`, in which a known key is met between two rows of the caller, and
// `mistakes`, which says what each comes to.
import pg from 'pg'
import { atomic, begin, leased, rawHash } from './onced.mjs'

const [task, given] = process.argv.slice(2)
if (task === 'hashes') {
  const hex = ([method, path, query, media, body, coding]) => rawHash(method, path, query, media, Buffer.from(body, 'hex'), coding)
  console.log(JSON.stringify(JSON.parse(given).map((request) => hex(request).toString('hex'))))
} else if (task === 'mistakes') {
  const pool = new pg.Pool({ connectionString: given })
  const hash = rawHash('POST', '/orders', '', '', '')
  const refused = (run) => run().then(() => false, (error) => error.message)
  const alone = await pool.connect()
  await alone.query('BEGIN')
  const claim = await begin(alone, 'shop.order', 'alone', hash)
  await alone.query('COMMIT')
  const told = { 'ended alone': await refused(() => claim.complete(alone, { status: 201 })) }
  told['begun alone'] = await refused(() => begin(alone, 'shop.order', 'other', hash))
  alone.release()

  let runs = 0
  const gone = () => { runs += 1; throw Object.assign(new Error('gone'), { code: 404 }) }
  told['not of PostgreSQL'] = [await refused(() => atomic(pool, 'shop.order', 'gone', hash, gone)), runs]
  told['named as ours'] = await refused(() => atomic(pool, 'shop.order', 'ours', hash, () => { throw new TypeError('onced.foo') }))

  // One part fails while another has still to write.
  let writeOn
  const late = new Promise((resolve) => { writeOn = resolve })
  let second
  const parts = (client) => {
    second = late.then(() => client.query("INSERT INTO orders (tenant, body) VALUES ('t1', 'late')")).then(() => 'written', () => 'refused')
    throw new Error('the first part failed')
  }
  await refused(() => atomic(pool, 'shop.order', 'parts', hash, parts))
  writeOn()
  told['a late part'] = await second

  const headers = [['Content-Type', 'application/json'], ['Set-Cookie', 'secret']]
  const named = () => atomic(pool, 'shop.order', 'named', hash, () => ({ status: 201, headers, body: '{"a":"\\\\"}' }))
  const [first, again] = [await named(), await named()]
  told.headers = again.headers.map(([name]) => name).sort()
  told['same body'] = first.body.toString() === again.body.toString()

  // The pool is busy for longer than the lease has room for a call.
  let clock = 0
  globalThis.performance = { now: () => clock }
  const busy = { connect: () => { clock += 25_000; return pool.connect() } }
  const call = async () => ({ status: 200 })
  told['after a wait'] = (await leased(busy, 'shop.order', 'busy', hash, call, async (client, claim, answered) => answered)).status
  await pool.end()
  console.log(JSON.stringify(told))
} else {
  const pool = new pg.Pool({ connectionString: given })
  const hash = rawHash('POST', '/orders', '', '', '')
  const insert = "INSERT INTO orders (tenant, body) VALUES ('t1', $1)"
  await atomic(pool, 'shop.order', 'o30-1', hash, async (client) => {
    await client.query(insert, [Buffer.from('first')])
    return { status: 201, body: Buffer.from('{"order":1}') }
  })
  const client = await pool.connect()
  await client.query('BEGIN')
  await client.query(insert, [Buffer.from('before')])
  const answer = await begin(client, 'shop.order', 'o30-1', hash)
  await client.query(insert, [Buffer.from('after')])
  await client.query('COMMIT')
  client.release()
  await pool.end()
  const replayed = Object.fromEntries(answer.headers)['idempotent-replayed']
  console.log(JSON.stringify({ status: answer.status, replayed, body: answer.body.toString() }))
}
