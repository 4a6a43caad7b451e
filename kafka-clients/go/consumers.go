package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// consumers are those that the test opened, by name.
type consumers map[string]*consumer

// consumer is opened at the first assignment or subscription, which franz-go wants to know then.
type consumer struct {
	settings *request
	client   *kgo.Client
	member   bool
	lock     sync.Mutex
	holds    map[string]map[int32]bool
	counts   [3]int
}

func (c consumers) handle(ctx context.Context, r *request) (any, error) {
	if r.Op == "consumer" {
		c[r.Consumer] = &consumer{settings: r, holds: map[string]map[int32]bool{}}
		return object{}, nil
	}
	one := c[r.Consumer]
	if one == nil {
		return nil, errUnsupported
	}
	switch r.Op {
	case "assign":
		return object{}, one.assign(r)
	case "subscribe":
		one.member = true
		return object{}, one.open(kgo.ConsumeTopics(r.Topics...))
	case "poll":
		return one.poll(r)
	case "seek":
		return object{}, one.seek(r)
	case "commit":
		return object{}, one.commit(ctx, r)
	case "committed":
		return one.committed(ctx, r)
	case "offset_for_time":
		return listOffsets(ctx, one.admin(), r, json.RawMessage(number(r.Timestamp)))
	case "watermarks":
		low, err := one.admin().ListStartOffsets(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		high, err := one.admin().ListEndOffsets(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		return object{
			"low": low[r.Topic][r.Partition].Offset, "high": high[r.Topic][r.Partition].Offset,
		}, nil
	case "close_consumer":
		if one.client != nil {
			one.client.Close()
		}
		delete(c, r.Consumer)
		return object{}, nil
	default:
		return nil, errUnsupported
	}
}

// open makes the client, anew if there was one.
func (c *consumer) open(more ...kgo.Opt) error {
	if c.client != nil {
		c.client.Close()
	}
	s := c.settings
	options := append([]kgo.Opt{
		kgo.SeedBrokers(s.Bootstrap),
		kgo.ClientID(s.Consumer),
		kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.Rack(s.Rack),
	}, more...)
	if s.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	switch s.Reset {
	case "latest":
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	case "none":
		options = append(options, kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	default:
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	if c.member {
		session := 10 * time.Second
		if s.SessionMs != 0 {
			session = time.Duration(s.SessionMs) * time.Millisecond
		}
		options = append(options,
			kgo.ConsumerGroup(s.group()),
			kgo.SessionTimeout(session),
			kgo.HeartbeatInterval(300*time.Millisecond),
			kgo.DisableAutoCommit(),
			kgo.OnPartitionsAssigned(c.note(0, true)),
			kgo.OnPartitionsRevoked(c.note(1, false)),
			kgo.OnPartitionsLost(c.note(2, false)),
		)
		if s.Strategy == "cooperative" {
			options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
		} else {
			options = append(options, kgo.Balancers(kgo.RangeBalancer()))
		}
		if s.Instance != nil {
			options = append(options, kgo.InstanceID(*s.Instance))
		}
	}
	login, err := s.Login.options()
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(options, login...)...)
	c.client = client
	return err
}

func (c *consumer) note(which int, holds bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		c.lock.Lock()
		defer c.lock.Unlock()
		for topic, list := range partitions {
			if c.holds[topic] == nil {
				c.holds[topic] = map[int32]bool{}
			}
			for _, partition := range list {
				c.counts[which]++
				if holds {
					c.holds[topic][partition] = true
				} else {
					delete(c.holds[topic], partition)
				}
			}
		}
	}
}

func (c *consumer) admin() *kadm.Client {
	if c.client == nil {
		if err := c.open(); err != nil {
			panic(err)
		}
	}
	return kadm.NewClient(c.client)
}

func position(raw json.RawMessage) kgo.Offset {
	var at int64
	if json.Unmarshal(raw, &at) == nil {
		return kgo.NewOffset().At(at)
	}
	if string(raw) == `"end"` {
		return kgo.NewOffset().AtEnd()
	}
	return kgo.NewOffset().AtStart()
}

func (c *consumer) assign(r *request) error {
	list, err := r.partitions()
	if err != nil {
		return err
	}
	from := r.From
	if from == nil || string(from) == "null" {
		from = json.RawMessage(`"beginning"`)
	}
	partitions := map[int32]kgo.Offset{}
	c.holds[r.Topic] = map[int32]bool{}
	for _, partition := range list {
		partitions[partition] = position(from)
		c.holds[r.Topic][partition] = true
	}
	return c.open(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: partitions}))
}

