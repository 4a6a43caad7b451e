package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// plan is what the load is to be, as the harness writes it; what means nothing here is not read.
type plan struct {
	Bootstrap   string `json:"bootstrap"`
	Topic       string `json:"topic"`
	Work        string `json:"work"`
	Records     uint64 `json:"records"`
	RecordBytes int    `json:"record_bytes"`
	Keys        string `json:"keys"`
	Partitions  uint32 `json:"partitions"`
	Acks        string `json:"acks"`
	Durability  string `json:"durability"`
	// Sending stops after so long, even before all records are sent.
	MostMs *uint64 `json:"most_ms"`
	// Records a second, for an open loop.
	Rate *uint64 `json:"rate"`
}

// done is what the load was.
type done struct {
	Records uint64  `json:"records"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	// The client sends record by record.
	MeanBatchBytes *float64     `json:"mean_batch_bytes"`
	Latency        *percentiles `json:"latency"`
}

func parsePlan(line string) (*plan, error) {
	var p plan
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		return nil, fmt.Errorf("the plan is odd: %w", err)
	}
	if p.RecordBytes < 16 || p.Partitions == 0 || p.Records == 0 {
		return nil, fmt.Errorf("the plan has %d records of %d bytes for %d partitions", p.Records, p.RecordBytes, p.Partitions)
	}
	if p.Work == "latency" && (p.Rate == nil || *p.Rate == 0) {
		return nil, fmt.Errorf("an open loop has a rate")
	}
	return &p, nil
}

// acknowledged is false if nothing is to be waited for.
func (p *plan) acknowledged() bool {
	return p.Acks != "0"
}

// pending is how many records may wait for their acknowledgement. The server takes up all that waits
// before it acknowledges any of it, which takes seconds where it syncs each record.
func (p *plan) pending() int {
	if p.Durability == "synced" {
		return 512
	}
	return 16_384
}

// isOver is true if sending that began at a moment is to stop by now.
func (p *plan) isOver(begin time.Time) bool {
	return p.MostMs != nil && time.Since(begin) >= time.Duration(*p.MostMs)*time.Millisecond
}

// finished says what a run was that began at a moment and ends now.
func (p *plan) finished(records uint64, begin time.Time) done {
	return done{
		Records: records,
		Bytes:   records * uint64(p.RecordBytes),
		Seconds: time.Since(begin).Seconds(),
	}
}
