// Nats-load makes the load of one run at NATS JetStream, and streams for it.
//
//	nats-load load
//	nats-load create ADDRESS STREAM DURABILITY
//	nats-load delete ADDRESS STREAM
//
// `load` speaks to the harness as `kera-bench load` does: it reads a plan, one line of JSON, from its
// standard input, gets ready, says so, waits for `go`, does the work and says what it was; then it
// stays until its standard input ends, so that it can be looked at.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// silence is how long nothing may arrive or be acknowledged before a run has failed.
const silence = 30 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats-load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "load":
		return load(os.Stdin, os.Stdout)
	case len(args) == 4 && args[0] == "create":
		return create(args[1], args[2], args[3])
	case len(args) == 3 && args[0] == "delete":
		return remove(args[1], args[2])
	}
	return errors.New("usage: load | create ADDRESS STREAM DURABILITY | delete ADDRESS STREAM")
}

// gate stands between getting ready and the work.
type gate struct {
	in  *bufio.Reader
	out io.Writer
}

// wait tells the harness that the work can begin, waits for its word and returns when it begins.
func (g *gate) wait() (time.Time, error) {
	if _, err := fmt.Fprintln(g.out, `"ready"`); err != nil {
		return time.Time{}, err
	}
	line, err := g.in.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "go" {
		return time.Time{}, errors.New("the harness went away")
	}
	return time.Now(), nil
}

func load(in io.Reader, out io.Writer) error {
	g := gate{bufio.NewReader(in), out}
	line, err := g.in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("no plan: %w", err)
	}
	p, err := parsePlan(line)
	if err != nil {
		return err
	}
	var d done
	switch p.Work {
	case "produce":
		d, err = produce(p, &g)
	case "consume":
		d, err = consume(p, &g)
	case "latency":
		d, err = latency(p, &g)
	default:
		err = fmt.Errorf("work %q is not known here", p.Work)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(map[string]done{"done": d}); err != nil {
		return err
	}
	// Until the harness has seen enough of this process.
	_, _ = io.Copy(io.Discard, g.in)
	return nil
}
