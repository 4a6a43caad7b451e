// The acts: streams, groups, brokers. They stand where api.acts lets people change something.

import { useState } from "preact/hooks";
import { Act, useActs } from "./act";
import { bytes, count, plural } from "./format";
import type { BrokerDetail, Changed, GroupDetail, StreamDetail, Trimmed } from "./types";

const HOUR = 3_600_000;

function stream(name: string, act: string): string {
  return `/api/v1/streams/${encodeURIComponent(name)}/${act}`;
}

/** A field as text; undefined: nothing was filled in. */
function text(form: FormData, name: string): string | undefined {
  const value = form.get(name);
  return typeof value === "string" && value.trim() !== "" ? value.trim() : undefined;
}

function number(form: FormData, name: string): number | undefined {
  const value = text(form, name);
  return value === undefined ? undefined : Number(value);
}

function hours(form: FormData, name: string): number | undefined {
  const value = number(form, name);
  return value === undefined ? undefined : Math.round(value * HOUR);
}

/** To where, of all lanes or one, as the API takes it. */
function place(form: FormData): Record<string, unknown> {
  const to = text(form, "to");
  const lane = text(form, "lane")?.split(".").map(Number);
  const at = to === "time" ? String(Date.parse(text(form, "time") ?? "")) : to === "ordinal" ? text(form, "ordinal") : undefined;
  return { to, at, streamlet: lane?.[0], lane: lane?.[1], stream: text(form, "stream"), partition: number(form, "partition") };
}

function Places({ choices, kafka }: { choices: [string, string][]; kafka?: boolean }) {
  // Nothing is chosen at first: whoever only confirms deletes nothing and moves no position.
  const [to, setTo] = useState("");
  return (
    <>
      <label>
        To
        <select name="to" value={to} required onChange={(event) => setTo(event.currentTarget.value)}>
          <option value="" disabled>
            choose
          </option>
          {choices.map(([value, label]) => (
            <option value={value}>{label}</option>
          ))}
        </select>
      </label>
      {to === "time" && (
        <label>
          Time
          <input name="time" type="datetime-local" step="1" required />
        </label>
      )}
      {to === "ordinal" && (
        <label>
          Ordinal
          <input name="ordinal" inputMode="numeric" pattern="\d+" title="a number" required />
        </label>
      )}
      {kafka ? (
        <>
          <label>
            Stream
            <input name="stream" placeholder="all that it reads" />
          </label>
          <label>
            Partition
            <input name="partition" type="number" min="0" placeholder="all" />
          </label>
        </>
      ) : (
        <label>
          Lane
          <input name="lane" placeholder="all, or 0.1" pattern="\d+\.\d+" title="a streamlet, a point and a lane" required={to === "ordinal"} />
        </label>
      )}
    </>
  );
}

export function CreateStream() {
  if (!useActs()) return null;
  return (
    <Act
      label="Create a stream"
      title="Create a stream"
      what={<p>Its streamlets and replicas are fixed for ever. Lanes can grow later. What is left empty is the usual value.</p>}
      confirm="Create"
      path="/api/v1/streams"
      body={(form) => ({
        name: text(form, "name"),
        settings: {
          streamlets: number(form, "streamlets"),
          lanes: number(form, "lanes"),
          replicas: number(form, "replicas"),
          retention_ms: hours(form, "hours"),
        },
      })}
      done={(_, form) => `Stream ${text(form, "name")} was created.`}
    >
      <label>
        Name
        <input name="name" required maxLength={249} pattern="[A-Za-z0-9._\-]+" title="letters, digits, points, dashes and underlines" autocomplete="off" />
      </label>
      <label>
        Streamlets
        <input name="streamlets" type="number" min="1" max="65536" placeholder="1" />
      </label>
      <label>
        Lanes of each
        <input name="lanes" type="number" min="1" max="65536" placeholder="1" />
      </label>
      <label>
        Replicas
        <input name="replicas" type="number" min="1" max="16" placeholder="the usual" />
      </label>
      <label>
        Keep records for, in hours
        <input name="hours" type="number" min="0" step="any" placeholder="the usual" />
      </label>
    </Act>
  );
}

