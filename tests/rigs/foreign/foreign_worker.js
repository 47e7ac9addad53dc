// A worker for Node.js, written from wheelsched/manual/protocol.md and nothing else; MessagePack from npm.
//
//     node foreign_worker.js SOCKET [CREDITS] [CONCURRENCY]        (@msgpack/msgpack is found through NODE_PATH)
//
// What it does is printed as JSON lines: the same as foreign_worker.py prints, and the same test judges both.
'use strict'
const net = require('node:net')
const { Encoder, Decoder, ExtensionCodec } = require('@msgpack/msgpack')

const SUCCEEDED = 1, FAILED = 2, TIMED_OUT = 3, CANCELLED = 6, NOT_STARTED = 7, ACCEPTED = 1

// Instants in payloads keep their nanoseconds: Date would cut them.
class Timestamp { constructor (data) { this.data = data } }
const extensionCodec = new ExtensionCodec()
extensionCodec.register({ type: -1, encode: v => v instanceof Timestamp ? v.data : null, decode: data => new Timestamp(data.slice()) })
const encoder = new Encoder({ extensionCodec, useBigInt64: true })
const decoder = new Decoder({ extensionCodec, useBigInt64: true })
const pack = value => Buffer.from(encoder.encode(value))

const VALUE_MAX = 128 * 1024 // there is always room for half of it, and for all when little was printed

// What is told of a value: it, or a mark where it can't be kept. The run has succeeded either way.
const returned = value => {
  const type = Object.prototype.toString.call(value).slice(8, -1)
  try {
    const data = pack(value)
    return data.length <= VALUE_MAX ? { value: data } : { left_out: { type, bytes: data.length, why: `over ${VALUE_MAX} bytes` } }
  } catch (e) {
    return { left_out: { type, bytes: null, why: e.message } }
  }
}
const unpack = data => decoder.decode(data)

const i64 = numbers => { const b = Buffer.alloc(8 * numbers.length); numbers.forEach((n, i) => b.writeBigInt64LE(BigInt(n), 8 * i)); return b }
const u32At = (column, i) => Buffer.from(column).readUInt32LE(4 * i)
const i64At = (column, i) => Buffer.from(column).readBigInt64LE(8 * i)
const cut = (data, ends, i) => data.subarray(i ? u32At(ends, i - 1) : 0, u32At(ends, i))
const hex = data => Buffer.from(data).toString('hex')
const nowUs = () => BigInt(Date.now()) * 1000n
const plain = (_, v) => typeof v === 'bigint' ? Number(v) : v
const say = (event, fields) => console.log(JSON.stringify({ event, ...fields }, plain))

// -- the tasks -----------------------------------------------------------------------------------------------------

const TASKS = {
  'foreign.echo': async (run, args, kwargs) => [args, kwargs],
  'foreign.facts': async run => {
    run.output += 'a line\n'
    const { job, attempt, token, scheduled_us, missed, task, queue, headers } = run
    return { id: hex(run.id), job, attempt, token, scheduled_us, missed, task, queue, headers }
  },
  'foreign.fail': async (run, [times]) => {
    if (run.attempt <= times) throw new RangeError(`attempt ${run.attempt} of ${run.job} fails`)
    return run.attempt
  },
  'foreign.sleep': async (run, [seconds], { first = false }) => {
    if (first && run.attempt > 1) return `attempt ${run.attempt}`
    run.progress = 'asleep'
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, Number(seconds) * 1000)
      run.stop.signal.addEventListener('abort', () => { clearTimeout(timer); reject(new Error('stopped')) })
    })
    return 'slept'
  }
}

// -- the worker ----------------------------------------------------------------------------------------------------

function runOf (batch, i) {
  const spec = batch.specs[u32At(batch.spec, i)]
  const [args, kwargs, headers = {}] = unpack(cut(batch.payload, batch.payload_end, i))
  return {
    id: batch.id.slice(16 * i, 16 * i + 16), token: i64At(batch.token, i), attempt: u32At(batch.attempt, i),
    scheduled_us: i64At(batch.scheduled_us, i), missed: u32At(batch.missed, i),
    task: spec.task, timeout_us: BigInt(spec.timeout_us), queue: spec.queue,
    job: Buffer.from(cut(batch.job, batch.job_end, i)).toString(), args, kwargs, headers,
    stop: new AbortController(), cancelled: false, timedOut: false, progress: '', told: '', output: '', startedUs: 0n, endedUs: 0n
  }
}

class Worker {
  constructor (path, credits, concurrency) {
    Object.assign(this, { path, credits, concurrency, waiting: [], running: [], unanswered: [], stopping: false, welcome: false })
    process.on('SIGTERM', () => { this.stopping = true; this.turn() })
    this.connect()
  }

  // -- the wire

  connect () {
    this.asked = new Map(); this.number = 0; this.data = Buffer.alloc(0); this.welcome = false; this.leasing = true
    const socket = this.socket = net.connect(this.path)
    socket.on('error', e => say('away', { reason: e.message }))
    socket.on('connect', () => {
      const tasks = Object.fromEntries(Object.keys(TASKS).map(name => [name, {}]))
      this.send('hello', { version: 1, role: 'worker', name: 'foreign', tasks }, answer => {
        say('hello', { worker: answer.worker, instance: hex(answer.instance), generation: answer.generation })
        this.welcome = true
        this.sendUnanswered(this.unanswered)
        this.beat()
        clearInterval(this.heart)
        this.heart = setInterval(() => this.beat(), Number(answer.heartbeat_us) / 1000)
        this.turn()
      })
    })
    socket.on('data', data => this.read(data))
    socket.on('close', () => {
      this.welcome = false
      clearInterval(this.heart)
      if (!this.gone) setTimeout(() => this.connect(), 100)
    })
  }

