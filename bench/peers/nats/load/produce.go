package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// lost is how long nothing may arrive before records that nobody waited for count as lost.
	lost = 5 * time.Second
	// lookEvery is how many records are sent between two looks at the clock.
	lookEvery = 256
)

// publisher sends records, and knows of those that were not acknowledged.
type publisher struct {
	connection   *nats.Conn
	js           jetstream.JetStream
	acknowledged bool
	failed       atomic.Uint64
	first        atomic.Pointer[string]
}

func newPublisher(p *plan) (*publisher, error) {
	one := &publisher{acknowledged: p.acknowledged()}
	heard := func(_ jetstream.JetStream, _ *nats.Msg, err error) {
		one.failed.Add(1)
		what := err.Error()
		one.first.CompareAndSwap(nil, &what)
	}
	var err error
	one.connection, one.js, err = connect(p.Bootstrap,
		jetstream.WithPublishAsyncMaxPending(p.pending()),
		jetstream.WithPublishAsyncErrHandler(heard))
	return one, err
}

// send hands over a record; it waits while too many wait for their acknowledgement.
func (p *publisher) send(subject string, record []byte) error {
	if !p.acknowledged {
		return p.connection.Publish(subject, record)
	}
	_, err := p.js.PublishAsync(subject, record, jetstream.WithStallWait(silence))
	return err
}

// finish waits until all records are acknowledged.
func (p *publisher) finish() error {
	if err := p.connection.FlushTimeout(silence); err != nil {
		return err
	}
	if !p.acknowledged {
		return nil
	}
	for open := p.js.PublishAsyncPending(); open > 0; {
		select {
		case <-p.js.PublishAsyncComplete():
			open = 0
		case <-time.After(silence):
			now := p.js.PublishAsyncPending()
			if now >= open {
				return fmt.Errorf("%d records were not acknowledged within %v", now, silence)
			}
			open = now
		}
	}
	if failed := p.failed.Load(); failed > 0 {
		return fmt.Errorf("%d records were not acknowledged: %s", failed, *p.first.Load())
	}
	return nil
}

// kept waits until a stream holds so many records, which nobody has acknowledged: a server that is
// given more than it can take drops some.
func (p *publisher) kept(stream string, records uint64) error {
	var before uint64
	for heard := time.Now(); ; {
		within, cancel := context.WithTimeout(context.Background(), silence)
		found, err := p.js.Stream(within, stream)
		cancel()
		if err != nil {
			return err
		}
		now := found.CachedInfo().State.Msgs
		if now >= records {
			return nil
		}
		if now > before {
			before, heard = now, time.Now()
		}
		if time.Since(heard) > lost {
			return fmt.Errorf("the server kept %d of %d records that nobody waited for", now, records)
		}
		time.Sleep(time.Millisecond)
	}
}

// produce appends as fast as the server takes it.
func produce(p *plan, g *gate) (done, error) {
	publisher, err := newPublisher(p)
	if err != nil {
		return done{}, err
	}
	defer publisher.connection.Close()
	records := newRecords(p)
	begin, err := g.wait()
	if err != nil {
		return done{}, err
	}
	var sent uint64
	for sent < p.Records {
		if err := publisher.send(records.take()); err != nil {
			return done{}, errors.Join(err, publisher.finish())
		}
		sent++
		if sent%lookEvery == 0 && p.isOver(begin) {
			break
		}
	}
	if err := publisher.finish(); err != nil {
		return done{}, err
	}
	if !publisher.acknowledged {
		if err := publisher.kept(p.Topic, sent); err != nil {
			return done{}, err
		}
	}
	return p.finished(sent, begin), nil
}
