package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// change is how long a stream may take to be made or deleted.
const change = 60 * time.Second

func connect(address string, options ...jetstream.JetStreamOpt) (*nats.Conn, jetstream.JetStream, error) {
	// A server that went away ends the run.
	connection, err := nats.Connect("nats://"+address, nats.Name("kera-bench"), nats.NoReconnect())
	if err != nil {
		return nil, nil, fmt.Errorf("no NATS server at %s: %w", address, err)
	}
	js, err := jetstream.New(connection, options...)
	return connection, js, err
}

// create makes a stream that holds every subject below its name, one for each partition.
func create(address, name, durability string) error {
	config := jetstream.StreamConfig{
		Name:      name,
		Subjects:  []string{name + ".*"},
		Storage:   jetstream.FileStorage,
		Replicas:  1,
		Retention: jetstream.LimitsPolicy,
	}
	switch durability {
	case "memory":
		// An acknowledgement does not wait for the file.
		config.PersistMode = jetstream.AsyncPersistMode
	case "written", "synced":
		// The server's sync_interval tells the two apart.
	default:
		return fmt.Errorf("durability %q is not known", durability)
	}
	connection, js, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	within, cancel := context.WithTimeout(context.Background(), change)
	defer cancel()
	if _, err := js.CreateStream(within, config); err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	return nil
}

func remove(address, name string) error {
	connection, js, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	within, cancel := context.WithTimeout(context.Background(), change)
	defer cancel()
	if err := js.DeleteStream(within, name); err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	return nil
}
