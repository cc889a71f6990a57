// onced.mjs without a framework: `hashes`, and `own-transaction`, in which a known key is met between two rows of the caller.
import pg from 'pg'
import { atomic, begin, rawHash } from './onced.mjs'

const [task, given] = process.argv.slice(2)
if (task === 'hashes') {
  const hex = ([method, path, query, media, body, coding]) => rawHash(method, path, query, media, Buffer.from(body, 'hex'), coding)
  console.log(JSON.stringify(JSON.parse(given).map((request) => hex(request).toString('hex'))))
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
