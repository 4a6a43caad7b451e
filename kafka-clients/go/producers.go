package main

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// producers are those that the test opened, by name.
type producers map[string]*producer

type producer struct {
	client *kgo.Client
}

// partitioner takes the partition that a record names, or the one of its key.
type partitioner struct {
	keyed kgo.TopicPartitioner
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return partitioner{kgo.StickyKeyPartitioner(nil).ForTopic(topic)}
}

func (p partitioner) RequiresConsistency(record *kgo.Record) bool {
	return record.Partition >= 0 || p.keyed.RequiresConsistency(record)
}

func (p partitioner) Partition(record *kgo.Record, count int) int {
	if record.Partition >= 0 {
		return int(record.Partition)
	}
	return p.keyed.Partition(record, count)
}

func (p producers) handle(ctx context.Context, r *request) (any, error) {
	switch r.Op {
	case "producer":
		opened, err := openProducer(r)
		p[r.Producer] = opened
		return object{}, err
	case "send":
		return p[r.Producer].send(ctx, r), nil
	case "init_transactions":
		// The library asks for its id with the first transaction.
		_, _, err := p[r.Producer].client.ProducerID(ctx)
		return object{}, err
	case "begin_transaction":
		return object{}, p[r.Producer].client.BeginTransaction()
	case "commit_transaction":
		return object{}, p[r.Producer].client.EndTransaction(ctx, kgo.TryCommit)
	case "abort_transaction":
		if err := p[r.Producer].client.AbortBufferedRecords(ctx); err != nil {
			return nil, err
		}
		return object{}, p[r.Producer].client.EndTransaction(ctx, kgo.TryAbort)
	case "close_producer":
		p[r.Producer].client.Close()
		delete(p, r.Producer)
		return object{}, nil
	default:
		return nil, errUnsupported
	}
}

func openProducer(r *request) (*producer, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(r.Bootstrap),
		kgo.RecordPartitioner(partitioner{}),
		// No delivery timeout: it counts from the record's timestamp, which tests choose.
		kgo.UnknownTopicRetries(3),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if r.TransactionalID != "" {
		timeout := int64(60000)
		if r.TransactionMs != 0 {
			timeout = r.TransactionMs
		}
		options = append(options,
			kgo.TransactionalID(r.TransactionalID),
			kgo.TransactionTimeout(time.Duration(timeout)*time.Millisecond),
		)
	}
	if r.AutoMake {
		options = append(options, kgo.AllowAutoTopicCreation())
	}
	codecs := map[string]kgo.CompressionCodec{
		"": kgo.NoCompression(), "none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options = append(options, kgo.ProducerBatchCompression(codecs[r.Codec]))
	switch r.Acks {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	default:
		if r.Idempot != nil && !*r.Idempot {
			options = append(options, kgo.DisableIdempotentWrite())
		}
	}
	linger := int64(20)
	if r.LingerMs != nil {
		linger = *r.LingerMs
	}
	options = append(options, kgo.ProducerLinger(time.Duration(linger)*time.Millisecond))
	if r.BatchSize != 0 {
		options = append(options, kgo.ProducerBatchMaxBytes(r.BatchSize))
	}
	more, err := r.Login.options()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(options, more...)...)
	return &producer{client}, err
}

// send sends all records, then answers where each of them is, or why it is nowhere.
func (p *producer) send(ctx context.Context, r *request) any {
	places := make([]object, len(r.Records))
	var waiting sync.WaitGroup
	for n, each := range r.Records {
		record := &kgo.Record{Topic: r.Topic, Partition: -1, Key: unhex(each.Key), Value: unhex(each.Value)}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: *header[0], Value: unhex(header[1])})
		}
		if each.Timestamp != nil {
			record.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		if each.Partition != nil {
			record.Partition = *each.Partition
		}
		waiting.Add(1)
		p.client.Produce(ctx, record, func(sent *kgo.Record, err error) {
			if err != nil {
				places[n] = describe(err)
			} else {
				places[n] = object{
					"partition": sent.Partition, "offset": sent.Offset, "timestamp": sent.Timestamp.UnixMilli(),
				}
			}
			waiting.Done()
		})
	}
	waiting.Wait()
	return places
}
