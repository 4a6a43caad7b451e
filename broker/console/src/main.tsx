import { type ComponentChildren, render } from "preact";
import { useEffect, useErrorBoundary, useMemo, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { Told } from "./act";
import { BrokerScreen, GroupScreen, LEASES } from "./details";
import { duration, visible } from "./format";
import { BrokersScreen, GroupsScreen, listPath, SettingsScreen, StreamsScreen, type ListState } from "./lists";
import { feed, useFeed } from "./live";
import { OverviewScreen } from "./overview";
import { Mark } from "./parts";
import { LANES, StreamScreen, TABS, type Tab } from "./stream";
import type { Overview } from "./types";

const OVERVIEW = "/api/v1/overview";

const SCREENS: [string, string, string][] = [
  ["", "Overview", "M3 11l5-5 3 3 6-6M13 3h4v4M3 17h14"],
  ["streams", "Streams", "M3 5h14M3 10h14M3 15h9"],
  ["groups", "Groups", "M7 9a3 3 0 100-6 3 3 0 000 6zM2 17c0-3 2-5 5-5s5 2 5 5M13 9a2.5 2.5 0 100-5M14 12c2.5 0 4 2 4 5"],
  ["brokers", "Brokers", "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.1M6 13.5h.1"],
  ["settings", "Settings", "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4"],
];

/** A part of an address; as it stands where somebody typed a percent sign that begins nothing. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}

type Theme = "auto" | "light" | "dark";

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => (localStorage.getItem("theme") as Theme | null) ?? "auto");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  const next: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
  return [theme, () => setTheme(next[theme])];
}

function Lost() {
  const { lostSince, heard } = useFeed().link();
  const [, tick] = useState(0);
  useEffect(() => {
    if (lostSince === null) return;
    const timer = window.setInterval(() => tick((n) => n + 1), 1000);
    return () => window.clearInterval(timer);
  }, [lostSince]);
  if (lostSince === null) return null;
  const since = Math.max(1, Math.round((Date.now() - lostSince) / 1000));
  return (
    <div class="lost" role="alert">
      <Mark state="trouble" />
      <span>
        This broker does not answer{heard ? `, for ${duration(since)} now; what you see is from before` : ""}. The page asks again every second. In a
        cluster, open the address of another broker meanwhile.
      </span>
    </div>
  );
}

function App() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const [lists, setLists] = useState<Record<string, ListState>>({});
  const [offsets, setOffsets] = useState<Record<string, number>>({});
  const [screen, name, part] = [route[0] ?? "", route[1], route[2]];
  const place = `${screen}/${name ?? ""}`;
  const offset = offsets[place] ?? 0;
  const move = (to: number) => setOffsets({ ...offsets, [place]: to });
  const list = lists[screen] ?? { filter: "", sort: screen === "groups" ? "lag" : "name", offset: 0 };
  const change = (state: ListState) => setLists({ ...lists, [screen]: state });
  const path = useMemo(() => {
    const of = `/api/v1/${screen}`;
    if (name !== undefined && name !== "") {
      if (screen === "streams") return `${of}/${encodeURIComponent(name)}?limit=${LANES}&offset=${offset}`;
      if (screen === "groups") return `${of}/${encodeURIComponent(name)}?limit=${LEASES}&offset=${offset}`;
      if (screen === "brokers") return `${of}/${encodeURIComponent(name)}`;
    }
    if (screen === "streams" || screen === "groups") return listPath(screen, list);
    if (screen === "brokers") return `${of}?limit=200`;
    return null;
  }, [screen, name, offset, list.filter, list.sort, list.offset]);
  useEffect(() => {
    const health = screen === "" || !feed.isDenied(OVERVIEW) ? [OVERVIEW] : [];
    feed.watch(path ? [...health, path] : health);
  }, [screen, path]);
  const state = useFeed();
  const overview = state.of<Overview>(OVERVIEW).data;
  const title = SCREENS.find(([id]) => id === screen)?.[1] ?? "Not found";
  const isLost = state.link().lostSince !== null;
  useEffect(() => {
    document.title = name ? `${visible(name)} - Kera` : `${title} - Kera`;
    document.getElementById("main")?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [screen, name, part]);
  const health = overview?.health;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        To the content
      </a>
      <header class="top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M6 5v22M6 16h5c4 0 5-11 15-11M11 16c4 0 5 11 15 11M11 16h15" />
          </svg>
          Kera
        </a>
        <nav class="screens" aria-label="Screens">
          {SCREENS.map(([id, label, icon]) => (
            <a href={`#/${id}`} aria-current={id === screen ? "page" : undefined}>
              <svg viewBox="0 0 20 20" aria-hidden="true">
                <path d={icon} />
              </svg>
              {label}
            </a>
          ))}
        </nav>
        <div class="about">
          {health && screen !== "" && (
            <a class={`pill ${isLost ? "trouble" : health.state}`} href="#/" title={health.sentence}>
              <Mark state={isLost ? "trouble" : health.state} />
              {isLost ? "no answer" : { ok: "all is well", attention: "attention", trouble: "trouble" }[health.state]}
            </a>
          )}
          <button type="button" class="theme" onClick={nextTheme} aria-label={`Colours: ${theme}. Change`} title={`Colours: ${theme}`}>
            <svg viewBox="0 0 20 20" aria-hidden="true">
              <circle cx="10" cy="10" r="6.5" />
              <path d="M10 3.5a6.5 6.5 0 010 13z" class="full" />
            </svg>
          </button>
        </div>
      </header>
      <Lost />
      <main id="main" tabIndex={-1} class={isLost ? "stale" : ""}>
        <Told />
        <h1 class={name || screen === "" ? "unseen" : ""}>{name ? visible(name) : title}</h1>
        <Guard key={`${screen}/${name ?? ""}`}>
          {screen === "" && <OverviewScreen />}
          {screen === "streams" && !name && path && <StreamsScreen path={path} state={list} change={change} />}
          {screen === "streams" && name && path && (
            <StreamScreen path={path} name={name} tab={TABS.includes(part as Tab) ? (part as Tab) : "lanes"} move={move} />
          )}
          {screen === "groups" && !name && path && <GroupsScreen path={path} state={list} change={change} />}
          {screen === "groups" && name && path && <GroupScreen path={path} name={name} move={move} />}
          {screen === "brokers" && !name && path && <BrokersScreen path={path} />}
          {screen === "brokers" && name && path && <BrokerScreen path={path} id={name} />}
          {screen === "settings" && <SettingsScreen />}
          {title === "Not found" && <p class="empty">There is no such screen.</p>}
        </Guard>
      </main>
      <footer>
        {overview
          ? `Kera ${overview.version}, answered by broker ${overview.answered_by}${overview.cluster ? ` of cluster ${overview.cluster}` : ""}`
          : "Kera"}
        {" · "}
        <a href="licenses.txt">licences of libraries</a>
      </footer>
    </>
  );
}

/** No error of a screen is silent. */
function Guard(props: { children: ComponentChildren }) {
  const [error] = useErrorBoundary();
  if (!error) return <>{props.children}</>;
  return (
    <p class="empty" role="alert">
      This page has an error: {String(error.message ?? error)}. Reload it, or choose another.
    </p>
  );
}

render(<App />, document.getElementById("app")!);
