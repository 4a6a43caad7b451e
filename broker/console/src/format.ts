// Numbers, sizes and times, alike on every screen.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return whole.format(value);
}

/** A name that others chose: what is not seen in it, or turns the text behind it around, is shown to be there. */
export function visible(name: string): string {
  return name.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** 12,345 as 12.3 k: for what changes every second. */
export function short(value: number): string {
  const steps: [number, string][] = [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  for (const [step, unit] of steps) {
    if (value >= (step === 1e3 ? 10 * step : step)) {
      const scaled = value / step;
      return `${scaled >= 100 ? scaled.toFixed(0) : scaled.toFixed(1)} ${unit}`;
    }
  }
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : value.toFixed(1);
}

/** A lag; with a plus where that of some lanes is not known. */
export function lagText(lag: number, unknownLanes: number): string {
  if (unknownLanes === 0) return short(lag);
  return lag === 0 ? "not known" : `${short(lag)}+`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${index > 0 && value < 10 ? value.toFixed(1) : whole.format(value)} ${units[index]}`;
}

export function rate(value: number | null): string {
  return value === null ? "…" : `${short(value)}/s`;
}

export function byteRate(value: number | null): string {
  return value === null ? "…" : `${bytes(value)}/s`;
}

export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** UTC, as programs read it; undefined for what is no time, such as one in nanoseconds. */
export function isoTime(ms: number): string | undefined {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

/** In the time zone of the browser, as the fields have it in which a time is typed. */
export function dateTime(ms: number): string {
  const zone = new Date(ms).getTimezoneOffset();
  const local = isoTime(ms - zone * 60_000);
  return local ? local.replace("T", " ").replace("Z", "") : `timestamp ${ms}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
