//! The console behind a login.

use serde_json::json;

use crate::browser::Browser;
use crate::common::Broker;

const PASSWORD: &str = "long, secret = 1";

#[test]
fn who_may_read_one_stream_sees_it_and_is_told_what_is_refused() {
    let Some(mut browser) = Browser::start_as("the console behind a login", ["ann", PASSWORD])
    else {
        return;
    };
    let mut broker = Broker::start();
    broker.feed(&["user", "create", "ann"], PASSWORD.as_bytes());
    for stream in ["orders", "salaries"] {
        broker.json(&["stream", "create", stream]);
    }
    broker.feed(&["produce", "orders", "--quiet"], b"one order\n");
    let rule = ["acl", "add", "--allow", "User:ann", "--consumer"];
    let of = ["--stream", "orders", "--group", "readers"];
    broker.run(&[&rule[..], &of].concat());
    broker.stop();
    broker.set_flags(&[
        "--http-listen",
        "127.0.0.1:0",
        "--auth-listeners",
        "native,http",
        "--acl-enabled",
        "true",
        "--acl-super-users",
        "User:admin",
    ]);
    broker.restart();
    let home = format!("http://{}/", broker.http());
    // What is refused is told by the page, and by the browser in its own way too.
    browser.step("expect", json!({ "errors": true }));
    browser.open(&home);
    browser.sees("User:ann may not describe the cluster");
    browser.audit("the overview for who may not see it");
    browser.open(&format!("{home}#/streams"));
    browser.sees_role("rowheader", "orders");
    assert!(!browser.content().contains("salaries"));
    browser.click("link", "orders");
    browser.sees("Groups of segments");
    browser.click("link", "Records");
    browser.sees("one order");
    browser.open(&format!("{home}#/streams/orders/settings"));
    browser.sees("You may not see its other settings");
    browser.audit("a stream's settings for who may not see them");
    browser.open(&format!("{home}#/streams/salaries"));
    browser.sees("User:ann may not describe stream");
    let complaints = browser.step("complaints", json!({}));
    assert_eq!(complaints["complaints"], json!([]));
}
