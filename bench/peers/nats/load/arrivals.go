package main

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// longest is the longest latency told apart from longer ones.
	longest = 600 * time.Second
	// cold: records that were due before this are not counted.
	cold = time.Second
	// opening is the stamp of records that only open the way.
	opening = math.MaxUint64
)

// percentiles are microseconds.
type percentiles struct {
	Records uint64  `json:"records"`
	Mean    float64 `json:"mean_us"`
	P50     float64 `json:"p50_us"`
	P90     float64 `json:"p90_us"`
	P99     float64 `json:"p99_us"`
	P999    float64 `json:"p999_us"`
	Max     float64 `json:"max_us"`
}

// stamp puts when a record was due into its value.
func stamp(value []byte, due time.Duration) {
	binary.LittleEndian.PutUint64(value, uint64(due))
}

// markOpening marks a record as one that only opens the way.
func markOpening(value []byte) {
	binary.LittleEndian.PutUint64(value, opening)
}

// arrivals counts from when each record was due, not from when it was sent: a stall counts for every
// record that it held up (no coordinated omission).
type arrivals struct {
	histogram *hdrhistogram.Histogram
	opened    uint64
	arrived   uint64
}

func newArrivals() *arrivals {
	return &arrivals{histogram: hdrhistogram.New(1_000, int64(longest), 3)}
}

// take counts a record that arrived so long after the beginning.
func (a *arrivals) take(value []byte, now time.Duration) error {
	if len(value) < 8 {
		return errors.New("a record without a stamp arrived")
	}
	stamp := binary.LittleEndian.Uint64(value)
	if stamp == opening {
		a.opened++
		return nil
	}
	a.arrived++
	due := time.Duration(stamp)
	if due < cold {
		return nil
	}
	return a.histogram.RecordValue(int64(min(max(now-due, 0), longest)))
}

// latency is nil if no record counts.
func (a *arrivals) latency() *percentiles {
	found := a.histogram
	if found.TotalCount() == 0 {
		return nil
	}
	at := func(percentile float64) float64 {
		return float64(found.ValueAtPercentile(percentile)) / 1e3
	}
	return &percentiles{
		Records: uint64(found.TotalCount()),
		Mean:    found.Mean() / 1e3,
		P50:     at(50),
		P90:     at(90),
		P99:     at(99),
		P999:    at(99.9),
		Max:     float64(found.Max()) / 1e3,
	}
}