export function StreamActs({ data }: { data: StreamDetail }) {
  if (!useActs()) return null;
  const { name } = data;
  const [lanes, keepMs, keepBytes] = [data.settings?.lanes, data.settings?.retention_ms, data.settings?.retention_bytes].map(Number);
  const stored = `${plural(data.records, "record")}, ${bytes(data.bytes)}`;
  const changed = <T,>(value: T | undefined, present: T) => (value === present ? undefined : value);
  return (
    <p class="acts">
      {data.settings && (
        <Act
          label="Change settings"
          title={`Change settings of stream ${name}`}
          what={<p>Records beyond what it is to keep are deleted for good. Lanes grow, and never shrink.</p>}
          confirm="Change"
          path={stream(name, "alter")}
          body={(form) => ({
            settings: {
              lanes: changed(number(form, "lanes"), lanes),
              ack: changed(text(form, "ack"), data.ack),
              retention_ms: changed(hours(form, "hours"), keepMs),
              retention_bytes: changed(number(form, "bytes"), keepBytes),
            },
          })}
          done={() => `Settings of stream ${name} were changed.`}
        >
          <label>
            Lanes of each streamlet
            <input name="lanes" type="number" min={lanes} max="65536" defaultValue={String(lanes)} required />
          </label>
          <label>
            Acknowledged when
            <select name="ack">
              {["memory", "written", "synced"].map((ack) => (
                <option value={ack} selected={ack === data.ack}>
                  {ack}
                </option>
              ))}
            </select>
          </label>
          <label>
            Keep records for, in hours (0: for ever)
            <input name="hours" type="number" min="0" step="any" defaultValue={String(keepMs / HOUR)} required />
          </label>
          <label>
            Keep at most, in bytes (0: no limit)
            <input name="bytes" type="number" min="0" defaultValue={String(keepBytes)} required />
          </label>
        </Act>
      )}
      <Act<Trimmed>
        label="Trim"
        title={`Delete old records of stream ${name}`}
        what={<p>It has {stored}. What is deleted cannot be brought back.</p>}
        confirm={`Delete records of ${name}`}
        loses
        path={stream(name, "trim")}
        body={place}
        done={(trimmed) => `Stream ${name} was trimmed in ${plural(trimmed.lanes_total, "lane")}; ${bytes(trimmed.freed_bytes)} are free.`}
      >
        <Places
          choices={[
            ["time", "older than a time"],
            ["ordinal", "below an ordinal of a lane"],
            ["everything", "all there are"],
          ]}
        />
      </Act>
      <Act
        label="Delete"
        title={`Delete stream ${name}?`}
        what={
          <p>
            All its records are lost for good: {stored}, in {plural(data.partitions, "lane")}.
            {data.groups_total > 0 && ` ${plural(data.groups_total, "consumer group")} ${data.groups_total === 1 ? "reads" : "read"} it.`}
          </p>
        }
        confirm={`Delete ${name}`}
        loses
        path={stream(name, "delete")}
        body={() => ({})}
        done={() => `Stream ${name} was deleted.`}
        then={() => {
          location.hash = "#/streams";
        }}
      />
    </p>
  );
}

export function GroupActs({ data }: { data: GroupDetail }) {
  if (!useActs()) return null;
  return (
    <p class="acts">
      <Act<{ lanes_total: number; partitions_total: number }>
        label="Set its positions"
        title={`Set the positions of group ${data.group}`}
        what={
          <p>
            Its positions are lost: it is {plural(data.lag, "record")} behind now. Records are consumed once more, or never, as the new positions say. Its members must have left
            {data.members > 0 && `; it has ${count(data.members)}`}.
          </p>
        }
        confirm={`Set positions of ${data.group}`}
        loses
        path={`/api/v1/groups/${encodeURIComponent(data.group)}/reset`}
        body={place}
        done={(reset) =>
          reset.lanes_total + reset.partitions_total === 0
            ? `Group ${data.group} has no positions to set.`
            : `Positions of group ${data.group} were set in ${plural(reset.lanes_total + reset.partitions_total, "lane")}.`
        }
      >
        <Places
          kafka={data.kind === "kafka"}
          choices={[
            ["latest", "the newest records"],
            ["earliest", "the oldest records"],
            ["time", "a time"],
            ["ordinal", "an ordinal"],
          ]}
        />
      </Act>
    </p>
  );
}

export function BrokerActs({ data }: { data: BrokerDetail }) {
  const overview = useActs();
  if (!overview?.cluster || data.role !== "broker") return null;
  const draining = data.state === "DRAINING" || data.state === "DRAINED";
  const broker = `broker ${data.broker_id}`;
  return (
    <p class="acts">
      <Act<Changed>
        label={draining ? "End the drain" : "Drain"}
        title={draining ? `End the drain of ${broker}?` : `Drain ${broker}?`}
        what={
          draining ? (
            <p>It gets streamlets and replicas again.</p>
          ) : (
            <p>
              It hands its {plural(data.streamlets, "streamlet")} over to other brokers and gets no new ones. It serves what it has meanwhile, and no record is lost.
            </p>
          )
        }
        confirm={draining ? "End the drain" : `Drain ${broker}`}
        path={`/api/v1/brokers/${data.broker_id}/drain`}
        body={() => ({ draining: !draining })}
        done={({ changed }) => {
          if (!changed) return `Nothing was changed: ${broker} ${draining ? "does not drain" : "drains already"}.`;
          return draining ? `The drain of ${broker} has ended.` : `The drain of ${broker} has begun.`;
        }}
      />
    </p>
  );
}
