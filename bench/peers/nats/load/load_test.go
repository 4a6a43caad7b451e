package main

import (
	"strings"
	"testing"
	"time"
)

func TestAStallCountsForAllThatItHeldUp(t *testing.T) {
	found := newArrivals()
	// One a millisecond; nothing arrives for 100 ms, then all at once.
	for number := range 100 {
		value := make([]byte, 16)
		stamp(value, time.Duration(2_000+number)*time.Millisecond)
		if err := found.take(value, 2_100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	latency := found.latency()
	if latency.Records != 100 || latency.P50 < 49_900 || latency.P50 > 52_100 || latency.Max < 99_800 || latency.Max > 100_200 {
		t.Fatalf("%+v", latency)
	}
}

func TestColdRecordsAndThoseThatOpenTheWayDoNotCount(t *testing.T) {
	found := newArrivals()
	value := make([]byte, 8)
	markOpening(value)
	if err := found.take(value, 0); err != nil {
		t.Fatal(err)
	}
	stamp(value, 999*time.Millisecond)
	if err := found.take(value, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if found.opened != 1 || found.arrived != 1 || found.latency() != nil {
		t.Fatalf("%+v", found)
	}
	if found.take([]byte{1, 2}, 0) == nil {
		t.Fatal("a record without a stamp was taken")
	}
}

func TestRecordsAreDueEvenly(t *testing.T) {
	p := pace{time.Now(), 3}
	for number, due := range map[uint64]time.Duration{0: 0, 1: 333_333_333, 3: time.Second, 3_000_000_001: 1_000_000_000*time.Second + 333_333_333} {
		if p.due(number) != due {
			t.Fatalf("%d is due at %v", number, p.due(number))
		}
	}
	p = pace{time.Now(), 1_000}
	p.wait(1)
	if time.Since(p.begin) < time.Millisecond {
		t.Fatal("it came back early")
	}
}

func TestKeysChooseSubjectsAndLeaveTheValueAlone(t *testing.T) {
	one := newRecords(&plan{Topic: "s", RecordBytes: 100, Partitions: 4, Keys: "random"})
	seen := map[string]bool{}
	for range 1_000 {
		subject, record := one.take()
		seen[subject] = true
		if len(record) != 100 || len(one.value(record)) != 92 {
			t.Fatal(len(record), len(one.value(record)))
		}
	}
	if len(seen) != 4 || !seen["s.0"] || !seen["s.3"] {
		t.Fatal(seen)
	}
	// Without keys a partition keeps the records of a batch.
	one = newRecords(&plan{Topic: "s", RecordBytes: 16, Partitions: 2})
	for number := range 2 * sticky {
		subject, record := one.take()
		if (subject == "s.1") != (number >= sticky) || len(one.value(record)) != 16 {
			t.Fatal(number, subject)
		}
	}
}

func TestAPlanIsReadAsTheHarnessWritesIt(t *testing.T) {
	line := `{"path":"nats","bootstrap":"127.0.0.1:1","topic":"t","work":"latency","records":10,"record_bytes":100,` +
		`"keys":"none","batch_bytes":16384,"linger_us":5000,"partitions":2,"acks":"0","durability":"synced","most_ms":0,"rate":500}`
	p, err := parsePlan(line)
	if err != nil || p.Records != 10 || *p.Rate != 500 || p.acknowledged() || p.pending() != 512 || !p.isOver(time.Now()) {
		t.Fatal(p, err)
	}
	for _, odd := range []string{"", "{}", strings.Replace(line, "500}", "0}", 1), strings.Replace(line, `"partitions":2`, `"partitions":0`, 1)} {
		if _, err := parsePlan(odd); err == nil {
			t.Fatal(odd)
		}
	}
}

func TestUnknownWorkIsRefused(t *testing.T) {
	line := `{"work":"juggle","records":1,"record_bytes":100,"partitions":1}` + "\n"
	err := load(strings.NewReader(line), &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "juggle") {
		t.Fatal(err)
	}
}
