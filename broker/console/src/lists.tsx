// The lists: streams, groups, brokers, settings.

import { useEffect, useState } from "preact/hooks";
import { CreateStream } from "./acts";
import { Bar, Card, Lag, Mark, Name, Pager, Table, Waiting } from "./parts";
import { byteRate, bytes, count, duration, rate } from "./format";
import { ask, useFeed } from "./live";
import { catchesUp, groupLags, reads } from "./overview";
import type { BrokerRow, GroupRow, Page, Severity, SettingsView, StreamRow } from "./types";

export const PAGE = 50;

export interface ListState {
  filter: string;
  sort: string;
  offset: number;
}

export function listPath(of: string, state: ListState): string {
  const query = new URLSearchParams({ limit: String(PAGE), sort: state.sort });
  if (state.offset > 0) query.set("offset", String(state.offset));
  if (state.filter) query.set("filter", state.filter);
  return `/api/v1/${of}?${query}`;
}

export interface ListProps {
  path: string;
  state: ListState;
  change: (state: ListState) => void;
}

function Filter({ state, change, label }: Omit<ListProps, "path"> & { label: string }) {
  return (
    <label class="filter">
      <span class="unseen">{label}</span>
      <input
        type="search"
        placeholder={label}
        value={state.filter}
        onInput={(event) => change({ ...state, filter: event.currentTarget.value, offset: 0 })}
      />
    </label>
  );
}

function Left({ page }: { page: Page<unknown> }) {
  if (page.silent.length === 0) return null;
  return (
    <p class="refusal" role="alert">
      <Mark state="trouble" /> {page.silent.map((one) => `Broker ${one.broker_id} does not answer`).join("; ")}: its part is missing here.
    </p>
  );
}

export function StreamsScreen({ path, state, change }: ListProps) {
  const { data, refusal } = useFeed().of<Page<StreamRow>>(path);
  return (
    <Card
      title="Streams"
      aside={
        <span class="aside">
          <Filter label="Find a stream" state={state} change={change} />
          <CreateStream />
        </span>
      }
    >
      {!data ? (
        <Waiting refusal={refusal} />
      ) : (
        <>
          <Left page={data} />
          <Table
            label="Streams"
            rows={data.items}
            id={(row) => row.name}
            sorted={state.sort}
            onSort={(sort) => change({ ...state, sort, offset: 0 })}
            empty={
              state.filter ? (
                `No stream has “${state.filter}” in its name.`
              ) : (
                <>
                  No stream yet. <code>kera stream create clicks</code> makes one.
                </>
              )
            }
            columns={[
              {
                head: "Stream",
                sort: "name",
                cell: (row) => (
                  <>
                    <a href={`#/streams/${encodeURIComponent(row.name)}`}><Name text={row.name} /></a>
                    {row.unserved_streamlets > 0 && <span class="tag trouble">{row.unserved_streamlets} not served</span>}
                  </>
                ),
              },
              { head: "Lanes", number: true, cell: (row) => count(row.partitions) },
              { head: "Replicas", number: true, cell: (row) => row.replicas },
              { head: "Records in", number: true, sort: "rate", cell: (row) => rate(row.records_in) },
              { head: "In", number: true, cell: (row) => byteRate(row.bytes_in) },
              { head: "Out", number: true, cell: (row) => byteRate(row.bytes_out) },
              { head: "Stored", number: true, sort: "bytes", cell: (row) => bytes(row.bytes) },
              { head: "Lag of each group", sort: "lag", cell: groupLags },
            ]}
          />
          <Pager offset={state.offset} size={PAGE} total={data.total} onMove={(offset) => change({ ...state, offset })} />
        </>
      )}
    </Card>
  );
}

export function GroupsScreen({ path, state, change }: ListProps) {
  const { data, refusal } = useFeed().of<Page<GroupRow>>(path);
  return (
    <Card title="Consumer groups" aside={<Filter label="Find a group" state={state} change={change} />}>
      {!data ? (
        <Waiting refusal={refusal} />
      ) : (
        <>
          <Left page={data} />
          <Table
            label="Consumer groups"
            rows={data.items}
            id={(row) => row.group}
            sorted={state.sort}
            onSort={(sort) => change({ ...state, sort, offset: 0 })}
            empty={
              state.filter ? (
                `No group has “${state.filter}” in its name.`
              ) : (
                <>
                  No group yet. <code>kera consume clicks --group billing</code> makes one.
                </>
              )
            }
            columns={[
              {
                head: "Group",
                sort: "name",
                cell: (row) => (
                  <>
                    <a href={`#/groups/${encodeURIComponent(row.group)}`}><Name text={row.group} /></a>
                    {row.kind === "kafka" && <span class="tag">Kafka</span>}
                  </>
                ),
              },
              { head: "Reads", cell: (row) => <Name text={reads(row) || "nothing yet"} /> },
              { head: "Members", number: true, cell: (row) => count(row.members) },
              { head: "Lag", number: true, sort: "lag", cell: (row) => <Lag lag={row.lag} unknown={row.unknown_lanes} behind={row.falls_behind} /> },
              { head: "Consumes", number: true, sort: "rate", cell: (row) => rate(row.records_consumed) },
              { head: "Catches up", cell: catchesUp },
              { head: "Why", cell: (row) => <span class="why">{row.why}</span> },
            ]}
          />
          <Pager offset={state.offset} size={PAGE} total={data.total} onMove={(offset) => change({ ...state, offset })} />
        </>
      )}
    </Card>
  );
}

