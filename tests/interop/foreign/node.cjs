// The official Node client of the remoting protocol (npm: ali-ons):
// send NAMESRV TOPIC COUNT; read NAMESRV TOPIC COUNT GROUP EXPRESSION KEY-THAT-FAILS-FIRST. Facts as ClientDriver prints them.
const { Producer, Consumer, Message } = require('ali-ons');

const quiet = { debug() {}, info() {}, warn() {}, error(e) { console.error(e); } };
const told = (event, facts) => console.log(['DRIVER', event, ...Object.entries(facts).map(([k, v]) => `${k}=${v}`)].join(' '));
const client = (group, namesrv) => ({ producerGroup: group, consumerGroup: group, nameSrv: namesrv, httpclient: {}, logger: quiet });

async function send(namesrv, topic, count) {
  const producer = new Producer(client('node_senders', namesrv));
  await producer.ready();
  for (let number = 0; number < Number(count); number++) {
    const message = new Message(topic, number % 2 === 0 ? 'a' : 'b', `body-${number}-é`);
    message.keys = [`key-${number}`];
    message.properties.number = String(number);
    const done = await producer.send(message);
    told('sent', { key: `key-${number}`, status: done.sendStatus, offset: done.queueOffset });
  }
  await producer.close();
}

async function read(namesrv, topic, count, group, expression, failing) {
  const taken = new Set();
  let failed = false;
  const consumer = new Consumer({ ...client(group, namesrv), consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  const enough = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${taken.size} came`)), 120000).unref();
    consumer.subscribe(topic, expression, async message => {
      const key = message.keys;
      if (key === failing && !failed) {
        failed = true;
        told('failed', { key });
        throw new Error('the first time it fails');
      }
      told('read', { key, tags: message.tags, number: message.properties.number, body: message.body.toString(), again: message.reconsumeTimes > 0 });
      taken.add(key);
      if (taken.size === Number(count)) setTimeout(resolve, 1000);
    });
  });
  await consumer.ready();
  await enough;
  await consumer.close();
}

const [verb, ...words] = process.argv.slice(2);
({ send, read })[verb](...words).then(() => process.exit(0), error => { console.error(error); process.exit(2); });
