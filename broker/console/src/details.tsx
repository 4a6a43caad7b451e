// One consumer group, and one broker.

import { BrokerActs, GroupActs } from "./acts";
import { Bar, Card, Chart, Lag, Mark, Name, Pager, Table, Tile, Waiting } from "./parts";
import { byteRate, bytes, count, duration, lagText, plural, rate, short, visible } from "./format";
import { history } from "./history";
import { brokerState } from "./lists";
import { useFeed } from "./live";
import { catchesUp, reads } from "./overview";
import type { BrokerDetail, GroupDetail } from "./types";

export const LEASES = 50;

function needsALook(data: GroupDetail): boolean {
  return data.falls_behind || data.unknown_lanes > 0;
}

/** A number; null: it is not known. */
function known(value: number | null, show: (value: number) => string = count): string {
  return value === null ? "not known" : show(value);
}

export function GroupScreen(props: { path: string; name: string; move: (offset: number) => void }) {
  const { data, refusal } = useFeed().of<GroupDetail>(props.path);
  const points = data && history(`group ${data.group}`, data.taken_ms, [data.lag]);
  return (
    <>
      <nav class="crumbs" aria-label="Where you are">
        <a href="#/groups">Consumer groups</a> <span aria-hidden="true">/</span> <span aria-current="page">{visible(props.name)}</span>
      </nav>
      {!data && <Waiting refusal={refusal} />}
      {data && points && (
        <>
          {refusal && <Waiting refusal={refusal} />}
          <section class={`health ${needsALook(data) ? "attention" : "ok"}`} aria-label="Why it lags">
            <Mark
              state={needsALook(data) ? "attention" : "ok"}
              label={data.falls_behind ? "falls behind" : needsALook(data) ? "not known" : "keeps up"}
            />
            <div>
              <p class="sentence" role="status">
                {data.lag > 0
                  ? `${data.unknown_lanes > 0 ? "At least " : ""}${plural(data.lag, "record")} behind; ${data.why}.`
                  : data.above_stable || data.unknown_lanes > 0
                    ? `${data.why[0].toUpperCase()}${data.why.slice(1)}.`
                    : "Everything is consumed."}
              </p>
            </div>
          </section>
          <dl class="tiles">
            <Tile label="Lag" value={lagText(data.lag, data.unknown_lanes)} state={data.falls_behind ? "attention" : undefined} detail={catchesUp(data)} />
            <Tile label="Consumes" value={rate(data.records_consumed)} detail={`${rate(data.records_in)} come in`} />
            <Tile label="Members" value={count(data.members)} detail={data.kind === "kafka" ? `Kafka, ${data.state ?? ""}` : plural(data.leases, "lease")} />
            <Tile label="Reads" value={visible(reads(data)) || "nothing"} detail={data.order ? `order = ${data.order}` : data.protocol} />
          </dl>
          <GroupActs data={data} />
          <Card title="Lag, in records">
            <Chart label="Lag, in records" series={[{ label: "lag", color: "--lag" }]} data={points} show={(v) => short(Math.round(v))} height={120} />
          </Card>
          <Card title="Members">
            <Table
              label="Members"
              rows={data.member_descriptions}
              id={(row) => row.member}
              empty="No member. Nobody reads for this group now."
              columns={[
                { head: "Member", cell: (row) => <code><Name text={row.member} /></code> },
                { head: "Client", cell: (row) => <Name text={[row.client, row.instance, row.host].filter(Boolean).join(", ") || "-"} /> },
                { head: data.kind === "kafka" ? "Partitions" : "Leases", number: true, cell: (row) => count(data.kind === "kafka" ? row.partitions : row.leases) },
                { head: "Lag of what it has", number: true, cell: (row) => <Lag lag={row.lag} /> },
                { head: "Heard of", number: true, cell: (row) => `${duration(row.last_heartbeat_ms_ago / 1000)} ago` },
              ]}
            />
          </Card>
          {data.kind === "native" ? (
            <Card title="Lanes and leases">
              <Table
                label="Lanes and leases"
                rows={data.lanes}
                id={(row) => `${row.streamlet}.${row.lane}`}
                empty="No lane yet."
                columns={[
                  { head: "Lane", cell: (row) => <span title={`streamlet ${row.streamlet}, lane ${row.lane}`}>{`${row.streamlet}.${row.lane}`}</span> },
                  { head: "Consumed to", number: true, cell: (row) => count(row.committed) },
                  { head: "Durable to", number: true, cell: (row) => known(row.head_ordinal) },
                  { head: "Lag", number: true, cell: (row) => <Lag lag={row.lag} /> },
                  {
                    head: "Leased to",
                    cell: (row) =>
                      row.leases.length === 0 ? (
                        <span class="soft">nobody</span>
                      ) : (
                        <span class="chips">
                          {row.leases.slice(0, 3).map((lease) => (
                            <span class="chip" title={lease.end_ordinal ? `ordinals ${count(lease.start_ordinal)} to ${count(lease.end_ordinal)}` : `from ordinal ${count(lease.start_ordinal)} on`}>
                              <Name text={lease.member} />
                              {lease.end_ordinal > 0 && (
                                <b>
                                  {" "}
                                  {count(lease.start_ordinal)} to {count(lease.end_ordinal)}
                                </b>
                              )}
                            </span>
                          ))}
                          {row.leases_total > 3 && <span class="soft">and {row.leases_total - 3} more</span>}
                        </span>
                      ),
                  },
                  { head: "Why", cell: (row) => <span class="why">{row.why || "consumed"}</span> },
                ]}
              />
              <Pager offset={data.offset} size={LEASES} total={data.lanes_total} onMove={props.move} />
            </Card>
          ) : (
            <Card title="Partitions">
              <Table
                label="Partitions"
                rows={data.partitions}
                id={(row) => `${row.stream}.${row.partition}`}
                empty="Nothing is committed or assigned."
                columns={[
                  { head: "Stream", cell: (row) => <a href={`#/streams/${encodeURIComponent(row.stream)}`}><Name text={row.stream} /></a> },
                  { head: "Partition", number: true, cell: (row) => row.partition },
                  { head: "Committed", number: true, cell: (row) => (row.committed === null ? "nothing" : count(row.committed)) },
                  { head: "Durable to", number: true, cell: (row) => known(row.head_ordinal) },
                  { head: "Lag", number: true, cell: (row) => <Lag lag={row.lag} /> },
                  { head: "Assigned to", cell: (row) => (row.member ? <code><Name text={row.member} /></code> : <span class="soft">nobody</span>) },
                  { head: "Why", cell: (row) => <span class="why">{row.why || "consumed"}</span> },
                ]}
              />
              <Pager offset={data.offset} size={LEASES} total={data.partitions_total} onMove={props.move} />
            </Card>
          )}
        </>
      )}
    </>
  );
}

