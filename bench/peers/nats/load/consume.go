package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ahead is how many records a consumer asks for before it has worked on those it has.
const ahead = 10_000

// follow hands every record of a stream, from its first, to each until that says that it has enough.
// It calls opened once records can come.
func follow(js jetstream.JetStream, stream string, each func(record []byte) (bool, error), opened func() error) error {
	within, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	consumer, err := js.OrderedConsumer(within, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return fmt.Errorf("no consumer: %w", err)
	}
	result := make(chan error, 1)
	seen := make(chan struct{}, 1)
	ended := false
	handle := func(message jetstream.Msg) {
		if ended {
			return
		}
		enough, err := each(message.Data())
		if enough || err != nil {
			ended = true
			result <- err
			return
		}
		select {
		case seen <- struct{}{}:
		default:
		}
	}
	consuming, err := consumer.Consume(handle, jetstream.PullMaxMessages(ahead))
	if err != nil {
		return fmt.Errorf("no consumer: %w", err)
	}
	defer consuming.Stop()
	if err := opened(); err != nil {
		return err
	}
	quiet := time.NewTicker(silence)
	defer quiet.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-quiet.C:
			select {
			case <-seen:
			default:
				return fmt.Errorf("no record arrived for %v", silence)
			}
		}
	}
}

// consume reads what was appended before.
func consume(p *plan, g *gate) (done, error) {
	connection, js, err := connect(p.Bootstrap)
	if err != nil {
		return done{}, err
	}
	defer connection.Close()
	begin, err := g.wait()
	if err != nil {
		return done{}, err
	}
	var arrived, bytes uint64
	each := func(record []byte) (bool, error) {
		arrived++
		bytes += uint64(len(record))
		return arrived == p.Records, nil
	}
	if err := follow(js, p.Topic, each, func() error { return nil }); err != nil {
		return done{}, fmt.Errorf("%d of %d records arrived: %w", arrived, p.Records, err)
	}
	d := p.finished(arrived, begin)
	d.Bytes = bytes
	return d, nil
}
