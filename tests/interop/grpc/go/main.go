// What the official Go gRPC client does and sees; the same lines as driver.py, by the same arguments.
// Version 5.1.3 cannot recall a delayed message. Set rocketmq.client.enableSsl=false for a proxy without TLS.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	mq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const delay = 2 * time.Second

var (
	endpoint, prefix = os.Args[1], os.Args[2]
	saying           sync.Mutex
)

func say(event string, facts ...string) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println("DRIVER", event, strings.Join(facts, " "))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *mq.Config {
	config := &mq.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{}}
	if group != "" {
		config.ConsumerGroup = prefix + group
	}
	return config
}

func every(topics ...string) map[string]*mq.FilterExpression {
	all := map[string]*mq.FilterExpression{}
	for _, topic := range topics {
		all[prefix+topic] = mq.SUB_ALL
	}
	return all
}

func kind(topic string) string { return strings.TrimPrefix(topic, prefix) }

func text(value *string) string {
	if value == nil || *value == "" {
		return "-"
	}
	return *value
}

func show(event string, message *mq.MessageView) {
	var properties []string
	for name, value := range message.GetProperties() {
		properties = append(properties, name+":"+value)
	}
	slices.Sort(properties)
	keys, listed := strings.Join(message.GetKeys(), ","), strings.Join(properties, ",")
	say(event, "body="+string(message.GetBody()), "topic="+kind(message.GetTopic()), "tag="+text(message.GetTag()),
		"keys="+text(&keys), "group="+text(message.GetMessageGroup()),
		fmt.Sprintf("attempt=%d", message.GetDeliveryAttempt()), "properties="+text(&listed))
}

func wait(what string, holds func() bool) {
	for end := time.Now().Add(40 * time.Second); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			say("late", "what="+what)
			return
		}
	}
}

// listener fails the first attempt of one message; notes what it took.
type listener struct {
	sync.Mutex
	failing     string
	taken, done []string
	at          map[string]time.Time
}

func (l *listener) consume(message *mq.MessageView) mq.ConsumerResult {
	l.Lock()
	defer l.Unlock()
	body := string(message.GetBody())
	first := !slices.Contains(l.taken, body)
	l.taken = append(l.taken, body)
	l.at[body] = time.Now()
	if body == l.failing && first {
		return mq.FAILURE
	}
	show("pushed", message)
	l.done = append(l.done, body)
	return mq.SUCCESS
}

func (l *listener) has(count int) func() bool {
	return func() bool {
		l.Lock()
		defer l.Unlock()
		return len(l.done) >= count
	}
}

func (l *listener) of(group, rest string) {
	l.Lock()
	defer l.Unlock()
	var bodies []string
	for _, body := range l.taken {
		if strings.Contains(rest, body[len(body)-1:]) {
			bodies = append(bodies, body)
		}
	}
	say("order", "group="+group, "bodies="+strings.Join(bodies, ","))
}

func push(group, failing string, topics ...string) *listener {
	l := &listener{failing: failing, at: map[string]time.Time{}}
	consumer, err := mq.NewPushConsumer(config(group),
		mq.WithPushAwaitDuration(5*time.Second),
		mq.WithPushSubscriptionExpressions(every(topics...)),
		mq.WithPushMessageListener(&mq.FuncMessageListener{Consume: l.consume}),
		mq.WithPushConsumptionThreadCount(20),
		mq.WithPushMaxCacheMessageCount(1024))
	must(err)
	must(consumer.Start())
	return l
}

func receive(consumer mq.SimpleConsumer) []*mq.MessageView {
	messages, err := consumer.Receive(context.Background(), 16, 3*time.Second)
	if status, ok := mq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil
	}
	must(err)
	return messages
}

