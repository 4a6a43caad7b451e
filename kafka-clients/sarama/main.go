// Does with sarama what the test asks for: one JSON request per line, one answer per line.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
)

// request holds the fields of all requests.
type request struct {
	Op        string            `json:"op"`
	Bootstrap string            `json:"bootstrap"`
	Topic     string            `json:"topic"`
	Topics    []string          `json:"topics"`
	Partition int32             `json:"partition"`
	Parts     json.RawMessage   `json:"partitions"`
	Configs   map[string]string `json:"configs"`
	Set       map[string]string `json:"set"`
	Delete    []string          `json:"delete"`
	Count     int32             `json:"count"`
	Before    int64             `json:"before"`
	At        json.RawMessage   `json:"at"`
	From      json.RawMessage   `json:"from"`
	To        json.RawMessage   `json:"to"`
	Group     string            `json:"group"`
	Instance  string            `json:"instance"`
	Rack      string            `json:"rack"`
	Reset     string            `json:"reset"`
	SessionMs int64             `json:"session_ms"`
	Producer  string            `json:"producer"`
	Consumer  string            `json:"consumer"`
	Acks      string            `json:"acks"`
	Idempot   *bool             `json:"idempotent"`
	Codec     string            `json:"compression"`
	LingerMs  *int64            `json:"linger_ms"`
	AutoMake  bool              `json:"auto_create"`
	BlockMs   int64             `json:"max_block_ms"`
	Records   []newRecord       `json:"records"`
	WaitMs    int64             `json:"wait_ms"`
	Offsets   []offset          `json:"offsets"`
	Timestamp int64             `json:"timestamp"`
}

type offset struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Metadata  string `json:"metadata"`
}

type newRecord struct {
	Partition *int32       `json:"partition"`
	Timestamp *int64       `json:"timestamp"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
}

type object map[string]any

var errUnsupported = errors.New("unsupported")

var names = map[sarama.KError]string{
	1: "OFFSET_OUT_OF_RANGE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 7: "REQUEST_TIMED_OUT",
	10: "MESSAGE_TOO_LARGE", 17: "INVALID_TOPIC_EXCEPTION", 36: "TOPIC_ALREADY_EXISTS",
	37: "INVALID_PARTITIONS", 40: "INVALID_CONFIG", 68: "NON_EMPTY_GROUP", 69: "GROUP_ID_NOT_FOUND",
	86: "GROUP_SUBSCRIBED_TO_TOPIC",
}

// describe puts Kafka's name for a failure into an answer.
func describe(err error) object {
	name := fmt.Sprintf("CLIENT:%T", err)
	var known sarama.KError
	var topic *sarama.TopicError
	var partition *sarama.TopicPartitionError
	switch {
	case errors.As(err, &topic):
		known = topic.Err
	case errors.As(err, &partition):
		known = partition.Err
	default:
		errors.As(err, &known)
	}
	if known > 0 {
		name = fmt.Sprintf("KAFKA:%d", known)
		if text, ok := names[known]; ok {
			name = text
		}
	}
	return object{"error": name, "message": err.Error()}
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	bytes, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	return bytes
}

func tohex(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := hex.EncodeToString(bytes)
	return &text
}

func (r *request) partitions() []int32 {
	var list []int32
	if err := json.Unmarshal(r.Parts, &list); err != nil {
		panic(err)
	}
	return list
}

// config is what all clients are told.
func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Metadata.AllowAutoTopicCreation = false
	c.Metadata.Retry.Max = 60
	c.Metadata.Retry.Backoff = 100 * time.Millisecond
	c.Metadata.RefreshFrequency = time.Second
	c.Admin.Retry.Max = 3
	return c
}

func main() {
	admins := admins{}
	producers := producers{}
	consumers := consumers{}
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			panic(err)
		}
		result, err := admins.handle(&r)
		if errors.Is(err, errUnsupported) {
			result, err = producers.handle(&r)
		}
		if errors.Is(err, errUnsupported) {
			result, err = consumers.handle(&r)
		}
		answer := object{"ok": result}
		if errors.Is(err, errUnsupported) {
			answer = object{"unsupported": r.Op}
		} else if err != nil {
			answer = describe(err)
		}
		if err := output.Encode(answer); err != nil {
			panic(err)
		}
	}
}
