package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// admins are clients for administration, by the broker's address.
type admins map[string]*kadm.Client

func (a admins) admin(r *request) *kadm.Client {
	if a[r.Bootstrap] == nil {
		client, err := kgo.NewClient(kgo.SeedBrokers(r.Bootstrap))
		if err != nil {
			panic(err)
		}
		a[r.Bootstrap] = kadm.NewClient(client)
	}
	return a[r.Bootstrap]
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func (a admins) handle(ctx context.Context, r *request) (any, error) {
	switch r.Op {
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range r.Configs {
			configs[name] = &value
		}
		var count int32
		if err := json.Unmarshal(r.Parts, &count); err != nil {
			return nil, err
		}
		_, err := a.admin(r).CreateTopic(ctx, count, -1, configs, r.Topic)
		return object{}, err
	case "delete_topic":
		_, err := a.admin(r).DeleteTopic(ctx, r.Topic)
		return object{}, err
	case "list_topics":
		topics, err := a.admin(r).ListTopics(ctx)
		return topics.Names(), err
	case "describe_topic":
		return a.describeTopic(ctx, r)
	case "describe_configs":
		return a.describeConfigs(ctx, r)
	case "alter_configs":
		return a.alterConfigs(ctx, r)
	case "create_partitions":
		answers, err := a.admin(r).UpdatePartitions(ctx, r.Count, r.Topic)
		if err != nil {
			return nil, err
		}
		return object{}, answers.Error()
	case "describe_cluster":
		described, err := a.admin(r).BrokerMetadata(ctx)
		if err != nil {
			return nil, err
		}
		nodes := []object{}
		for _, node := range described.Brokers {
			nodes = append(nodes, object{"id": node.NodeID, "host": node.Host, "port": node.Port})
		}
		return object{"cluster_id": described.Cluster, "controller": described.Controller, "nodes": nodes}, nil
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(r.Topic, r.Partition, r.Before, -1)
		answers, err := a.admin(r).DeleteRecords(ctx, offsets)
		if err != nil {
			return nil, err
		}
		answer := answers[r.Topic][r.Partition]
		return object{"low": answer.LowWatermark}, answer.Err
	case "list_offsets":
		return listOffsets(ctx, a.admin(r), r, r.At)
	case "list_groups":
		listed, err := a.admin(r).ListGroups(ctx)
		if err != nil {
			return nil, err
		}
		groups := []object{}
		for _, group := range listed {
			groups = append(groups, object{
				"group": group.Group, "protocol_type": group.ProtocolType, "state": group.State,
			})
		}
		return groups, nil
	case "describe_group":
		return a.describeGroup(ctx, r)
	case "delete_group":
		_, err := a.admin(r).DeleteGroup(ctx, r.group())
		return object{}, err
	case "group_offsets":
		found, err := a.admin(r).FetchOffsets(ctx, r.group())
		if err != nil {
			return nil, err
		}
		offsets := []object{}
		for _, each := range found.Sorted() {
			offsets = append(offsets, object{
				"topic": each.Topic, "partition": each.Partition, "offset": each.At, "metadata": each.Metadata,
			})
		}
		return offsets, found.Error()
	case "delete_offsets":
		list, err := r.partitions()
		if err != nil {
			return nil, err
		}
		set := kadm.TopicsSet{}
		set.Add(r.Topic, list...)
		answers, err := a.admin(r).DeleteOffsets(ctx, r.group(), set)
		if err != nil {
			return nil, err
		}
		return object{}, answers.Error()
	default:
		return nil, errUnsupported
	}
}

func (a admins) describeTopic(ctx context.Context, r *request) (any, error) {
	topics, err := a.admin(r).ListTopics(ctx, r.Topic)
	if err != nil {
		return nil, err
	}
	topic := topics[r.Topic]
	if topic.Err != nil {
		return nil, topic.Err
	}
	partitions := []object{}
	for _, each := range topic.Partitions.Sorted() {
		partitions = append(partitions, object{
			"partition": each.Partition, "leader": each.Leader, "replicas": each.Replicas, "isr": each.ISR,
		})
	}
	return object{"id": hex.EncodeToString(topic.ID[:]), "partitions": partitions}, nil
}

func (a admins) describeConfigs(ctx context.Context, r *request) (any, error) {
	described, err := a.admin(r).DescribeTopicConfigs(ctx, r.Topic)
	if err != nil {
		return nil, err
	}
	found, err := described.On(r.Topic, nil)
	if err == nil {
		err = found.Err
	}
	if err != nil {
		return nil, err
	}
	answer := object{}
	for _, each := range found.Configs {
		answer[each.Key] = object{
			"value": each.Value, "own": each.Source == kmsg.ConfigSourceDynamicTopicConfig,
		}
	}
	return answer, nil
}

func (a admins) alterConfigs(ctx context.Context, r *request) (any, error) {
	changes := []kadm.AlterConfig{}
	for name, value := range r.Set {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	for _, name := range r.Delete {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	answers, err := a.admin(r).AlterTopicConfigs(ctx, changes, r.Topic)
	if err != nil {
		return nil, err
	}
	for _, answer := range answers {
		if answer.Err != nil {
			return nil, answer.Err
		}
	}
	return object{}, nil
}

func listOffsets(ctx context.Context, admin *kadm.Client, r *request, at json.RawMessage) (any, error) {
	var found kadm.ListedOffsets
	var err error
	var timestamp int64
	switch {
	case json.Unmarshal(at, &timestamp) == nil:
		found, err = admin.ListOffsetsAfterMilli(ctx, timestamp, r.Topic)
	case string(at) == `"earliest"`:
		found, err = admin.ListStartOffsets(ctx, r.Topic)
	case string(at) == `"latest"`:
		found, err = admin.ListEndOffsets(ctx, r.Topic)
	default:
		found, err = admin.ListMaxTimestampOffsets(ctx, r.Topic)
	}
	if err != nil {
		return nil, err
	}
	one := found[r.Topic][r.Partition]
	if timestamp != 0 && one.Timestamp == -1 && one.Err == nil {
		// kadm puts the end where the broker said that there is none.
		return object{"offset": nil, "timestamp": nil}, nil
	}
	return object{"offset": one.Offset, "timestamp": one.Timestamp}, one.Err
}

func (a admins) describeGroup(ctx context.Context, r *request) (any, error) {
	described, err := a.admin(r).DescribeGroups(ctx, r.group())
	if err != nil {
		return nil, err
	}
	group := described[r.group()]
	if group.Err != nil {
		return nil, group.Err
	}
	members := []object{}
	for _, each := range group.Members {
		assignment := []object{}
		if assigned, ok := each.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				for _, partition := range topic.Partitions {
					assignment = append(assignment, object{"topic": topic.Topic, "partition": partition})
				}
			}
		}
		members = append(members, object{
			"member": each.MemberID, "client": each.ClientID, "instance": each.InstanceID, "assignment": assignment,
		})
	}
	return object{"state": group.State, "strategy": group.Protocol, "members": members}, nil
}
