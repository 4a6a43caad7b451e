// One stream: lanes and their groups of segments, who reads it, its records, its settings.

import { StreamActs } from "./acts";
import { Card, Chart, Lag, Mark, Name, Pager, Table, Tile, Waiting } from "./parts";
import { byteRate, bytes, count, dateTime, duration, lagText, plural, rate, short } from "./format";
import { history } from "./history";
import { useFeed } from "./live";
import { catchesUp } from "./overview";
import { RecordsTab } from "./records";
import type { LaneDetail, SegmentGroup, StreamDetail } from "./types";

export const LANES = 32;
export const TABS = ["lanes", "consumers", "records", "settings"] as const;
export type Tab = (typeof TABS)[number];

function groupText(group: SegmentGroup): string {
  const where = group.brokers.length > 0 ? `, on brokers ${group.brokers.join(", ")}` : "";
  const state = group.closed ? "closed" : "open";
  return `group ${group.group}, epoch ${group.epoch}, ${state}: ordinals ${count(group.first_ordinal)} to ${count(group.end_ordinal)}, ${bytes(group.bytes)}${where}`;
}

/** The newest groups of a lane, as wide as they are large. */
function Groups({ lane }: { lane: LaneDetail }) {
  const most = Math.max(1, ...lane.groups.map((group) => group.bytes));
  const text = `${plural(lane.groups_total, "group")}; the newest: ${lane.groups.slice(-1).map(groupText).join("")}`;
  return (
    <span class="segments" role="img" aria-label={text}>
      {lane.groups_total > lane.groups.length && <span class="soft">+{count(lane.groups_total - lane.groups.length)} </span>}
      {lane.groups.map((group) => (
        <span
          class={group.closed ? "segment" : "segment open"}
          title={groupText(group)}
          style={{ flexGrow: Math.max(0.15, group.bytes / most) }}
        />
      ))}
    </span>
  );
}

function Replicas({ lane }: { lane: LaneDetail }) {
  const open = lane.groups[lane.groups.length - 1];
  if (!open) return <span class="soft">none yet</span>;
  if (open.brokers.length + open.replicas.length === 0) return <span class="soft">own file</span>;
  if (open.replicas.length === 0) return <>{open.brokers.join(", ")}</>;
  return (
    <span class="chips">
      {open.replicas.map((one) => {
        const missing = one.placed === null ? 0 : Math.max(0, open.bytes - one.placed);
        const text = one.lost ? `lost: ${one.lost}` : missing > 0 ? `${bytes(missing)} to come` : "has all";
        return (
          <span class={one.lost ? "chip lost" : "chip"} title={`broker ${one.broker}: ${text}`}>
            {one.broker}
            {one.broker === lane.owner && <span class="soft"> owner</span>}
            {one.lost && <b> lost</b>}
          </span>
        );
      })}
    </span>
  );
}

function Lanes({ data, move }: { data: StreamDetail; move: (offset: number) => void }) {
  return (
    <Card title="Lanes" aside={<span class="soft">grown {plural(data.lane_generation, "time")}</span>}>
      {data.unserved.length > 0 && (
        <ul class="problems">
          {data.unserved.map((one) => (
            <li>
              <Mark state="trouble" label="trouble" />
              <span>
                <b>Streamlet {one.streamlet}</b> is not served: {one.reason}
              </span>
            </li>
          ))}
        </ul>
      )}
      <Table
        label="Lanes"
        rows={data.lanes}
        id={(lane) => `${lane.streamlet}.${lane.lane}`}
        empty="No lane is served now."
        columns={[
          { head: "Lane", cell: (lane) => <span title={`streamlet ${lane.streamlet}, lane ${lane.lane}`}>{`${lane.streamlet}.${lane.lane}`}</span> },
          { head: "Partition", number: true, cell: (lane) => lane.partition },
          { head: "Owner", cell: (lane) => (lane.owner === null ? "this broker" : `broker ${lane.owner}`) },
          { head: "Epoch", number: true, cell: (lane) => lane.epoch },
          { head: "Starts at", number: true, cell: (lane) => count(lane.log_start) },
          { head: "Durable to", number: true, cell: (lane) => count(lane.head_ordinal) },
          { head: "Not yet durable", number: true, cell: (lane) => count(lane.end_ordinal - lane.head_ordinal) },
          { head: "Stored", number: true, cell: (lane) => bytes(lane.bytes) },
          { head: "Groups of segments", cell: (lane) => <Groups lane={lane} /> },
          { head: "Replicas of the newest", cell: (lane) => <Replicas lane={lane} /> },
        ]}
      />
      <Pager offset={data.offset} size={LANES} total={data.lanes_total} onMove={move} />
    </Card>
  );
}

