// What the broker tells as it happens. One connection for all that a screen watches.

import { useEffect, useState } from "preact/hooks";

/** Without news for so long the broker counts as away. It tells something every second. */
const SILENCE_MS = 2500;
const AGAIN_MS = 1000;

export interface Watched<T> {
  data: T | null;
  /** Why the broker refuses to answer. */
  refusal: string | null;
}

export interface Link {
  /** Since when the broker has not answered; null: it does. */
  lostSince: number | null;
  heard: boolean;
}

interface State {
  paths: string[];
  data: unknown[];
  refusals: (string | null)[];
  link: Link;
}

type Listener = () => void;

class Feed {
  private state: State = { paths: [], data: [], refusals: [], link: { lostSince: null, heard: false } };
  private source: EventSource | null = null;
  private last = Date.now();
  private again: number | undefined;
  private listeners = new Set<Listener>();
  private denied = new Set<string>();

  constructor() {
    window.setInterval(() => {
      if (this.source && !document.hidden && Date.now() - this.last > SILENCE_MS) this.lose();
    }, 500);
    document.addEventListener("visibilitychange", () => {
      // A page that nobody sees costs nothing.
      if (document.hidden) this.close();
      else this.open();
    });
  }

  watch(paths: string[]) {
    if (paths.join("\n") === this.state.paths.join("\n")) return;
    const known = new Map(this.state.paths.map((path, index) => [path, this.state.data[index]]));
    this.state = {
      paths,
      data: paths.map((path) => known.get(path) ?? null),
      refusals: paths.map(() => null),
      link: this.state.link,
    };
    this.open();
    this.tell();
  }

  private open() {
    this.close();
    if (this.state.paths.length === 0 || document.hidden) return;
    const query = this.state.paths.map((path) => `path=${encodeURIComponent(path)}`).join("&");
    const source = new EventSource(`api/v1/live?${query}`);
    this.source = source;
    this.last = Date.now();
    const paths = this.state.paths;
    paths.forEach((_, index) => {
      source.addEventListener(`answer${index}`, (event) => this.hear(index, JSON.parse(event.data), null));
      source.addEventListener(`refusal${index}`, (event) => {
        const refusal = JSON.parse(event.data) as { error: string; message: string };
        if (refusal.error === "NOT_AUTHORIZED") this.denied.add(paths[index]);
        this.hear(index, this.state.data[index], refusal.message);
      });
    });
    source.addEventListener("same", () => this.answers());
    source.onerror = () => this.lose();
  }

  private close() {
    window.clearTimeout(this.again);
    this.source?.close();
    this.source = null;
  }

  private hear(index: number, data: unknown, refusal: string | null) {
    this.state.data[index] = data;
    this.state.refusals[index] = refusal;
    if (refusal === null) this.denied.delete(this.state.paths[index]);
    this.answers();
  }

  private answers() {
    this.last = Date.now();
    this.state.link = { lostSince: null, heard: true };
    this.tell();
  }

  private lose() {
    this.close();
    const { link } = this.state;
    this.state.link = { ...link, lostSince: link.lostSince ?? Date.now() };
    this.again = window.setTimeout(() => this.open(), AGAIN_MS);
    this.tell();
  }

  private tell() {
    this.state = { ...this.state, data: [...this.state.data], refusals: [...this.state.refusals] };
    this.listeners.forEach((listener) => listener());
  }

  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  of<T>(path: string): Watched<T> {
    const index = this.state.paths.indexOf(path);
    if (index < 0) return { data: null, refusal: null };
    return { data: this.state.data[index] as T | null, refusal: this.state.refusals[index] };
  }

  /** Whether the user may not see this: it is asked for where the screen is about it, and not along with others. */
  isDenied(path: string): boolean {
    return this.denied.has(path);
  }

  link(): Link {
    return this.state.link;
  }
}

export const feed = new Feed();

export function useFeed(): typeof feed {
  const [, again] = useState(0);
  useEffect(() => feed.subscribe(() => again((n) => n + 1)) as () => void, []);
  return feed;
}

async function read<T>(response: Response): Promise<T> {
  const body = await response.json();
  if (!response.ok) throw new Error(body.message ?? response.statusText);
  return body as T;
}

/** Asks once. */
export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  return read<T>(await fetch(path.replace(/^\//, ""), { signal }));
}

/** Has something changed. */
export async function change<T>(path: string, body: unknown): Promise<T> {
  if (path.split("/").some((part) => part === "." || part === "..")) {
    throw new Error("A browser takes this name for a folder's. Use the command line, kera group reset.");
  }
  const response = await fetch(path.replace(/^\//, ""), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => {
    throw new Error("The broker did not answer. It may have been done all the same: look before you try again.");
  });
  return read<T>(response);
}
