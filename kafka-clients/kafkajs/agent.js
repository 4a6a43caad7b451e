// Does with kafkajs what the test asks for: one JSON request per line, one answer per line.
'use strict'

const readline = require('readline')
const { CompressionTypes, Kafka, logLevel } = require('kafkajs')

const hex = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('hex'))
const unhex = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'hex'))
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

const kafka = (request, clientId) =>
  new Kafka({
    clientId: clientId || 'kafka-agent',
    brokers: [request.bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 1000, retries: 30 },
  })

const admins = {}
const producers = {}
const consumers = {}

const admin = async (request) => {
  if (!admins[request.bootstrap]) {
    const client = kafka(request).admin({ retry: { retries: 3 } })
    await client.connect()
    admins[request.bootstrap] = client
  }
  return admins[request.bootstrap]
}

// Kafka's name for a failure.
const describe = (failure) => {
  let cause = failure
  const inner = (error) =>
    error.cause || [error.errors, error.groups, error.partitions].flatMap((list) => list || [])[0] || error.error
  while (cause && !cause.type && inner(cause)) cause = inner(cause)
  return { error: cause.type || 'CLIENT:' + failure.name, message: String(failure.message) }
}

// A consumer whose records wait for polls.
class Consumer {
  constructor(request) {
    this.request = request
    this.group = request.group || 'none-' + request.consumer + '-' + process.pid
    this.records = []
    this.held = {}
    this.counts = { assigned: 0, revoked: 0 }
  }

  async start(topics, fromBeginning) {
    const { request } = this
    this.client = kafka(request, request.consumer).consumer({
      groupId: this.group,
      sessionTimeout: request.session_ms || 10000,
      heartbeatInterval: 300,
      maxWaitTimeInMs: 200,
      metadataMaxAge: 1000,
      allowAutoTopicCreation: request.auto_create || false,
    })
    this.client.on('consumer.group_join', ({ payload }) => {
      this.held = payload.memberAssignment
      this.counts.assigned += Object.values(payload.memberAssignment).flat().length
    })
    this.client.on('consumer.rebalancing', () => {
      this.counts.revoked += Object.values(this.held).flat().length
      this.held = {}
    })
    await this.client.connect()
    await this.client.subscribe({ topics, fromBeginning })
    await this.client.run({
      autoCommit: false,
      eachBatchAutoResolve: true,
      eachBatch: async ({ batch }) => {
        for (const message of batch.messages) {
          const headers = []
          for (const [name, values] of Object.entries(message.headers || {})) {
            for (const value of Array.isArray(values) ? values : [values]) {
              headers.push([name, hex(value)])
            }
          }
          this.records.push({
            topic: batch.topic,
            partition: batch.partition,
            offset: Number(message.offset),
            timestamp: Number(message.timestamp),
            append_time: null,
            key: hex(message.key),
            value: hex(message.value),
            headers,
          })
        }
      },
    })
  }

  // kafkajs has no assignment by hand: a group of its own, whose offsets are set first.
  async assign(request) {
    if (this.client) {
      await this.client.disconnect()
      this.records = []
    }
    const admin_ = await admin(this.request)
    const from = request.from
    if (from !== null && from !== undefined) {
      const offset = { beginning: '-2', end: '-1' }[from] || String(from)
      let partitions = request.partitions.map((partition) => ({ partition, offset }))
      if (offset === '-1' || offset === '-2') {
        const known = await admin_.fetchTopicOffsets(request.topic)
        partitions = partitions.map(({ partition }) => {
          const found = known.find((each) => each.partition === partition)
          return { partition, offset: offset === '-1' ? found.high : found.low }
        })
      }
      await admin_.setOffsets({ groupId: this.group, topic: request.topic, partitions })
    }
    await this.start([request.topic], this.request.reset !== 'latest')
  }
}

const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }

