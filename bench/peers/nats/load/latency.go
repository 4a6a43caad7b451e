package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// latency is an open loop: records are sent when they are due, and read at once.
func latency(p *plan, g *gate) (done, error) {
	publisher, err := newPublisher(p)
	if err != nil {
		return done{}, err
	}
	defer publisher.connection.Close()
	// A connection of its own, as a program of its own would have.
	connection, js, err := connect(p.Bootstrap)
	if err != nil {
		return done{}, err
	}
	defer connection.Close()

	found := newArrivals()
	reader := newRecords(p)
	var begin atomic.Int64
	start := time.Now()
	open := make(chan struct{})
	each := func(record []byte) (bool, error) {
		now := time.Since(start) - time.Duration(begin.Load())
		err := found.take(reader.value(record), now)
		if found.opened == uint64(p.Partitions) && found.arrived == 0 {
			close(open)
		}
		return found.arrived == p.Records, err
	}
	sent := make(chan error, 1)
	opened := func() error {
		if err := openTheWay(p, publisher, open); err != nil {
			return err
		}
		at, err := g.wait()
		if err != nil {
			return err
		}
		begin.Store(int64(at.Sub(start)))
		go func() { sent <- send(p, publisher, pace{at, *p.Rate}) }()
		return nil
	}
	if err := follow(js, p.Topic, each, opened); err != nil {
		select {
		case failed := <-sent:
			err = errors.Join(err, failed)
		default:
		}
		return done{}, fmt.Errorf("%d of %d records arrived: %w", found.arrived, p.Records, err)
	}
	if err := <-sent; err != nil {
		return done{}, err
	}
	d := p.finished(p.Records, start.Add(time.Duration(begin.Load())))
	d.Latency = found.latency()
	return d, nil
}

// openTheWay sends a record to every partition and waits until it is there, so that all is warm.
func openTheWay(p *plan, publisher *publisher, open <-chan struct{}) error {
	records := newRecords(p)
	for partition := range p.Partitions {
		_, record := records.take()
		markOpening(records.value(record))
		if err := publisher.send(subject(p.Topic, partition), record); err != nil {
			return err
		}
	}
	if err := publisher.finish(); err != nil {
		return err
	}
	select {
	case <-open:
		return nil
	case <-time.After(silence):
		return errors.New("the first records do not arrive")
	}
}

func send(p *plan, publisher *publisher, pace pace) error {
	records := newRecords(p)
	for number := range p.Records {
		pace.wait(number)
		subject, record := records.take()
		stamp(records.value(record), pace.due(number))
		if err := publisher.send(subject, record); err != nil {
			return err
		}
	}
	return publisher.finish()
}
