import { Bar, Card, Chart, Lag, Mark, Name, Table, Tile, Waiting } from "./parts";
import { byteRate, bytes, clock, count, duration, isoTime, lagText, plural, rate, short } from "./format";
import { history } from "./history";
import { useFeed } from "./live";
import type { GroupRow, Health, Overview, StreamRow, TimelineEvent } from "./types";

export function Sentence({ health }: { health: Health }) {
  const label = { ok: "All is well", attention: "Needs attention", trouble: "Trouble" }[health.state];
  return (
    <section class={`health ${health.state}`} aria-label="Health">
      <Mark state={health.state} label={label} />
      <div>
        <p class="sentence" role="status" aria-live="polite">
          {health.sentence}
        </p>
        {health.advice && <p class="advice">What to do: {health.advice}</p>}
        {health.problems_total > 1 && (
          <details>
            <summary>{plural(health.problems_total, "problem")} in all</summary>
            <ul class="problems">
              {health.problems.map((one) => (
                <li>
                  <Mark state={one.severity} label={one.severity} />
                  <span>
                    <b>{one.object}</b> {one.problem}. <span class="soft">{one.advice}.</span>
                  </span>
                </li>
              ))}
            </ul>
          </details>
        )}
      </div>
    </section>
  );
}

export function groupLags(row: StreamRow) {
  if (row.groups_total === 0) return <span class="soft">none</span>;
  return (
    <span class="chips">
      {row.groups.slice(0, 3).map((of) => (
        <a class="chip" href={`#/groups/${encodeURIComponent(of.group)}`}>
          <Name text={of.group} /> <b>{lagText(of.lag, of.unknown_lanes)}</b>
        </a>
      ))}
      {row.groups_total > 3 && <span class="soft">and {count(row.groups_total - 3)} more</span>}
    </span>
  );
}

/** The streams that a group reads: those that lag most, and how many more. */
export function reads(row: GroupRow): string {
  const names = row.streams.map((of) => of.stream).join(", ");
  const more = row.streams_total - row.streams.length;
  return more > 0 ? `${names} and ${count(more)} more` : names;
}

export function catchesUp(row: GroupRow): string {
  if (row.unknown_lanes > 0) return "not known";
  if (row.lag === 0) return "caught up";
  if (!row.falls_behind && row.why === "it keeps up") return "keeps up";
  return row.catches_up_s === null ? "not at this pace" : `in ${duration(row.catches_up_s)}`;
}

function Events({ events }: { events: TimelineEvent[] }) {
  if (events.length === 0) {
    return <p class="empty">Nothing has changed since this broker was first asked. Failovers, growth of lanes and lagging groups show up here.</p>;
  }
  return (
    <ol class="timeline">
      {events.slice(0, 14).map((event) => (
        <li>
          <time dateTime={isoTime(event.at_ms)}>{clock(event.at_ms)}</time>
          <Mark state={event.severity} label={event.severity} />
          <span>{event.text}</span>
        </li>
      ))}
    </ol>
  );
}

export function OverviewScreen() {
  const { data, refusal } = useFeed().of<Overview>("/api/v1/overview");
  if (!data) return <Waiting refusal={refusal} />;
  const points = history("overview", data.taken_ms, [data.records_in, data.bytes_in, data.bytes_out]);
  const lag = data.lagging_groups.reduce((sum, group) => sum + group.lag, 0);
  return (
    <>
      <Sentence health={data.health} />
      <dl class="tiles">
        <Tile label="Records in" value={rate(data.records_in)} detail={`${byteRate(data.bytes_in)} in, ${byteRate(data.bytes_out)} out`} />
        <Tile
          label="Stored"
          value={bytes(data.bytes)}
          detail={`${short(data.records)} records in ${plural(data.streams, "stream")}, ${plural(data.partitions, "lane")}`}
        />
        <Tile
          label="Consumer groups"
          value={count(data.groups)}
          state={data.groups_behind > 0 ? "attention" : undefined}
          detail={data.groups_behind > 0 ? `${data.groups_behind} behind, lag ${short(lag)}` : data.groups > 0 ? "none falls behind" : "none yet"}
        />
        <Tile
          label="Brokers"
          value={`${data.brokers_answering} of ${data.brokers}`}
          state={data.brokers_answering < data.brokers ? "trouble" : undefined}
          detail={data.controller === null ? "answering" : `answering; ${data.controller} is controller`}
        />
      </dl>
      <div class="columns">
        <Card title="Records in, a second">
          <Chart label="Records in, a second" series={[{ label: "records in", color: "--in" }]} data={[points[0], points[1]]} show={(v) => short(Math.round(v))} />
        </Card>
        <Card title="Bytes, a second">
          <Chart
            label="Bytes, a second"
            series={[
              { label: "in", color: "--in" },
              { label: "out", color: "--out" },
            ]}
            data={[points[0], points[2], points[3]]}
            show={(v) => bytes(Math.round(v))}
          />
        </Card>
      </div>
      <Card title="Busiest streams" aside={<a href="#/streams">All streams</a>}>
        <Table
          label="Busiest streams"
          rows={data.busiest_streams}
          id={(row) => row.name}
          empty={
            <>
              No stream yet. <code>kera stream create clicks</code> makes one.
            </>
          }
          columns={[
            { head: "Stream", cell: (row) => <a href={`#/streams/${encodeURIComponent(row.name)}`}><Name text={row.name} /></a> },
            { head: "Records in", number: true, cell: (row) => rate(row.records_in) },
            { head: "In", number: true, cell: (row) => byteRate(row.bytes_in) },
            { head: "Out", number: true, cell: (row) => byteRate(row.bytes_out) },
            { head: "Lag of each group", cell: groupLags },
          ]}
        />
      </Card>
      <div class="columns">
        <Card title="Groups that lag" aside={<a href="#/groups">All groups</a>}>
          <Table
            label="Groups that lag"
            rows={data.lagging_groups}
            id={(row) => row.group}
            empty="No group lags."
            columns={[
              { head: "Group", cell: (row) => <a href={`#/groups/${encodeURIComponent(row.group)}`}><Name text={row.group} /></a> },
              { head: "Lag", number: true, cell: (row) => <Lag lag={row.lag} unknown={row.unknown_lanes} behind={row.falls_behind} why={row.why} /> },
              { head: "Catches up", cell: catchesUp },
              { head: "Why", cell: (row) => <span class="why">{row.why}</span> },
            ]}
          />
        </Card>
        <Card title="What happened">
          <Events events={data.events} />
        </Card>
      </div>
      {data.to_come_bytes > 0 && (
        <p class="soft">
          Replicas on the move: {bytes(data.to_come_bytes)} to come. <Bar part={data.bytes - data.to_come_bytes} whole={data.bytes} label="replicas in place" />
        </p>
      )}
    </>
  );
}