export function BrokerScreen(props: { path: string; id: string }) {
  const { data, refusal } = useFeed().of<BrokerDetail>(props.path);
  const background = data?.background;
  return (
    <>
      <nav class="crumbs" aria-label="Where you are">
        <a href="#/brokers">Brokers</a> <span aria-hidden="true">/</span> <span aria-current="page">broker {props.id}</span>
      </nav>
      {(!data || refusal) && <Waiting refusal={refusal} />}
      {data && (
        <>
          <section class={`health ${brokerState(data).state}`} aria-label="State of the broker">
            <Mark state={brokerState(data).state} label={brokerState(data).text} />
            <div>
              <p class="sentence" role="status">
                Broker {data.broker_id} {data.not_ready ? `is not ready: ${data.not_ready}` : brokerState(data).text}
                {data.controller ? " and is the controller" : ""}.
              </p>
              {data.silent && <p class="advice">{data.silent}</p>}
            </div>
          </section>
          <dl class="tiles">
            <Tile label="Streamlets" value={count(data.streamlets)} detail={data.share > 0 ? `its share is ${data.share}` : "owned"} />
            <Tile label="Records in" value={rate(data.records_in)} detail={`${byteRate(data.bytes_in)} in, ${byteRate(data.bytes_out)} out`} />
            <Tile
              label="Disk free"
              value={known(data.disk_free_bytes, bytes)}
              detail={data.disk_total_bytes !== null && `of ${bytes(data.disk_total_bytes)}`}
            />
            <Tile
              label="Memory for segments"
              value={known(data.pool_used_bytes, bytes)}
              detail={data.pool_bytes !== null && `of ${bytes(data.pool_bytes)}`}
            />
            <Tile
              label="Connections"
              value={known(data.connections)}
              detail={data.cpu_share !== null && `${(data.cpu_share * 100).toFixed(1)} % of a core`}
            />
          </dl>
          <BrokerActs data={data} />
          {data.troubles.length > 0 && (
            <Card title="Not served">
              <ul class="problems">
                {data.troubles.map((one) => (
                  <li>
                    <Mark state="trouble" label="trouble" />
                    <span>
                      <b>
                        {one.stream} streamlet {one.streamlet}
                        {one.lane !== null && ` lane ${one.lane}`}
                      </b>
                      : {one.reason}
                      {one.lasted_ms !== null && `, for ${duration(one.lasted_ms / 1000)}`}
                    </span>
                  </li>
                ))}
              </ul>
            </Card>
          )}
          {data.data_dir !== null && (
            <Card title="Replicas at the other brokers">
              <Table
                label="Replicas at the other brokers"
                rows={data.peers}
                id={(row) => String(row.broker_id)}
                empty="It works alone: there is no other broker."
                columns={[
                  { head: "To", cell: (row) => <a href={`#/brokers/${row.broker_id}`}>broker {row.broker_id}</a> },
                  {
                    head: "State",
                    cell: (row) => (
                      <span class="state">
                        <Mark state={row.unreachable || row.down_ms !== null ? "trouble" : "ok"} />
                        {row.unreachable ?? (row.down_ms !== null ? `gets no replicas for ${duration(row.down_ms / 1000)}` : "reached")}
                      </span>
                    ),
                  },
                  { head: "Shipped", number: true, cell: (row) => bytes(row.shipped_bytes) },
                  { head: "Not there yet", number: true, cell: (row) => bytes(row.lag_bytes) },
                  { head: "Open groups", number: true, cell: (row) => count(row.open_groups) },
                  { head: "Lost replicas", number: true, cell: (row) => count(row.lost_copies) },
                  { head: "Room there", number: true, cell: (row) => bytes(row.free_bytes) },
                ]}
              />
            </Card>
          )}
          <div class="columns">
            {background && (
              <Card title="Background work">
                <dl class="facts">
                  <div>
                    <dt>replicas to place</dt>
                    <dd>
                      {count(background.to_place)}, {bytes(background.to_place_bytes)}
                    </dd>
                  </div>
                  <div>
                    <dt>groups with too few replicas</dt>
                    <dd>{count(background.wanting)}</dd>
                  </div>
                  <div>
                    <dt>replicas built</dt>
                    <dd>
                      {count(background.built)}, {bytes(background.built_bytes)}; {count(background.failed)} failed
                    </dd>
                  </div>
                  <div>
                    <dt>streamlets compared</dt>
                    <dd>
                      <Bar part={background.scrub_done} whole={background.scrub_streamlets} label={`${background.scrub_done} of ${background.scrub_streamlets} streamlets`} />{" "}
                      {count(background.scrub_done)} of {count(background.scrub_streamlets)}
                    </dd>
                  </div>
                  <div>
                    <dt>replicas found damaged</dt>
                    <dd>
                      {count(background.harmed)}, {count(background.mended)} replaced
                    </dd>
                  </div>
                </dl>
              </Card>
            )}
            <Card title="About it">
              <dl class="facts">
                <div>
                  <dt>address</dt>
                  <dd>{data.address || "not told"}</dd>
                </div>
                <div>
                  <dt>Kafka clients</dt>
                  <dd>{data.kafka ?? "not served"}</dd>
                </div>
                <div>
                  <dt>machine</dt>
                  <dd>{[data.host, data.rack].filter(Boolean).join(", rack ") || "not told"}</dd>
                </div>
                <div>
                  <dt>version</dt>
                  <dd>{[data.version, data.io_engine].filter(Boolean).join(", ") || "not told"}</dd>
                </div>
                <div>
                  <dt>data directory</dt>
                  <dd>{data.data_dir ?? "not told"}</dd>
                </div>
                <div>
                  <dt>replicas of others</dt>
                  <dd>{data.replica_store ? `${count(data.replica_store.copies_open)} open, ${count(data.replica_store.copies_flushed)} on disk` : "none"}</dd>
                </div>
                <div>
                  <dt>last start took</dt>
                  <dd>{data.recovery_ms === null ? "not told" : duration(data.recovery_ms / 1000)}</dd>
                </div>
              </dl>
              {data.changed_settings.length > 0 && (
                <p class="soft">Changed while it runs: {data.changed_settings.map((one) => `${one.name} = ${one.value}`).join("; ")}</p>
              )}
            </Card>
          </div>
        </>
      )}
    </>
  );
}