export function brokerState(row: BrokerRow): { state: Severity; text: string } {
  if (row.not_ready) return { state: "trouble", text: "not ready" };
  if (row.state === "SILENT") return { state: "trouble", text: "does not answer" };
  if (row.state === "GONE") return { state: "trouble", text: "gone" };
  if (row.state === "NORMAL") return { state: "ok", text: "serves" };
  return { state: "attention", text: row.state.toLowerCase() };
}

export function BrokersScreen({ path }: { path: string }) {
  const { data, refusal } = useFeed().of<Page<BrokerRow>>(path);
  return (
    <Card title="Brokers">
      {!data ? (
        <Waiting refusal={refusal} />
      ) : (
        <Table
          label="Brokers"
          rows={data.items}
          id={(row) => String(row.broker_id)}
          empty="No broker."
          columns={[
            {
              head: "Broker",
              cell: (row) => (
                <>
                  <a href={`#/brokers/${row.broker_id}`}>{row.role === "broker" ? `broker ${row.broker_id}` : `${row.role} ${row.broker_id}`}</a>
                  {row.controller && <span class="tag">controller</span>}
                </>
              ),
            },
            {
              head: "State",
              cell: (row) => {
                const { state, text } = brokerState(row);
                return (
                  <span class="state">
                    <Mark state={state} /> {text}
                  </span>
                );
              },
            },
            { head: "Streamlets", number: true, cell: (row) => count(row.streamlets) },
            { head: "Records in", number: true, cell: (row) => rate(row.records_in) },
            { head: "Replicas", number: true, cell: (row) => bytes(row.held_bytes) },
            {
              head: "Disk",
              cell: (row) =>
                row.disk_total_bytes ? (
                  <span class="with-bar">
                    <Bar
                      part={row.disk_total_bytes - (row.disk_free_bytes ?? 0)}
                      whole={row.disk_total_bytes}
                      label={`${bytes(row.disk_free_bytes ?? 0)} of ${bytes(row.disk_total_bytes)} free`}
                    />
                    {bytes(row.disk_free_bytes ?? 0)} free
                  </span>
                ) : (
                  "…"
                ),
            },
            { head: "CPU", number: true, cell: (row) => (row.cpu_share === null ? "…" : `${(row.cpu_share * 100).toFixed(1)} %`) },
            { head: "Up", number: true, cell: (row) => (row.started_ms ? duration((Date.now() - row.started_ms) / 1000) : "…") },
            { head: "Address", cell: (row) => <code>{row.address || "-"}</code> },
          ]}
        />
      )}
    </Card>
  );
}

export function SettingsScreen() {
  const [data, setData] = useState<SettingsView | null>(null);
  const [refusal, setRefusal] = useState<string | null>(null);
  const [filter, setFilter] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    ask<SettingsView>("/api/v1/settings", stop.signal).then(setData, (error) => {
      if (!stop.signal.aborted) setRefusal(String(error.message ?? error));
    });
    return () => stop.abort();
  }, []);
  if (!data) return <Waiting refusal={refusal} />;
  const wanted = filter.toLowerCase();
  const rows = data.items.filter((one) => `${one.name} ${one.meaning}`.toLowerCase().includes(wanted));
  const state = { filter, sort: "name", offset: 0 };
  return (
    <Card title={`Settings of broker ${data.broker_id}`} aside={<Filter label="Find a setting" state={state} change={(next) => setFilter(next.filter)} />}>
      <p class="soft">
        What the broker uses now. Change them in its configuration file; some also while it runs, with <code>kafka-configs.sh</code>.
      </p>
      <Table
        label="Settings"
        rows={rows}
        id={(row) => row.name}
        empty={`No setting has “${filter}” in it.`}
        columns={[
          { head: "Setting", cell: (row) => <code>{row.name}</code> },
          {
            head: "Value",
            cell: (row) => (
              <>
                <code>{row.value}</code>
                {row.configured !== null && <span class="tag attention">changed, was {row.configured}</span>}
                {row.configured === null && row.value !== row.default && <span class="tag">not the default</span>}
              </>
            ),
          },
          { head: "Default", cell: (row) => <code>{row.default}</code> },
          { head: "Meaning", cell: (row) => <span class="why">{row.meaning.replace(/`/g, "")}</span> },
        ]}
      />
    </Card>
  );
}