// seek of a member sets an offset; of others, takes the partition anew.
func (c *consumer) seek(r *request) error {
	if c.member {
		var at int64
		if json.Unmarshal(r.To, &at) != nil {
			return errUnsupported
		}
		c.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{
			r.Topic: {r.Partition: {Epoch: -1, Offset: at}},
		})
		return nil
	}
	c.client.RemoveConsumePartitions(map[string][]int32{r.Topic: {r.Partition}})
	c.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		r.Topic: {r.Partition: position(r.To)},
	})
	return nil
}

func (c *consumer) poll(r *request) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.WaitMs)*time.Millisecond)
	defer cancel()
	fetches := c.client.PollFetches(ctx)
	for _, failure := range fetches.Errors() {
		var known *kerr.Error
		if errors.As(failure.Err, &known) {
			return nil, failure.Err
		}
	}
	records := []object{}
	fetches.EachRecord(func(record *kgo.Record) {
		headers := [][2]any{}
		for _, header := range record.Headers {
			headers = append(headers, [2]any{header.Key, tohex(header.Value)})
		}
		records = append(records, object{
			"topic": record.Topic, "partition": record.Partition, "offset": record.Offset,
			"timestamp": record.Timestamp.UnixMilli(), "append_time": record.Attrs.TimestampType() == 1,
			"key": tohex(record.Key), "value": tohex(record.Value), "headers": headers,
		})
	})
	c.lock.Lock()
	defer c.lock.Unlock()
	assignment := []object{}
	for topic, partitions := range c.holds {
		for partition := range partitions {
			assignment = append(assignment, object{"topic": topic, "partition": partition})
		}
	}
	return object{
		"records": records, "assignment": assignment,
		"assigned": c.counts[0], "revoked": c.counts[1], "lost": c.counts[2],
	}, nil
}

func (c *consumer) commit(ctx context.Context, r *request) error {
	if !c.member {
		offsets := kadm.Offsets{}
		for _, each := range r.Offsets {
			offsets.Add(kadm.Offset{
				Topic: r.Topic, Partition: each.Partition, At: each.Offset, LeaderEpoch: -1, Metadata: each.Metadata,
			})
		}
		answers, err := c.admin().CommitOffsets(ctx, c.settings.group(), offsets)
		if err != nil {
			return err
		}
		return answers.Error()
	}
	offsets := map[int32]kgo.EpochOffset{}
	metadata := map[int32]string{}
	for _, each := range r.Offsets {
		offsets[each.Partition] = kgo.EpochOffset{Epoch: -1, Offset: each.Offset}
		metadata[each.Partition] = each.Metadata
	}
	ctx = kgo.PreCommitFnContext(ctx, func(commit *kmsg.OffsetCommitRequest) error {
		for t := range commit.Topics {
			for p := range commit.Topics[t].Partitions {
				text := metadata[commit.Topics[t].Partitions[p].Partition]
				commit.Topics[t].Partitions[p].Metadata = &text
			}
		}
		return nil
	})
	var failure error
	c.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{r.Topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			failure = err
			if answer == nil {
				return
			}
			for _, topic := range answer.Topics {
				for _, partition := range topic.Partitions {
					if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
						failure = err
					}
				}
			}
		})
	return failure
}

func (c *consumer) committed(ctx context.Context, r *request) (any, error) {
	list, err := r.partitions()
	if err != nil {
		return nil, err
	}
	found, err := c.admin().FetchOffsets(ctx, c.settings.group())
	if err != nil {
		return nil, err
	}
	answer := []object{}
	for _, partition := range list {
		if at, ok := found.Lookup(r.Topic, partition); ok && at.At >= 0 {
			answer = append(answer, object{"partition": partition, "offset": at.At, "metadata": at.Metadata})
		}
	}
	return answer, found.Error()
}
