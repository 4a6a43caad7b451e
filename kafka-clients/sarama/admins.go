package main

import (
	"encoding/json"

	"github.com/IBM/sarama"
)

// admins are clients for administration, by the broker's address.
type admins map[string]sarama.ClusterAdmin

func (a admins) admin(r *request) sarama.ClusterAdmin {
	if a[r.Bootstrap] == nil {
		client, err := sarama.NewClusterAdmin([]string{r.Bootstrap}, config())
		if err != nil {
			panic(err)
		}
		a[r.Bootstrap] = client
	}
	return a[r.Bootstrap]
}

func (a admins) handle(r *request) (any, error) {
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
		detail := &sarama.TopicDetail{NumPartitions: count, ReplicationFactor: 1, ConfigEntries: configs}
		return object{}, a.admin(r).CreateTopic(r.Topic, detail, false)
	case "delete_topic":
		return object{}, a.admin(r).DeleteTopic(r.Topic)
	case "list_topics":
		topics, err := a.admin(r).ListTopics()
		names := []string{}
		for name := range topics {
			names = append(names, name)
		}
		return names, err
	case "describe_topic":
		return a.describeTopic(r)
	case "describe_configs":
		entries, err := a.admin(r).DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: r.Topic,
		})
		answer := object{}
		for _, each := range entries {
			answer[each.Name] = object{"value": each.Value, "own": each.Source == sarama.SourceTopic}
		}
		return answer, err
	case "alter_configs":
		changes := map[string]sarama.IncrementalAlterConfigsEntry{}
		for name, value := range r.Set {
			changes[name] = sarama.IncrementalAlterConfigsEntry{
				Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value,
			}
		}
		for _, name := range r.Delete {
			changes[name] = sarama.IncrementalAlterConfigsEntry{
				Operation: sarama.IncrementalAlterConfigsOperationDelete,
			}
		}
		return object{}, a.admin(r).IncrementalAlterConfig(sarama.TopicResource, r.Topic, changes, false)
	case "create_partitions":
		return object{}, a.admin(r).CreatePartitions(r.Topic, r.Count, nil, false)
	case "delete_records":
		return object{"low": nil}, a.admin(r).DeleteRecords(r.Topic, map[int32]int64{r.Partition: r.Before})
	case "list_offsets":
		return a.listOffsets(r)
	case "list_groups":
		listed, err := a.admin(r).ListConsumerGroups()
		groups := []object{}
		for group, kind := range listed {
			groups = append(groups, object{"group": group, "protocol_type": kind, "state": nil})
		}
		return groups, err
	case "describe_group":
		return a.describeGroup(r)
	case "delete_group":
		return object{}, a.admin(r).DeleteConsumerGroup(r.Group)
	case "group_offsets":
		found, err := a.admin(r).ListConsumerGroupOffsets(r.Group, nil)
		if err != nil {
			return nil, err
		}
		offsets := []object{}
		for topic, partitions := range found.Blocks {
			for partition, block := range partitions {
				offsets = append(offsets, object{
					"topic": topic, "partition": partition, "offset": block.Offset, "metadata": block.Metadata,
				})
			}
		}
		return offsets, nil
	default:
		return nil, errUnsupported
	}
}

func (a admins) describeTopic(r *request) (any, error) {
	described, err := a.admin(r).DescribeTopics([]string{r.Topic})
	if err != nil {
		return nil, err
	}
	topic := described[0]
	if topic.Err != sarama.ErrNoError {
		return nil, topic.Err
	}
	partitions := make([]object, len(topic.Partitions))
	for _, each := range topic.Partitions {
		partitions[each.ID] = object{
			"partition": each.ID, "leader": each.Leader, "replicas": each.Replicas, "isr": each.Isr,
		}
	}
	return object{"partitions": partitions}, nil
}

func (a admins) listOffsets(r *request) (any, error) {
	client, err := sarama.NewClient([]string{r.Bootstrap}, config())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var at int64
	switch {
	case json.Unmarshal(r.At, &at) == nil:
	case string(r.At) == `"earliest"`:
		at = sarama.OffsetOldest
	case string(r.At) == `"latest"`:
		at = sarama.OffsetNewest
	default:
		return nil, errUnsupported
	}
	found, err := client.GetOffset(r.Topic, r.Partition, at)
	if found < 0 {
		return object{"offset": nil}, err
	}
	return object{"offset": found}, err
}

func (a admins) describeGroup(r *request) (any, error) {
	described, err := a.admin(r).DescribeConsumerGroups([]string{r.Group})
	if err != nil {
		return nil, err
	}
	group := described[0]
	if group.Err != sarama.ErrNoError {
		return nil, group.Err
	}
	members := []object{}
	for id, each := range group.Members {
		assignment := []object{}
		assigned, err := each.GetMemberAssignment()
		if err != nil {
			return nil, err
		}
		if assigned != nil {
			for topic, partitions := range assigned.Topics {
				for _, partition := range partitions {
					assignment = append(assignment, object{"topic": topic, "partition": partition})
				}
			}
		}
		members = append(members, object{
			"member": id, "client": each.ClientId, "instance": each.GroupInstanceId, "assignment": assignment,
		})
	}
	return object{"state": group.State, "strategy": group.Protocol, "members": members}, nil
}
