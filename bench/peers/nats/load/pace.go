package main

import "time"

// least is what whoever is ahead of the rate waits at least, to then send all that is due: a shorter
// wait would take a core away from the broker. What it adds counts as latency.
const least = 200 * time.Microsecond

// pace says when each record of an open loop is due.
type pace struct {
	begin time.Time
	rate  uint64
}

// due is how long after the beginning a record is due.
func (p pace) due(number uint64) time.Duration {
	whole, rest := number/p.rate, number%p.rate
	return time.Duration(whole)*time.Second + time.Duration(rest*uint64(time.Second)/p.rate)
}

// wait returns once a record is due.
func (p pace) wait(number uint64) {
	for {
		left := p.due(number) - time.Since(p.begin)
		if left <= 0 {
			return
		}
		time.Sleep(max(left, least))
	}
}
