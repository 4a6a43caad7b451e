// What screens are made of.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Severity } from "./types";
import { count, lagText, visible } from "./format";

/** A state, told by its form as well as by its colour. */
export function Mark({ state, label }: { state: Severity; label?: string }) {
  const path = {
    ok: "M4.5 8.2l2.4 2.4 4.6-5",
    attention: "M8 4v5M8 11.4v.4",
    trouble: "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6",
  }[state];
  return (
    <svg class={`mark ${state}`} viewBox="0 0 16 16" role={label ? "img" : undefined} aria-label={label} aria-hidden={label ? undefined : "true"}>
      <circle cx="8" cy="8" r="7.5" />
      <path d={path} />
    </svg>
  );
}

/** A name that others chose. It takes no more room than its place has; all of it shows up under the mouse. */
export function Name({ text }: { text: string }) {
  const shown = visible(text);
  return (
    <bdi class="name" title={shown}>
      {shown}
    </bdi>
  );
}

export function Card(props: { title: string; aside?: ComponentChildren; children: ComponentChildren; class?: string }) {
  const id = `card-${props.title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </div>
      {props.children}
    </section>
  );
}

export function Tile(props: { label: string; value: string; detail?: ComponentChildren; state?: Severity }) {
  return (
    <div class={`tile ${props.state ?? ""}`}>
      <dt>{props.label}</dt>
      <dd>
        <span class="figure">{props.value}</span>
        {props.detail && <span class="detail">{props.detail}</span>}
      </dd>
    </div>
  );
}

export interface Column<T> {
  head: string;
  /** Numbers stand right. */
  number?: boolean;
  cell: (row: T) => ComponentChildren;
  /** Sorts the list by this when its head is chosen. */
  sort?: string;
}

export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  empty: ComponentChildren;
  sorted?: string;
  onSort?: (by: string) => void;
}) {
  if (props.rows.length === 0) return <p class="empty">{props.empty}</p>;
  return (
    <div class="table" role="region" aria-label={`${props.label}, as a table`} tabIndex={0}>
      <table role="table">
        <caption class="unseen">{props.label}</caption>
        <thead role="rowgroup">
          <tr role="row">
            {props.columns.map((column) => {
              const chosen = column.sort !== undefined && column.sort === props.sorted;
              return (
                <th
                  role="columnheader"
                  scope="col"
                  class={column.number ? "number" : ""}
                  aria-sort={chosen ? (column.sort === "name" ? "ascending" : "descending") : undefined}
                >
                  {column.sort && props.onSort ? (
                    <button type="button" class="sort" onClick={() => props.onSort?.(column.sort!)}>
                      {column.head}
                      <span aria-hidden="true">{chosen ? (column.sort === "name" ? " ↑" : " ↓") : ""}</span>
                    </button>
                  ) : (
                    column.head
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {props.rows.map((row) => (
            <tr role="row" key={props.id(row)}>
              {props.columns.map((column, index) =>
                index === 0 ? (
                  <th role="rowheader" scope="row">{column.cell(row)}</th>
                ) : (
                  <td role="cell" class={column.number ? "number" : ""} data-head={column.head}>
                    {column.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Pager(props: { offset: number; size: number; total: number; onMove: (offset: number) => void }) {
  if (props.total <= props.size && props.offset === 0) return null;
  const last = Math.min(props.offset + props.size, props.total);
  return (
    <nav class="pager" aria-label="Pages of the list">
      <button type="button" disabled={props.offset === 0} onClick={() => props.onMove(Math.max(0, props.offset - props.size))}>
        Before
      </button>
      <span>
        {count(Math.min(props.offset + 1, props.total))} to {count(last)} of {count(props.total)}
      </span>
      <button type="button" disabled={last >= props.total} onClick={() => props.onMove(props.offset + props.size)}>
        Next
      </button>
    </nav>
  );
}

/** A part of a whole, with its number beside it. */
export function Bar({ part, whole, label }: { part: number; whole: number; label: string }) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return (
    <span class="bar" role="img" aria-label={label} title={label}>
      <span style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </span>
  );
}

export function Lag({ lag, unknown, why, behind }: { lag: number | null; unknown?: number; why?: string; behind?: boolean }) {
  return (
    <span class={behind ? "lag behind" : "lag"} title={why}>
      {lagText(lag ?? 0, lag === null ? 1 : (unknown ?? 0))}
    </span>
  );
}

/** A place holder while nothing is known yet, or the reason why nothing will be. */
export function Waiting({ refusal }: { refusal: string | null }) {
  return refusal ? (
    <p class="refusal" role="alert">
      <Mark state="trouble" /> {refusal}
    </p>
  ) : (
    <p class="empty">Asking the broker …</p>
  );
}

export interface Series {
  label: string;
  color: string;
}

/** Between two lines across: values are whole. */
const STEPS = Array.from({ length: 16 }, (_, zeros) => [1, 2, 5].map((step) => step * 10 ** zeros)).flat();

/** The times that are shown. uPlot's own idea of a single point's is a day. */
function span(plot: uPlot): [number, number] {
  const times = plot.data[0] ?? [];
  const last = times[times.length - 1] ?? Date.now() / 1000;
  return [Math.min(times[0] ?? last, last - 30), last];
}

/** Lines over the last minutes. */
export function Chart(props: { label: string; series: Series[]; data: number[][]; show: (value: number) => string; height?: number }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const height = props.height ?? 160;
  const style = () => getComputedStyle(document.documentElement);
  const color = (name: string) => style().getPropertyValue(name).trim();
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const make = () => {
      plot.current?.destroy();
      const axis = {
        stroke: () => color("--soft"),
        grid: { stroke: color("--line"), width: 1 },
        ticks: { show: false },
        font: "11px system-ui, sans-serif",
      };
      plot.current = new uPlot(
        {
          width: element.clientWidth || 300,
          height,
          cursor: { y: false, points: { size: 6 } },
          legend: { show: false },
          // At least half a minute: the first looks lie within the same second.
          scales: { x: { time: true, range: span }, y: { range: (_, __, most) => [0, Math.max(most * 1.15, 1)] } },
          axes: [
            { ...axis, size: 28, space: 90, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")) },
            { ...axis, size: 68, space: 26, incrs: STEPS, values: (_, ticks) => ticks.map(props.show) },
          ],
          series: [
            {},
            ...props.series.map((one) => ({
              label: one.label,
              stroke: color(one.color),
              width: 2,
              fill: `${color(one.color)}1c`,
              points: { show: false },
            })),
          ],
        },
        props.data as uPlot.AlignedData,
        element,
      );
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    const themed = new MutationObserver(make);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => {
      resized.disconnect();
      themed.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(props.data as uPlot.AlignedData), [props.data]);
  const now = props.series.map((one, index) => {
    const values = props.data[index + 1];
    const last = values[values.length - 1];
    return { ...one, value: last === undefined || last === null ? "…" : props.show(last) };
  });
  const summary = `${props.label}: ${now.map((one) => `${one.label} ${one.value}`).join(", ")}`;
  return (
    <figure class="chart">
      <div class="plot" role="img" aria-label={summary} ref={place} style={{ minHeight: `${height}px` }} />
      <figcaption>
        {now.map((one) => (
          <span class="key">
            <span class="swatch" style={{ background: `var(${one.color})` }} aria-hidden="true" />
            {one.label} <b>{one.value}</b>
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
