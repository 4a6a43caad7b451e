//! The README's programs do what it says.

use std::process::Command;

use kera_testkit::{finish, program};

use crate::House;

const README: &str = include_str!("../../README.md");
const PROGRAM: &str = include_str!("../../examples/orders.rs");

/// The texts of a language in the README.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    let blocks = README.split(&begin).skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_the_readme_does_what_it_says() {
    let house = House::new();
    house.create_stream(&["orders", "--lanes", "4"]);
    let shown = blocks("rust,no_run");
    assert_eq!(shown[0], PROGRAM, "the README shows examples/orders.rs");
    // Beside the test programs, and built with them.
    let path = program::profile().join("examples/orders");
    let mut command = Command::new(path);
    command.arg(house.broker.address());
    let finished = finish(command, b"");
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(finished.text().trim(), blocks("text")[0].trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_readme_run_as_they_are() {
    let house = House::new();
    house.create_stream(&["flights", "--lanes", "4"]);
    for block in blocks("sql") {
        for statement in block
            .split(';')
            .map(str::trim)
            .filter(|text| !text.is_empty())
        {
            let text = statement.replace("localhost:7600", house.broker.address());
            let found = house.rows(&text).await;
            if text.starts_with("SELECT") {
                assert_eq!(found, ["LX,12.0,2", "SR,3.0,1"], "{text}");
            }
        }
    }
}
