// The official Go client with credentials: VERB KEY SECRET TOPIC ... -- ...; a key "-" signs nothing.
// Each command prints "DRIVER verb who=KEY topic=T done=N code=C text=URLENCODED", as AclDriver.java does.
// With TLS=yes in the environment it dials with TLS; this client shows no certificate and checks none.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func credentials(w []string) primitive.Credentials {
	if w[1] == "-" {
		return primitive.Credentials{}
	}
	return primitive.Credentials{AccessKey: w[1], SecretKey: w[2]}
}

func makeProducer(namesrv []string, w []string, retries int) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName("go_producer"),
		producer.WithInstanceName("p"+strconv.FormatInt(time.Now().UnixNano(), 10)),
		producer.WithCredentials(credentials(w)),
		producer.WithSendMsgTimeout(3*time.Second),
		producer.WithRetry(retries),
		producer.WithTls(os.Getenv("TLS") == "yes"),
	)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func send(namesrv []string, w []string) (int, error) {
	p, err := makeProducer(namesrv, w, 0)
	if err != nil {
		return 0, err
	}
	defer p.Shutdown()
	count, _ := strconv.Atoi(w[4])
	for i := 0; i < count; i++ {
		message := primitive.NewMessage(w[3], []byte(fmt.Sprintf("go body %d é中", i)))
		message.WithTag("tag").WithKeys([]string{fmt.Sprintf("key-%d", i)})
		message.WithProperty("number", strconv.Itoa(i))
		if _, err := p.SendSync(context.Background(), message); err != nil {
			return i, err
		}
	}
	return count, nil
}

// One message at a time for w[4] ms.
func flow(namesrv []string, w []string) (int, error) {
	p, err := makeProducer(namesrv, w, 2)
	if err != nil {
		return 0, err
	}
	defer p.Shutdown()
	fmt.Printf("DRIVER flowing who=%s topic=%s\n", w[1], w[3])
	ms, _ := strconv.Atoi(w[4])
	until := time.Now().Add(time.Duration(ms) * time.Millisecond)
	sent, failed, why, last := 0, 0, "", time.Now()
	for time.Now().Before(until) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if _, err := p.SendSync(ctx, primitive.NewMessage(w[3], []byte(fmt.Sprintf("flow %d", sent)))); err != nil {
			failed++
			why = err.Error()
		} else {
			sent++
			last = time.Now()
		}
		cancel()
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Printf("DRIVER flowed who=%s topic=%s failed=%d silent=%d why=%s\n", w[1], w[3], failed, time.Since(last).Milliseconds(), url.QueryEscape(why))
	return sent, nil
}

func consume(namesrv []string, w []string) (int, error) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(w[4]),
		consumer.WithInstance("c"+strconv.FormatInt(time.Now().UnixNano(), 10)),
		consumer.WithCredentials(credentials(w)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithTls(os.Getenv("TLS") == "yes"),
	)
	if err != nil {
		return 0, err
	}
	count, _ := strconv.Atoi(w[5])
	ms, _ := strconv.Atoi(w[6])
	var got int64
	err = c.Subscribe(w[3], consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		atomic.AddInt64(&got, int64(len(messages)))
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	until := time.Now().Add(time.Duration(ms) * time.Millisecond)
	for time.Now().Before(until) && atomic.LoadInt64(&got) < int64(count) {
		time.Sleep(20 * time.Millisecond)
	}
	c.Shutdown()
	return int(atomic.LoadInt64(&got)), nil
}

func main() {
	rlog.SetLogLevel("fatal")
	namesrv, err := primitive.NewNamesrvAddr(strings.Split(os.Args[1], ";")...)
	if err != nil {
		panic(err)
	}
	var words []string
	for _, word := range append(os.Args[2:], "--") {
		if word != "--" {
			words = append(words, word)
			continue
		}
		done := 0
		switch words[0] {
		case "send":
			done, err = send(namesrv, words)
		case "flow":
			done, err = flow(namesrv, words)
		case "consume":
			done, err = consume(namesrv, words)
		default:
			panic(words[0])
		}
		code, text := 0, ""
		if err != nil {
			code, text = -1, err.Error()
		}
		fmt.Printf("DRIVER %s who=%s topic=%s done=%d code=%d text=%s\n", words[0], words[1], words[3], done, code, url.QueryEscape(text))
		words = nil
	}
}