  send (verb, args, answered) {
    const body = pack([++this.number, verb, args])
    const head = Buffer.alloc(4)
    head.writeUInt32BE(body.length)
    this.asked.set(this.number, { verb, answered })
    this.socket.write(Buffer.concat([head, body]))
  }

  read (data) {
    this.data = Buffer.concat([this.data, data])
    while (this.data.length >= 4 && this.data.length >= 4 + this.data.readUInt32BE(0)) {
      const size = this.data.readUInt32BE(0)
      const [number, status, answer] = unpack(this.data.subarray(4, 4 + size))
      this.data = this.data.subarray(4 + size)
      const asked = this.asked.get(Number(number))
      this.asked.delete(Number(number))
      if (status === 'ok') asked.answered(answer)
      else if (['unavailable', 'storage_full', 'resource_exhausted', 'failed_precondition'].includes(answer.code)) return this.socket.destroy()
      else { console.error('the server refused it:', answer); process.exit(1) }
    }
    this.turn()
  }

  waits (verb) { return [...this.asked.values()].some(asked => asked.verb === verb) }

  // -- what it says

  lease () {
    const room = this.credits - this.waiting.length - this.running.length
    if (room <= 0 || !this.leasing || this.stopping || this.waits('lease')) return
    this.send('lease', { queues: [], credits: room, wait_us: 500000 }, answer => {
      for (let i = 0; i < answer.n; i++) this.waiting.push(runOf(answer, i))
      if (answer.stop) { say('server_stops', {}); this.leasing = false } // until the next connection
    })
  }

  beat () {
    const runs = [...this.running, ...this.waiting]
    if (!this.welcome) return
    const progress = []
    runs.forEach((run, i) => { if (run.progress !== run.told) progress.push([i, run.told = run.progress]) })
    this.send('heartbeat', {
      id: Buffer.concat(runs.map(run => run.id)), token: i64(runs.map(run => run.token)),
      started: Buffer.from(runs.map(run => run.startedUs > 0n ? 1 : 0)), progress
    }, answer => {
      for (const kind of ['cancel', 'stale']) {
        for (const row of answer[kind]) {
          const run = runs[Number(row)]
          if (!run.cancelled) say(kind, { run: hex(run.id), token: run.token })
          run.cancelled = true
          run.stop.abort()
          if (this.waiting.includes(run)) {
            this.waiting = this.waiting.filter(other => other !== run)
            if (kind === 'cancel') this.finish([{ run, outcome: CANCELLED }])
          }
        }
      }
    })
  }

  finish (entries) {
    this.unanswered.push(...entries)
    if (this.welcome) this.sendUnanswered(entries)
  }

  sendUnanswered (some) {
    const entries = [...some]
    if (!entries.length) return
    this.send('finish', {
      id: Buffer.concat(entries.map(e => e.run.id)), token: i64(entries.map(e => e.run.token)),
      outcome: Buffer.from(entries.map(e => e.outcome)), started_us: i64(entries.map(e => e.run.startedUs)),
      ended_us: i64(entries.map(e => e.run.endedUs)),
      result: entries.flatMap((e, i) => e.result ? [[i, e.result]] : [])
    }, answer => {
      entries.forEach(({ run, outcome }, i) =>
        say('verdict', { run: hex(run.id), token: run.token, outcome, accepted: answer.verdict[i] === ACCEPTED }))
      this.unanswered = this.unanswered.filter(entry => !entries.includes(entry))
    })
  }

  // -- what it does

  async execute (run) {
    this.running.push(run)
    run.startedUs = nowUs()
    say('start', { run: hex(run.id), job: run.job, token: run.token, attempt: run.attempt })
    const timeoutMs = run.timeout_us / 1000n
    const timer = timeoutMs < 2n ** 31n && setTimeout(() => { run.timedOut = true; run.stop.abort() }, Number(timeoutMs))
    let outcome = SUCCEEDED, result
    try {
      result = returned(await TASKS[run.task](run, run.args, run.kwargs))
    } catch (e) {
      outcome = run.timedOut ? TIMED_OUT : run.cancelled ? CANCELLED : FAILED
      result = { type: e.constructor.name, message: e.message, traceback: e.stack }
    }
    clearTimeout(timer)
    run.endedUs = nowUs()
    if (run.output) result.stdout = Buffer.from(run.output)
    this.running = this.running.filter(other => other !== run)
    this.finish([{ run, outcome, result }])
    this.turn()
  }

  turn () {
    if (this.stopping && this.waiting.length) {
      const back = this.waiting.map(run => ({ run, outcome: NOT_STARTED }))
      this.waiting = []
      this.finish(back)
    }
    while (this.waiting.length && this.running.length < this.concurrency) this.execute(this.waiting.shift())
    if (this.welcome) this.lease()
    if (this.stopping && !this.running.length && !this.unanswered.length && !this.waits('lease') && !this.gone) {
      this.gone = true
      say('bye')
      this.socket.end()
      clearInterval(this.heart)
    }
  }
}

new Worker(process.argv[2], Number(process.argv[3] || 4), Number(process.argv[4] || 2)) // eslint-disable-line no-new
