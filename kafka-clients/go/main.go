// Does with franz-go what the test asks for: one JSON request per line, one answer per line.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Whatever takes longer has failed.
const patience = 60 * time.Second

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
	Count     int               `json:"count"`
	Before    int64             `json:"before"`
	At        json.RawMessage   `json:"at"`
	From      json.RawMessage   `json:"from"`
	To        json.RawMessage   `json:"to"`
	Group     *string           `json:"group"`
	Instance  *string           `json:"instance"`
	Rack      string            `json:"rack"`
	Strategy  string            `json:"strategy"`
	Reset     string            `json:"reset"`
	SessionMs int64             `json:"session_ms"`
	Producer  string            `json:"producer"`
	Consumer  string            `json:"consumer"`
	Acks      string            `json:"acks"`
	Idempot   *bool             `json:"idempotent"`
	Codec     string            `json:"compression"`
	LingerMs  *int64            `json:"linger_ms"`
	BatchSize int32             `json:"batch_bytes"`
	AutoMake  bool              `json:"auto_create"`
	Isolation string            `json:"isolation"`
	Login     *login            `json:"login"`

	TransactionalID string `json:"transactional_id"`
	TransactionMs   int64  `json:"transaction_ms"`

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

func (r *request) group() string {
	if r.Group == nil {
		return ""
	}
	return *r.Group
}

func (r *request) partitions() ([]int32, error) {
	var list []int32
	err := json.Unmarshal(r.Parts, &list)
	return list, err
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	bytes, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	if bytes == nil {
		bytes = []byte{}
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

// describe puts Kafka's name for a failure into an answer.
func describe(err error) object {
	var known *kerr.Error
	if errors.As(err, &known) {
		return object{"error": known.Message, "message": err.Error()}
	}
	return object{"error": fmt.Sprintf("CLIENT:%T", err), "message": err.Error()}
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
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		result, err := admins.handle(ctx, &r)
		if errors.Is(err, errUnsupported) {
			result, err = producers.handle(ctx, &r)
		}
		if errors.Is(err, errUnsupported) {
			result, err = consumers.handle(ctx, &r)
		}
		cancel()
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
