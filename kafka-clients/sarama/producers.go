package main

import (
	"encoding/binary"
	"math/rand"
	"time"

	"github.com/IBM/sarama"
)

// producers are those that the test opened, by name.
type producers map[string]sarama.AsyncProducer

func (p producers) handle(r *request) (any, error) {
	switch r.Op {
	case "producer":
		opened, err := openProducer(r)
		p[r.Producer] = opened
		return object{}, err
	case "send":
		return send(p[r.Producer], r), nil
	case "close_producer":
		err := p[r.Producer].Close()
		delete(p, r.Producer)
		return object{}, err
	default:
		return nil, errUnsupported
	}
}

// partitioner takes the partition that a record names, or the one of its key as Kafka's own client
// computes it: the library's default is another hash.
type partitioner struct{}

func newPartitioner(string) sarama.Partitioner { return partitioner{} }

func (partitioner) RequiresConsistency() bool { return true }

func (partitioner) Partition(message *sarama.ProducerMessage, count int32) (int32, error) {
	if named := message.Metadata.(placed).partition; named != nil {
		return *named, nil
	}
	if message.Key == nil {
		return rand.Int31n(count), nil
	}
	key, err := message.Key.Encode()
	return int32(murmur2(key)&0x7fffffff) % count, err
}

func murmur2(key []byte) uint32 {
	const m = 0x5bd1e995
	hash := 0x9747b28c ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		word := binary.LittleEndian.Uint32(key) * m
		hash = hash*m ^ (word^word>>24)*m
	}
	for n := len(key) - 1; n >= 0; n-- {
		hash ^= uint32(key[n]) << (8 * n)
	}
	if len(key) > 0 {
		hash *= m
	}
	hash = (hash ^ hash>>13) * m
	return hash ^ hash>>15
}

func openProducer(r *request) (sarama.AsyncProducer, error) {
	c := config()
	c.Metadata.AllowAutoTopicCreation = r.AutoMake
	if r.BlockMs != 0 {
		c.Metadata.Retry.Max = 3
	}
	c.Producer.Partitioner = newPartitioner
	c.Producer.Return.Successes = true
	c.Producer.Return.Errors = true
	c.Producer.Retry.Max = 300
	c.Producer.Retry.Backoff = 50 * time.Millisecond
	if r.BlockMs != 0 {
		c.Producer.Retry.Max = 3
	}
	c.Producer.Flush.Frequency = 20 * time.Millisecond
	if r.LingerMs != nil {
		c.Producer.Flush.Frequency = time.Duration(*r.LingerMs) * time.Millisecond
	}
	codecs := map[string]sarama.CompressionCodec{
		"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	c.Producer.Compression = codecs[r.Codec]
	switch r.Acks {
	case "0":
		c.Producer.RequiredAcks = sarama.NoResponse
	case "1":
		c.Producer.RequiredAcks = sarama.WaitForLocal
	default:
		c.Producer.RequiredAcks = sarama.WaitForAll
		if r.Idempot == nil || *r.Idempot {
			c.Producer.Idempotent = true
			c.Net.MaxOpenRequests = 1
		}
	}
	return sarama.NewAsyncProducer([]string{r.Bootstrap}, c)
}

type placed struct {
	number    int
	partition *int32
}

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.ByteEncoder(unhex(text))
}

// send sends all records, then answers where each of them is, or why it is nowhere.
func send(producer sarama.AsyncProducer, r *request) any {
	places := make([]object, len(r.Records))
	go func() {
		for n, each := range r.Records {
			message := &sarama.ProducerMessage{
				Topic: r.Topic, Key: encoder(each.Key), Value: encoder(each.Value),
				Metadata: placed{n, each.Partition},
			}
			for _, header := range each.Headers {
				message.Headers = append(message.Headers, sarama.RecordHeader{
					Key: []byte(*header[0]), Value: unhex(header[1]),
				})
			}
			if each.Timestamp != nil {
				message.Timestamp = time.UnixMilli(*each.Timestamp)
			}
			producer.Input() <- message
		}
	}()
	for range r.Records {
		select {
		case sent := <-producer.Successes():
			places[sent.Metadata.(placed).number] = object{"partition": sent.Partition, "offset": sent.Offset}
		case failed := <-producer.Errors():
			places[failed.Msg.Metadata.(placed).number] = describe(failed.Err)
		}
	}
	return places
}
