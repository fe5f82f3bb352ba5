// What the official Node client does and sees; the same lines as driver.py, by the same arguments.
// Version 1.0.8 hangs at its start with several topics: it begins to wait for the proxy's settings after it has
// asked for the last topic's route, and they came by the first. So each producer and consumer starts with one.
'use strict';
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const DELAY_MS = 2000;
const [endpoints, PREFIX] = process.argv.slice(2);
const [NORMAL, FIFO, DELAY, TRANS] = ['normal', 'fifo', 'delay', 'trans'].map(kind => PREFIX + kind);
const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const client = { endpoints, namespace: '', sslEnabled: false, logger: quiet };
const sleep = ms => new Promise(done => setTimeout(done, ms));
const kind = topic => topic.slice(PREFIX.length);

function say(event, facts) {
  console.log(['DRIVER', event, ...Object.entries(facts).map(([name, value]) => `${name}=${value}`)].join(' '));
}

function show(event, message) {
  const properties = [...message.properties.entries()].sort().map(([k, v]) => `${k}:${v}`).join(',');
  say(event, {
    body: message.body.toString(),
    topic: kind(message.topic),
    tag: message.tag || '-',
    keys: message.keys.join(',') || '-',
    group: message.messageGroup || '-',
    attempt: message.deliveryAttempt,
    properties: properties || '-',
  });
}

async function wait(what, holds, timeoutMs = 40000) {
  const end = Date.now() + timeoutMs;
  while (!(await holds())) {
    if (Date.now() > end) return say('late', { what });
    await sleep(50);
  }
}

/** Fails the first attempt of one message; notes what it took. */
function listener(failing) {
  const seen = { taken: [], done: [], at: {} };
  seen.consume = async message => {
    const body = message.body.toString();
    seen.taken.push(body);
    seen.at[body] = Date.now();
    if (body === failing && seen.taken.filter(one => one === body).length === 1) return ConsumeResult.FAILURE;
    show('pushed', message);
    seen.done.push(body);
    return ConsumeResult.SUCCESS;
  };
  return seen;
}

/** Takes three, acknowledges two; the third one's invisible time is cut and it comes again. */
async function simple(consumer) {
  const acked = [];
  await wait('simple', async () => {
    for (const one of await consumer.receive(16, 3000)) {
      const body = one.body.toString();
      show('received', one);
      if (body === 'n-2' && one.deliveryAttempt === 1) {
        await consumer.changeInvisibleDuration(one, 1000);
      } else {
        await consumer.ack(one);
        acked.push(body);
      }
    }
    return acked.length === 3;
  });
  say('acked', { bodies: acked.sort().join(',') });
}

/** Returns when the delayed message is due, and the handle of one that is to be recalled. */
async function sendAll(producers) {
  const send = (topic, body, more, transaction) =>
    producers.get(topic).send({ topic, body: Buffer.from(body), ...more }, transaction);
  for (let n = 0; n < 3; n++) {
    await send(NORMAL, `n-${n}`, { tag: 'a', keys: [`k-${n}`], properties: new Map([['p', `${n}`]]) });
  }
  for (let n = 0; n < 6; n++) await send(FIFO, `f-${n}`, { messageGroup: ['even', 'odd'][n % 2] });
  const due = (Math.floor(Date.now() / 1000) + 1) * 1000 + DELAY_MS;
  await send(DELAY, 'd-0', { deliveryTimestamp: new Date(due) });
  const later = await send(DELAY, 'd-1', { deliveryTimestamp: new Date(due + DELAY_MS) });
  for (const end of ['commit', 'rollback', 'check']) {
    const transaction = producers.get(TRANS).beginTransaction();
    await send(TRANS, `t-${end}`, {}, transaction);
    if (end !== 'check') await transaction[end]();
  }
  for (const [topic, more] of [[FIFO, {}], [NORMAL, { messageGroup: 'even' }]]) {
    const refused = await send(topic, 'wrong', more).then(() => 'no', () => 'yes');
    say('wrong', { topic: kind(topic), refused });
  }
  return [due, later.recallHandle];
}

async function main() {
  const checker = {
    async check(message) {
      say('checked', { body: message.body.toString(), topic: kind(message.topic) });
      return TransactionResolution.COMMIT;
    },
  };
  const producers = new Map();
  for (const topic of [NORMAL, FIFO, DELAY, TRANS]) {
    producers.set(topic, new Producer({ ...client, topics: [topic], checker }));
    await producers.get(topic).startup();
  }
  // After a failure this client goes on with the next of the group, and the failed one never comes again.
  const [free, order] = [listener('n-1'), listener('')];
  const every = topics => new Map(topics.map(topic => [topic, '*']));
  const push = async (group, [first, ...rest], messageListener) => {
    const consumer = new PushConsumer({
      ...client, consumerGroup: PREFIX + group, subscriptions: every([first]), messageListener,
    });
    await consumer.startup();
    for (const topic of rest) await consumer.subscribe(topic, new FilterExpression('*'));
  };
  await push('push', [NORMAL, DELAY, TRANS], free);
  await push('order', [FIFO], order);
  const taker = new SimpleConsumer({
    ...client, consumerGroup: PREFIX + 'simple', subscriptions: every([NORMAL]), awaitDuration: 1000,
  });
  await taker.startup();
  const [due, handle] = await sendAll(producers);
  await producers.get(DELAY).recallMessage(DELAY, handle);
  await simple(taker);
  await wait('push', () => free.done.length >= 6);
  await wait('order', () => order.done.length >= 6);
  await sleep(Math.max(0, due + DELAY_MS + 2000 - Date.now())); // what was recalled, or acknowledged, does not come
  for (const [group, rest] of [['even', '024'], ['odd', '135']]) {
    say('order', { group, bodies: order.taken.filter(body => rest.includes(body.at(-1))).join(',') });
  }
  say('done', { push: free.taken.sort().join(','), early: free.at['d-0'] < due ? 'True' : 'False' });
  say('rest', { simple: (await taker.receive(16, 3000)).length });
  process.exit(0);
}

main();
