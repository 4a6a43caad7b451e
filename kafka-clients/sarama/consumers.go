package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// consumers are those that the test opened, by name.
type consumers map[string]*consumer

// consumer is a member of a group, or reads partitions that it was assigned.
type consumer struct {
	settings *request
	client   sarama.Client
	records  chan *sarama.ConsumerMessage
	failures chan error
	// Of partitions assigned by hand.
	parent sarama.Consumer
	parts  map[int32]sarama.PartitionConsumer
	topic  string
	// Of a member.
	group   sarama.ConsumerGroup
	stop    context.CancelFunc
	stopped chan struct{}
	lock    sync.Mutex
	session sarama.ConsumerGroupSession
	counts  [2]int
}

func (c consumers) handle(r *request) (any, error) {
	if r.Op == "consumer" {
		opened, err := openConsumer(r)
		c[r.Consumer] = opened
		return object{}, err
	}
	one := c[r.Consumer]
	if one == nil {
		return nil, errUnsupported
	}
	switch r.Op {
	case "assign":
		return object{}, one.assign(r)
	case "subscribe":
		return object{}, one.subscribe(r.Topics)
	case "poll":
		return one.poll(r)
	case "seek":
		return object{}, one.take(r.Partition, r.To)
	case "commit":
		return object{}, one.commit(r)
	case "committed":
		return one.committed(r)
	case "offset_for_time":
		at, err := one.client.GetOffset(r.Topic, r.Partition, r.Timestamp)
		if at < 0 {
			return object{"offset": nil}, err
		}
		return object{"offset": at}, err
	case "watermarks":
		low, err := one.client.GetOffset(r.Topic, r.Partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		high, err := one.client.GetOffset(r.Topic, r.Partition, sarama.OffsetNewest)
		return object{"low": low, "high": high}, err
	case "close_consumer":
		delete(c, r.Consumer)
		return object{}, one.close()
	default:
		return nil, errUnsupported
	}
}

func openConsumer(r *request) (*consumer, error) {
	c := config()
	c.ClientID = r.Consumer
	c.Metadata.AllowAutoTopicCreation = r.AutoMake
	if r.Rack != "" {
		c.RackID = r.Rack
		// For so long it stays with the broker that a leader names.
		c.Metadata.RefreshFrequency = time.Minute
	}
	c.Consumer.Return.Errors = true
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	if r.Reset == "latest" {
		c.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	c.Consumer.Group.Session.Timeout = 10 * time.Second
	if r.SessionMs != 0 {
		c.Consumer.Group.Session.Timeout = time.Duration(r.SessionMs) * time.Millisecond
	}
	c.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	c.Consumer.Group.Rebalance.Retry.Max = 60
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	c.Consumer.Group.InstanceId = r.Instance
	client, err := sarama.NewClient([]string{r.Bootstrap}, c)
	return &consumer{
		settings: r,
		client:   client,
		records:  make(chan *sarama.ConsumerMessage, 100_000),
		failures: make(chan error, 1000),
		parts:    map[int32]sarama.PartitionConsumer{},
	}, err
}

func (c *consumer) assign(r *request) error {
	var err error
	if c.parent == nil {
		if c.parent, err = sarama.NewConsumerFromClient(c.client); err != nil {
			return err
		}
	}
	c.topic = r.Topic
	for _, partition := range r.partitions() {
		if err := c.take(partition, r.From); err != nil {
			return err
		}
	}
	return nil
}

// take starts a partition, anew if it was read already.
func (c *consumer) take(partition int32, from json.RawMessage) error {
	if old := c.parts[partition]; old != nil {
		if err := old.Close(); err != nil {
			return err
		}
		for len(c.records) > 0 {
			<-c.records
		}
	}
	at := c.client.Config().Consumer.Offsets.Initial
	var number int64
	if json.Unmarshal(from, &number) == nil {
		at = number
	} else if string(from) == `"end"` {
		at = sarama.OffsetNewest
	} else if string(from) == `"beginning"` {
		at = sarama.OffsetOldest
	}
	part, err := c.parent.ConsumePartition(c.topic, partition, at)
	if errors.Is(err, sarama.ErrOffsetOutOfRange) {
		if c.settings.Reset == "none" {
			c.failures <- err
			return nil
		}
		// Where to go on is for the application to say.
		part, err = c.parent.ConsumePartition(c.topic, partition, c.client.Config().Consumer.Offsets.Initial)
	}
	if err != nil {
		return err
	}
	c.parts[partition] = part
	go func() {
		for record := range part.Messages() {
			c.records <- record
		}
	}()
	go func() {
		for range part.Errors() {
			// The library tries again by itself.
		}
	}()
	return nil
}

// Setup notes what came.
func (c *consumer) Setup(session sarama.ConsumerGroupSession) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.session = session
	for _, partitions := range session.Claims() {
		c.counts[0] += len(partitions)
	}
	return nil
}

// Cleanup notes what went.
func (c *consumer) Cleanup(session sarama.ConsumerGroupSession) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.session = nil
	for _, partitions := range session.Claims() {
		c.counts[1] += len(partitions)
	}
	return nil
}

