package main

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
)

const (
	// keyBytes is the length of a random key.
	keyBytes = 8
	// values is how many records differ, so that caches and disks find nothing to profit from.
	values = 1024
	// sticky is how many records without a key stay with a partition: as many as fill a batch of
	// 16 KiB at clients that batch.
	sticky = 160
)

// records makes records of one size, round and round; keys, if there are any, differ for ever. NATS
// has no keys: one takes the first bytes of its record and chooses the subject.
type records struct {
	random   *rand.Rand
	bytes    []byte
	size     int
	next     int
	number   int
	keyed    bool
	subjects []string
}

func newRecords(p *plan) *records {
	r := &records{
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		size:   p.RecordBytes,
		keyed:  p.Keys == "random",
	}
	number := max(min(values, (64<<20)/p.RecordBytes), 1)
	r.bytes = make([]byte, number*p.RecordBytes)
	for at := 0; at+8 <= len(r.bytes); at += 8 {
		binary.LittleEndian.PutUint64(r.bytes[at:], r.random.Uint64())
	}
	for n := range p.Partitions {
		r.subjects = append(r.subjects, subject(p.Topic, n))
	}
	return r
}

// take returns the next record, whose value may be written to, and its subject.
func (r *records) take() (string, []byte) {
	record := r.bytes[r.next : r.next+r.size]
	r.next += r.size
	if r.next == len(r.bytes) {
		r.next = 0
	}
	partitions := uint64(len(r.subjects))
	if r.keyed {
		key := r.random.Uint64()
		binary.LittleEndian.PutUint64(record, key)
		return r.subjects[key%partitions], record
	}
	to := uint64(r.number/sticky) % partitions
	r.number++
	return r.subjects[to], record
}

// value is what comes after the key, if there is one.
func (r *records) value(record []byte) []byte {
	if r.keyed {
		return record[keyBytes:]
	}
	return record
}

// subject is that of a partition.
func subject(stream string, partition uint32) string {
	return stream + "." + strconv.FormatUint(uint64(partition), 10)
}