const operations = {
  async producer(request) {
    const acks = request.acks || 'all'
    const client = kafka(request).producer({
      idempotent: acks === 'all' && request.idempotent !== false,
      maxInFlightRequests: 1,
      allowAutoTopicCreation: request.auto_create || false,
      retry: request.max_block_ms ? { retries: 3 } : { retries: 30, maxRetryTime: 1000 },
    })
    await client.connect()
    const settings = { acks: { 0: 0, 1: 1, all: -1 }[acks], compression: codecs[request.compression || 'none'] }
    producers[request.producer] = { client, settings }
    return {}
  },

  async send(request) {
    const { client, settings } = producers[request.producer]
    const messages = request.records.map((record) => {
      const message = { key: unhex(record.key), value: unhex(record.value), headers: {} }
      if (record.partition !== undefined) message.partition = record.partition
      if (record.timestamp !== undefined) message.timestamp = String(record.timestamp)
      for (const [name, value] of record.headers || []) {
        const there = message.headers[name]
        const bytes = unhex(value)
        message.headers[name] = there === undefined ? bytes : [].concat(there, bytes)
      }
      return message
    })
    // The answer says only where the first record of each partition is, so they go one by one.
    const places = []
    for (const message of messages) {
      try {
        const [place] = await client.send({ topic: request.topic, messages: [message], ...settings })
        places.push({
          partition: place ? place.partition : -1,
          offset: place ? Number(place.baseOffset) : -1,
        })
      } catch (failure) {
        places.push(describe(failure))
      }
    }
    return places
  },

  async close_producer(request) {
    await producers[request.producer].client.disconnect()
    delete producers[request.producer]
    return {}
  },

  async consumer(request) {
    consumers[request.consumer] = new Consumer(request)
    return {}
  },

  async assign(request) {
    await consumers[request.consumer].assign(request)
    return {}
  },

  async subscribe(request) {
    await consumers[request.consumer].start(request.topics, true)
    return {}
  },

  async poll(request) {
    const consumer = consumers[request.consumer]
    const until = Date.now() + request.wait_ms
    while (consumer.records.length === 0 && Date.now() < until) await sleep(10)
    const records = consumer.records
    consumer.records = []
    const assignment = []
    for (const [topic, partitions] of Object.entries(consumer.held)) {
      for (const partition of partitions) assignment.push({ topic, partition })
    }
    return { records, assignment, ...consumer.counts }
  },

  async seek(request) {
    const consumer = consumers[request.consumer]
    let offset = { beginning: '-2', end: '-1' }[request.to] || String(request.to)
    if (offset === '-1' || offset === '-2') {
      const known = await (await admin(request)).fetchTopicOffsets(request.topic)
      const found = known.find((each) => each.partition === request.partition)
      offset = offset === '-1' ? found.high : found.low
    }
    consumer.client.seek({ topic: request.topic, partition: request.partition, offset })
    return {}
  },

  async commit(request) {
    const consumer = consumers[request.consumer]
    await consumer.client.commitOffsets(
      request.offsets.map(({ partition, offset, metadata }) => ({
        topic: request.topic,
        partition,
        offset: String(offset),
        metadata: metadata || '',
      }))
    )
    return {}
  },

  async committed(request) {
    const groupId = consumers[request.consumer].group
    const [found] = await (await admin(request)).fetchOffsets({ groupId, topics: [request.topic] })
    return found.partitions
      .filter(({ partition, offset }) => request.partitions.includes(partition) && Number(offset) >= 0)
      .map(({ partition, offset, metadata }) => ({ partition, offset: Number(offset), metadata }))
  },

  async offset_for_time(request) {
    const known = await (await admin(request)).fetchTopicOffsetsByTimestamp(request.topic, request.timestamp)
    const found = known.find((each) => each.partition === request.partition)
    return { offset: Number(found.offset) >= 0 ? Number(found.offset) : null }
  },

  async watermarks(request) {
    const known = await (await admin(request)).fetchTopicOffsets(request.topic)
    const found = known.find((each) => each.partition === request.partition)
    return { low: Number(found.low), high: Number(found.high) }
  },

  async close_consumer(request) {
    const consumer = consumers[request.consumer]
    delete consumers[request.consumer]
    if (consumer.client) await consumer.client.disconnect()
    return {}
  },

  async create_topic(request) {
    const configEntries = Object.entries(request.configs || {}).map(([name, value]) => ({ name, value }))
    const topic = { topic: request.topic, numPartitions: request.partitions, replicationFactor: 1, configEntries }
    const created = await (await admin(request)).createTopics({ topics: [topic], waitForLeaders: true })
    return created ? {} : Promise.reject(Object.assign(new Error('exists'), { type: 'TOPIC_ALREADY_EXISTS' }))
  },

  async delete_topic(request) {
    await (await admin(request)).deleteTopics({ topics: [request.topic] })
    return {}
  },

  async list_topics(request) {
    return (await admin(request)).listTopics()
  },

  async describe_topic(request) {
    const { topics } = await (await admin(request)).fetchTopicMetadata({ topics: [request.topic] })
    return {
      partitions: topics[0].partitions
        .map(({ partitionId, leader, replicas, isr }) => ({ partition: partitionId, leader, replicas, isr }))
        .sort((a, b) => a.partition - b.partition),
    }
  },

  async create_partitions(request) {
    const topicPartitions = [{ topic: request.topic, count: request.count }]
    await (await admin(request)).createPartitions({ topicPartitions })
    return {}
  },

  async describe_cluster(request) {
    const { brokers, controller, clusterId } = await (await admin(request)).describeCluster()
    return {
      cluster_id: clusterId,
      controller,
      nodes: brokers.map(({ nodeId, host, port }) => ({ id: nodeId, host, port })),
    }
  },

  async delete_records(request) {
    const partitions = [{ partition: request.partition, offset: String(request.before) }]
    await (await admin(request)).deleteTopicRecords({ topic: request.topic, partitions })
    return { low: null }
  },

  async list_offsets(request) {
    if (typeof request.at === 'number') {
      return operations.offset_for_time({ ...request, timestamp: request.at })
    }
    const { low, high } = await operations.watermarks(request)
    return { offset: request.at === 'earliest' ? low : high }
  },

  async list_groups(request) {
    const { groups } = await (await admin(request)).listGroups()
    return groups.map(({ groupId, protocolType }) => ({ group: groupId, protocol_type: protocolType, state: null }))
  },

  async delete_group(request) {
    await (await admin(request)).deleteGroups([request.group])
    return {}
  },

  async group_offsets(request) {
    const found = await (await admin(request)).fetchOffsets({ groupId: request.group })
    return found.flatMap(({ topic, partitions }) =>
      partitions.map(({ partition, offset, metadata }) => ({ topic, partition, offset: Number(offset), metadata }))
    )
  },
}

const main = async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer = { unsupported: request.op }
    if (operations[request.op]) {
      try {
        answer = { ok: await operations[request.op](request) }
      } catch (failure) {
        answer = describe(failure)
      }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  // Clients that a test left open must not keep the process.
  process.exit(0)
}

main()
