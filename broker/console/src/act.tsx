// An act: a button, one question that names the object and what will be lost, and what came of it.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Mark } from "./parts";
import { change, useFeed } from "./live";
import type { Overview } from "./types";

/** What the broker tells of acts that are over, until somebody closes it. */
let told: string | null = null;
const listeners = new Set<() => void>();

function tell(text: string | null) {
  told = text;
  listeners.forEach((listener) => listener());
}

export function Told() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  // It is always there: screen readers tell what comes into it.
  return (
    <div role="status" class={told === null ? "" : "told"}>
      {told !== null && (
        <>
          <span>{told}</span>
          <button type="button" onClick={() => tell(null)}>
            Close
          </button>
        </>
      )}
    </div>
  );
}

/** The overview, where the broker lets people change something. */
export function useActs(): Overview | null {
  const { data } = useFeed().of<Overview>("/api/v1/overview");
  return data?.acts ? data : null;
}

interface Props<T> {
  /** On the button that asks. */
  label: string;
  /** The question, with the name of the object. */
  title: string;
  /** What happens, and what is lost. */
  what: ComponentChildren;
  /** On the button that does it. */
  confirm: string;
  /** Something cannot be brought back. */
  loses?: boolean;
  path: string;
  /** What is sent, of what was filled in. */
  body: (form: FormData) => unknown;
  /** Told once it is done. */
  done: (answer: T, form: FormData) => string;
  /** Then. */
  then?: () => void;
  /** To be filled in. */
  children?: ComponentChildren;
}

export function Act<T>(props: Props<T>) {
  // As it was when the question was asked: it stays the same while somebody reads.
  const [asked, setAsked] = useState<Props<T> | null>(null);
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    if (asked && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [asked]);
  const act = async (form: HTMLFormElement) => {
    if (!asked || busy) return;
    const filled = new FormData(form);
    setBusy(true);
    setRefusal(null);
    try {
      const answer = await change<T>(asked.path, asked.body(filled));
      dialog.current?.close();
      tell(asked.done(answer, filled));
      asked.then?.();
    } catch (error) {
      const text = String((error as Error).message ?? error);
      if (dialog.current?.open) setRefusal(text);
      else tell(text);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button
        type="button"
        class={props.loses ? "loses" : ""}
        onClick={() => {
          setRefusal(null);
          setAsked(props);
        }}
      >
        {props.label}
      </button>
      {asked && (
        <dialog ref={dialog} class="act" aria-labelledby="act-title" aria-describedby="act-what" onClose={() => setAsked(null)}>
          <form
            onKeyDown={(event) => {
              // Enter in a field would send the form. What cannot be brought back asks for its own button.
              if (asked.loses && event.key === "Enter" && event.target instanceof HTMLInputElement) event.preventDefault();
            }}
            onSubmit={(event) => {
              event.preventDefault();
              void act(event.currentTarget);
            }}
          >
            <h2 id="act-title">{asked.title}</h2>
            <div id="act-what">{asked.what}</div>
            {asked.children && <div class="fields">{asked.children}</div>}
            {refusal && (
              <p class="refusal" role="alert">
                <Mark state="trouble" /> {refusal}
              </p>
            )}
            <div class="choice">
              <button type="button" autofocus={asked.loses} onClick={() => dialog.current?.close()}>
                Cancel
              </button>
              <button type="submit" class={asked.loses ? "loses" : "main"} disabled={busy}>
                {busy ? "Asking the broker …" : asked.confirm}
              </button>
            </div>
          </form>
        </dialog>
      )}
    </>
  );
}