// ConsumeClaim hands records on until the partition goes.
func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return nil
			}
			c.records <- record
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c *consumer) subscribe(topics []string) error {
	group, err := sarama.NewConsumerGroupFromClient(c.settings.Group, c.client)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.group, c.stop, c.stopped = group, stop, make(chan struct{})
	go func() {
		for range group.Errors() {
			// Of times without a broker.
		}
	}()
	go func() {
		defer close(c.stopped)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, topics, c); err != nil && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return nil
}

func (c *consumer) poll(r *request) (any, error) {
	records := []object{}
	timeout := time.After(time.Duration(r.WaitMs) * time.Millisecond)
	add := func(record *sarama.ConsumerMessage) {
		headers := [][2]any{}
		for _, header := range record.Headers {
			headers = append(headers, [2]any{string(header.Key), tohex(header.Value)})
		}
		records = append(records, object{
			"topic": record.Topic, "partition": record.Partition, "offset": record.Offset,
			"timestamp": record.Timestamp.UnixMilli(), "append_time": nil,
			"key": tohex(record.Key), "value": tohex(record.Value), "headers": headers,
		})
	}
	select {
	case record := <-c.records:
		add(record)
	case failure := <-c.failures:
		return nil, failure
	case <-timeout:
	}
	for len(c.records) > 0 {
		add(<-c.records)
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	assignment := []object{}
	if c.session != nil {
		for topic, partitions := range c.session.Claims() {
			for _, partition := range partitions {
				assignment = append(assignment, object{"topic": topic, "partition": partition})
			}
		}
	}
	return object{
		"records": records, "assignment": assignment, "assigned": c.counts[0], "revoked": c.counts[1],
	}, nil
}

func (c *consumer) commit(r *request) error {
	c.lock.Lock()
	session := c.session
	c.lock.Unlock()
	if session != nil {
		for _, each := range r.Offsets {
			session.MarkOffset(r.Topic, each.Partition, each.Offset, each.Metadata)
		}
		session.Commit()
		return nil
	}
	manager, err := sarama.NewOffsetManagerFromClient(c.settings.Group, c.client)
	if err != nil {
		return err
	}
	defer manager.Close()
	for _, each := range r.Offsets {
		part, err := manager.ManagePartition(r.Topic, each.Partition)
		if err != nil {
			return err
		}
		part.MarkOffset(each.Offset, each.Metadata)
		defer part.AsyncClose()
	}
	manager.Commit()
	return nil
}

func (c *consumer) committed(r *request) (any, error) {
	admin, err := sarama.NewClusterAdmin([]string{c.settings.Bootstrap}, config())
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	found, err := admin.ListConsumerGroupOffsets(c.settings.Group, map[string][]int32{r.Topic: r.partitions()})
	if err != nil {
		return nil, err
	}
	answer := []object{}
	for _, partition := range r.partitions() {
		if block := found.GetBlock(r.Topic, partition); block != nil && block.Offset >= 0 {
			answer = append(answer, object{
				"partition": partition, "offset": block.Offset, "metadata": block.Metadata,
			})
		}
	}
	return answer, nil
}

func (c *consumer) close() error {
	if c.group != nil {
		c.stop()
		<-c.stopped
		return c.group.Close()
	}
	for _, part := range c.parts {
		if err := part.Close(); err != nil {
			return err
		}
	}
	return c.client.Close()
}