// simple takes three, acknowledges two; the third one's invisible time is cut and it comes again.
func simple(consumer mq.SimpleConsumer) {
	var acked []string
	wait("simple", func() bool {
		for _, one := range receive(consumer) {
			body := string(one.GetBody())
			show("received", one)
			if body == "n-2" && one.GetDeliveryAttempt() == 1 {
				must(consumer.ChangeInvisibleDuration(one, time.Second))
			} else {
				must(consumer.Ack(context.Background(), one))
				acked = append(acked, body)
			}
		}
		return len(acked) == 3
	})
	slices.Sort(acked)
	say("acked", "bodies="+strings.Join(acked, ","))
}

func message(topic, body string) *mq.Message {
	return &mq.Message{Topic: prefix + topic, Body: []byte(body)}
}

func wrong(producer mq.Producer, one *mq.Message) {
	refused := "yes"
	if _, err := producer.Send(context.Background(), one); err == nil {
		refused = "no"
	}
	say("wrong", "topic="+kind(one.Topic), "refused="+refused)
}

func transact(producer mq.Producer) {
	for _, end := range []string{"commit", "rollback", "check"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message("trans", "t-"+end), transaction)
		must(err)
		switch end {
		case "commit":
			must(transaction.Commit())
		case "rollback":
			must(transaction.RollBack())
		}
	}
}

// sendAll returns when the delayed message is due.
func sendAll(producer mq.Producer) time.Time {
	send := func(one *mq.Message) {
		_, err := producer.Send(context.Background(), one)
		must(err)
	}
	for number := range 3 {
		one := message("normal", fmt.Sprint("n-", number))
		one.SetTag("a")
		one.SetKeys(fmt.Sprint("k-", number))
		one.AddProperty("p", fmt.Sprint(number))
		send(one)
	}
	for number := range 6 {
		one := message("fifo", fmt.Sprint("f-", number))
		one.SetMessageGroup([]string{"even", "odd"}[number%2])
		send(one)
	}
	due := time.Unix(time.Now().Unix()+1, 0).Add(delay)
	delayed := message("delay", "d-0")
	delayed.SetDelayTimestamp(due)
	send(delayed)
	transact(producer)
	wrong(producer, message("fifo", "wrong"))
	grouped := message("normal", "wrong")
	grouped.SetMessageGroup("even")
	wrong(producer, grouped)
	return due
}

func main() {
	os.Setenv("rocketmq.client.logLevel", "error")
	os.Setenv("rocketmq.client.logRoot", os.Getenv("HOME"))
	mq.ResetLogger()
	checker := &mq.TransactionChecker{Check: func(one *mq.MessageView) mq.TransactionResolution {
		say("checked", "body="+string(one.GetBody()), "topic="+kind(one.GetTopic()))
		return mq.COMMIT
	}}
	producer, err := mq.NewProducer(config(""),
		mq.WithTopics(prefix+"normal", prefix+"fifo", prefix+"delay", prefix+"trans"),
		mq.WithTransactionChecker(checker))
	must(err)
	must(producer.Start())
	free := push("push", "n-1", "normal", "delay", "trans")
	order := push("order", "", "fifo") // after a failure this client goes on with the next of its batch
	taker, err := mq.NewSimpleConsumer(config("simple"),
		mq.WithSimpleAwaitDuration(time.Second), mq.WithSimpleSubscriptionExpressions(every("normal")))
	must(err)
	must(taker.Start())
	due := sendAll(producer)
	simple(taker)
	wait("push", free.has(6))
	wait("order", order.has(6))
	time.Sleep(time.Until(due.Add(delay + 2*time.Second))) // what was acknowledged does not come
	order.of("even", "024")
	order.of("odd", "135")
	free.Lock()
	defer free.Unlock()
	slices.Sort(free.taken)
	early := "False"
	if at, ok := free.at["d-0"]; ok && at.Before(due) {
		early = "True"
	}
	say("done", "push="+strings.Join(free.taken, ","), "early="+early)
	say("rest", fmt.Sprintf("simple=%d", len(receive(taker))))
}
