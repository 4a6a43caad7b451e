// Records: from a time, an ordinal or an end on, or of one key.

import { useEffect, useRef, useState } from "preact/hooks";
import { Card, Mark } from "./parts";
import { bytes, count, dateTime, isoTime, plural } from "./format";
import { ask } from "./live";
import type { RecordsView, RecordView, Shown } from "./types";

function data(shown: Shown): string {
  if (shown.encoding === "null") return "null";
  if (shown.encoding === "hidden") return "hidden by a rule";
  return shown.data + (shown.truncated ? " …" : "");
}

function pretty(shown: Shown): string {
  if (shown.encoding !== "json" || shown.truncated) return data(shown);
  try {
    // Numbers of more digits than a double has would change: such values stay as they are.
    if (/\d{16,}/.test(shown.data)) return shown.data;
    return JSON.stringify(JSON.parse(shown.data), null, 2);
  } catch {
    return shown.data;
  }
}

function About({ shown }: { shown: Shown }) {
  const parts = [shown.encoding, bytes(shown.bytes)];
  if (shown.truncated) parts.push("only its beginning is shown");
  if (shown.masked) parts.push("parts are hidden by api.mask");
  return <span class="soft">{parts.join(", ")}</span>;
}

function OneRecord({ record }: { record: RecordView }) {
  return (
    <li class="record">
      <details>
        <summary>
          <span class="at">
            {record.streamlet}.{record.lane} @ {count(record.ordinal)}
          </span>
          <time dateTime={isoTime(record.timestamp_ms)} title={isoTime(record.timestamp_ms)}>
            {dateTime(record.timestamp_ms)}
          </time>
          <span class="record-key">{record.key.encoding === "null" ? <span class="soft">no key</span> : data(record.key)}</span>
          <span class={`record-value ${record.value.encoding}`}>{data(record.value)}</span>
        </summary>
        <dl class="record-parts">
          <dt>Key</dt>
          <dd>
            <About shown={record.key} />
            <pre tabIndex={0} aria-label="Key">{pretty(record.key)}</pre>
          </dd>
          <dt>Value</dt>
          <dd>
            <About shown={record.value} />
            <pre tabIndex={0} aria-label="Value">{pretty(record.value)}</pre>
          </dd>
          {record.headers.length > 0 && (
            <>
              <dt>Headers</dt>
              <dd>
                <dl class="facts">
                  {record.headers.map((header) => (
                    <div>
                      <dt>{header.name}</dt>
                      <dd>{data(header.value)}</dd>
                    </div>
                  ))}
                </dl>
              </dd>
            </>
          )}
        </dl>
      </details>
    </li>
  );
}

export function RecordsTab({ stream }: { stream: string }) {
  const [from, setFrom] = useState("latest");
  const [at, setAt] = useState("");
  const [lane, setLane] = useState("");
  const [key, setKey] = useState("");
  const [view, setView] = useState<RecordsView | null>(null);
  const [refusal, setRefusal] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const asked = useRef<AbortController | null>(null);

  const look = (next?: string) => {
    asked.current?.abort();
    const stop = new AbortController();
    asked.current = stop;
    const query = new URLSearchParams({ from: next ? "next" : from, limit: "50" });
    if (next) query.set("at", next);
    else if (from === "time") query.set("at", String(Date.parse(at)));
    else if (from === "ordinal") query.set("at", at);
    const place = lane.match(/^\s*(\d+)(?:\.(\d+))?\s*$/);
    if (place) query.set("streamlet", place[1]);
    if (place?.[2]) query.set("lane", place[2]);
    if (key) query.set("key", key);
    setBusy(true);
    ask<RecordsView>(`/api/v1/streams/${encodeURIComponent(stream)}/records?${query}`, stop.signal)
      .then((found) => {
        setView(found);
        setRefusal(null);
      })
      .catch((error) => {
        if (!stop.signal.aborted) setRefusal(String(error.message ?? error));
      })
      .finally(() => {
        if (!stop.signal.aborted) setBusy(false);
      });
  };
  useEffect(() => {
    look();
    return () => asked.current?.abort();
  }, [stream]);

  return (
    <Card title="Records">
      <form
        class="seek"
        onSubmit={(event) => {
          event.preventDefault();
          look();
        }}
      >
        <label>
          From
          <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
            <option value="latest">the newest</option>
            <option value="earliest">the oldest</option>
            <option value="time">a time</option>
            <option value="ordinal">an ordinal</option>
          </select>
        </label>
        {from === "time" && (
          <label>
            Time
            <input type="datetime-local" step="1" required value={at} onInput={(event) => setAt(event.currentTarget.value)} />
          </label>
        )}
        {from === "ordinal" && (
          <label>
            Ordinal
            <input type="number" min="0" required value={at} onInput={(event) => setAt(event.currentTarget.value)} />
          </label>
        )}
        <label>
          Lane
          <input placeholder="all, or 0.1" pattern="\s*\d+(\.\d+)?\s*" title="a streamlet, or a streamlet, a point and a lane" value={lane} onInput={(event) => setLane(event.currentTarget.value)} />
        </label>
        <label>
          Key
          <input placeholder="any" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        <button type="submit" class="main">
          Look
        </button>
      </form>
      {refusal && (
        <p class="refusal" role="alert">
          <Mark state="trouble" /> {refusal}
        </p>
      )}
      <p class="soft" role="status">
        {busy
          ? "Looking …"
          : view &&
            `${plural(view.records.length, "record")} of ${plural(view.lanes, "lane")}, ${bytes(view.looked_at_bytes)} looked through` +
              (view.lanes_left_out > 0 ? `; ${plural(view.lanes_left_out, "lane")} left out, name one` : "") +
              (view.problems.length > 0 ? `; ${view.problems.join("; ")}` : "")}
      </p>
      {view && view.records.length === 0 && !busy && (
        <p class="empty">{view.next ? "Nothing so far. Look on to go through more." : "No record there."}</p>
      )}
      {view && view.records.length > 0 && (
        <ol class="records" aria-label="Records">
          {view.records.map((record) => (
            <OneRecord key={`${record.streamlet}.${record.lane}.${record.ordinal}`} record={record} />
          ))}
        </ol>
      )}
      {view?.next && (
        <button type="button" onClick={() => look(view.next)} disabled={busy}>
          Look on
        </button>
      )}
    </Card>
  );
}