function Consumers({ data }: { data: StreamDetail }) {
  return (
    <Card title="Who reads it">
      <Table
        label="Consumer groups of the stream"
        rows={data.consumer_groups}
        id={(row) => row.group}
        empty={
          <>
            No consumer group reads this stream. <code>kera consume {data.name} --group NAME</code> makes one.
          </>
        }
        columns={[
          { head: "Group", cell: (row) => <a href={`#/groups/${encodeURIComponent(row.group)}`}><Name text={row.group} /></a> },
          { head: "Members", number: true, cell: (row) => count(row.members) },
          {
            head: "Lag",
            number: true,
            cell: (row) => {
              const here = row.streams.find((of) => of.stream === data.name) ?? row;
              return <Lag lag={here.lag} unknown={here.unknown_lanes} behind={row.falls_behind} />;
            },
          },
          { head: "Consumes", number: true, cell: (row) => rate(row.records_consumed) },
          { head: "Catches up", cell: catchesUp },
          { head: "Why", cell: (row) => <span class="why">{row.why}</span> },
        ]}
      />
    </Card>
  );
}

/** What 0 means, where it does not mean that there is no limit. */
const NOTHING: Record<string, string> = { group_max_age_ms: "never", min_compaction_lag_ms: "none", delete_retention_ms: "none" };

function setting(name: string, value: string | number | boolean): string {
  const number = Number(value);
  if (name === "created_ms") return dateTime(number);
  if (name === "min_dirty_ratio") return String(value);
  if (name.endsWith("_ms")) return number === 0 ? (NOTHING[name] ?? "no limit") : duration(number / 1000);
  if (name.endsWith("_bytes") || name === "segment_size") return number === 0 ? "no limit" : bytes(number);
  return typeof value === "number" ? count(value) : String(value);
}

function Settings({ data }: { data: StreamDetail }) {
  const all: [string, string | number | boolean][] = [
    ["replicas", data.replicas],
    ["ack", data.ack],
    ["streamlets", data.streamlets],
    ["partitions", data.partitions],
    ...Object.entries(data.settings ?? {}),
  ];
  return (
    <Card title="Settings of the stream">
      <p class="soft">
        Change them with <code>kera stream alter {data.name}</code>.
      </p>
      {data.settings === null && <p class="soft">You may not see its other settings: that takes the right describe-configs on the stream.</p>}
      <StreamActs data={data} />
      <dl class="facts">
        {all.map(([name, value]) => (
          <div>
            <dt>{name.replace(/_ms$/, "").replace(/_/g, " ")}</dt>
            <dd>{setting(name, value)}</dd>
          </div>
        ))}
      </dl>
    </Card>
  );
}

export function StreamScreen(props: { path: string; name: string; tab: Tab; move: (offset: number) => void }) {
  const { data, refusal } = useFeed().of<StreamDetail>(props.path);
  const base = `#/streams/${encodeURIComponent(props.name)}`;
  const points = data && history(`stream ${data.name}`, data.taken_ms, [data.bytes_in, data.bytes_out]);
  return (
    <>
      <nav class="crumbs" aria-label="Where you are">
        <a href="#/streams">Streams</a> <span aria-hidden="true">/</span> <span aria-current="page">{props.name}</span>
      </nav>
      {refusal && <Waiting refusal={refusal} />}
      {!data && !refusal && <Waiting refusal={null} />}
      {data && points && (
        <>
          <dl class="tiles">
            <Tile label="Records in" value={rate(data.records_in)} detail={`${byteRate(data.bytes_in)} in, ${byteRate(data.bytes_out)} out`} />
            <Tile label="Stored" value={bytes(data.bytes)} detail={`${short(data.records)} records`} />
            <Tile
              label="Lanes"
              value={count(data.partitions)}
              state={data.unserved_streamlets > 0 ? "trouble" : undefined}
              detail={data.unserved_streamlets > 0 ? `${plural(data.unserved_streamlets, "streamlet")} not served` : `in ${plural(data.streamlets, "streamlet")}`}
            />
            <Tile
              label="Replicas"
              value={String(data.replicas)}
              state={data.under_replicated_groups > 0 ? "attention" : undefined}
              detail={data.under_replicated_groups > 0 ? `${plural(data.under_replicated_groups, "group")} with too few` : `acknowledged when ${data.ack}`}
            />
            <Tile label="Most lag" value={lagText(data.lag, data.groups.reduce((sum, of) => sum + of.unknown_lanes, 0))} detail={data.groups_total > 0 ? `of ${plural(data.groups_total, "group")}` : "no group reads it"} />
          </dl>
          <nav class="tabs" aria-label="Parts of the stream">
            {TABS.map((tab) => (
              <a href={`${base}/${tab}`} aria-current={tab === props.tab ? "page" : undefined}>
                {tab[0].toUpperCase() + tab.slice(1)}
              </a>
            ))}
          </nav>
          {props.tab === "lanes" && (
            <>
              <Card title="Bytes, a second">
                <Chart
                  label="Bytes, a second"
                  series={[
                    { label: "in", color: "--in" },
                    { label: "out", color: "--out" },
                  ]}
                  data={points}
                  show={(v) => bytes(Math.round(v))}
                  height={120}
                />
              </Card>
              <Lanes data={data} move={props.move} />
            </>
          )}
          {props.tab === "consumers" && <Consumers data={data} />}
          {props.tab === "records" && <RecordsTab stream={props.name} />}
          {props.tab === "settings" && <Settings data={data} />}
        </>
      )}
    </>
  );
}
