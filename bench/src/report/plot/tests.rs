use super::draw;
use crate::report::tests::results;
use crate::results::Results;
use crate::scenario::{Axis, Contender, Measure, Plot, PlotKind};

fn plot(kind: PlotKind, measure: &[Measure], over: Option<&str>) -> Plot {
    Plot {
        name: "one".into(),
        scenario: "produce".into(),
        kind,
        measure: measure.to_vec(),
        over: over.map(str::to_owned),
        cases: Vec::new(),
        contenders: Vec::new(),
        log: Vec::new(),
        title: "CPU & partitions".into(),
        caption: "What a record costs.".into(),
    }
}

fn lines() -> Plot {
    plot(PlotKind::Lines, &[Measure::BrokerCpu], Some("partitions"))
}

/// The texts of a plot, in order.
fn texts(svg: &str) -> Vec<&str> {
    let texts = svg.split("<text ").skip(1);
    let texts = texts.filter_map(|text| text.split_once('>')?.1.split_once("</text>"));
    texts.map(|(text, _)| text.trim()).collect()
}

/// Every number of an attribute.
fn attribute(svg: &str, name: &str) -> Vec<f64> {
    let mark = format!(" {name}=\"");
    let found = svg.split(mark.as_str()).skip(1);
    let found = found.filter_map(|rest| rest.split_once('"'));
    found
        .filter_map(|(number, _)| number.parse().ok())
        .collect()
}

fn problem(results: &Results, plot: &Plot) -> String {
    format!(
        "{:#}",
        draw(results, plot).expect_err("there is nothing to draw")
    )
}

#[test]
fn words_are_text_and_axes_have_their_marks() {
    let svg = draw(&results(), &lines()).unwrap();
    assert!(svg.starts_with("<svg width=\"760\" "), "{svg}");
    assert!(svg.contains("<title>CPU &amp; partitions</title>\n<desc>What a record costs.</desc>"));
    assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
    let texts = texts(&svg);
    for text in [
        "CPU &amp; partitions",
        "What a record costs.",
        "broker CPU, ns per record",
        "partitions",
        "Apache Kafka",
        "Kera",
        // From nothing to above the highest run, and the places.
        "0",
        "600",
        "1",
        "16",
    ] {
        assert!(texts.contains(&text), "{text} is not among {texts:?}");
    }
    // Nothing is painted behind it.
    assert!(!svg.contains("<rect"), "{svg}");
}

#[test]
fn the_same_results_give_the_same_bytes() {
    let bars = plot(
        PlotKind::Bars,
        &[Measure::Throughput, Measure::BrokerCpu],
        None,
    );
    let bars = Plot {
        cases: vec!["partitions=16,".into()],
        ..bars
    };
    for plot in [lines(), bars] {
        assert_eq!(
            draw(&results(), &plot).unwrap(),
            draw(&results(), &plot).unwrap()
        );
    }
}

#[test]
fn no_value_lies_outside_the_axes() {
    let mut results = results();
    // One run took a hundred times longer than all others.
    let run = results.cases[0]
        .runs
        .iter_mut()
        .find(|run| run.contender == Contender::Kera);
    let taken = run.and_then(|run| run.taken.as_mut()).unwrap();
    taken.broker_cpu_seconds *= 100.0;
    for log in [vec![], vec![Axis::X, Axis::Y]] {
        let plot = Plot { log, ..lines() };
        let svg = draw(&results, &plot).unwrap();
        let height = attribute(&svg, "height")[0];
        assert_eq!(attribute(&svg, "cy").len(), 4 + 2, "points and legend");
        // The frame: the highest and the lowest line across.
        let grid = svg
            .split("<polyline ")
            .filter(|one| one.contains("#808890"));
        let grid = grid.filter_map(|one| one.split_once("points=\"")?.1.split_once('"'));
        let first = grid.filter_map(|(points, _)| points.split_whitespace().next());
        let across = first.filter_map(|corner| corner.split_once(',')?.1.parse::<f64>().ok());
        let across: Vec<f64> = across.collect();
        let top = across.iter().copied().fold(f64::MAX, f64::min);
        let bottom = across.iter().copied().fold(0.0, f64::max);
        assert!(top > 0.0 && bottom < height && bottom - top > 200.0);
        let whiskers = svg.split("points=\"").skip(1);
        let whiskers = whiskers.filter_map(|rest| rest.split_once('"'));
        let corners = whiskers.flat_map(|(points, _)| points.split_whitespace());
        let ys = corners.filter_map(|corner| corner.split_once(',')?.1.parse::<f64>().ok());
        // Those of the legend lie above, the axis' own marks a little below.
        let ys: Vec<f64> = ys.filter(|y| *y > 60.0).collect();
        assert!(ys.len() > 20, "{ys:?}");
        for y in ys {
            assert!(
                y >= top - 1.0 && y <= bottom + 7.0,
                "{y} is outside {top} to {bottom}"
            );
        }
        let texts = texts(&svg);
        assert!(texts.contains(&"10,000"), "{texts:?}");
    }
}

#[test]
fn spread_is_drawn_and_bars_stand_on_the_axis() {
    let plot = Plot {
        cases: vec!["partitions=16,".into()],
        ..plot(PlotKind::Bars, &[Measure::BrokerCpu], None)
    };
    let svg = draw(&results(), &plot).unwrap();
    // A bar for each contender, as high as its median: 500 against 300.
    let rects = svg
        .split("<rect ")
        .skip(1)
        .map(|rest| rest.split_once('>').unwrap().0);
    let bars: Vec<f64> = rects
        .map(|rect| attribute(&format!(" {rect}"), "height")[0])
        .collect();
    assert_eq!(bars.len(), 2);
    assert!((bars[1] / bars[0] - 0.6).abs() < 0.02, "{bars:?}");
    // Each bar's number, and its name below.
    let texts = texts(&svg);
    for text in ["500", "300", "Apache Kafka", "Kera"] {
        assert_eq!(
            texts.iter().filter(|one| **one == text).count(),
            1 + usize::from(text == "500" || text == "300"),
            "{text} in {texts:?}"
        );
    }
}

#[test]
fn nothing_to_draw_is_refused() {
    let results = results();
    let other = Plot {
        scenario: "consume".into(),
        ..lines()
    };
    assert!(problem(&results, &other).contains("plot one: there is no case of `consume`"));
    let none = Plot {
        cases: vec!["partitions=7,".into()],
        ..lines()
    };
    assert!(problem(&results, &none).contains("no case"));
    let untold = Plot {
        measure: vec![Measure::P99],
        ..lines()
    };
    assert!(problem(&results, &untold).contains("no run told the p99"));
    let odd = Plot {
        over: Some("colour".into()),
        ..lines()
    };
    assert!(problem(&results, &odd).contains("none of batch, partitions"));
}

#[test]
fn series_differ_by_what_differs_at_a_place() {
    let mut results = results();
    let all = draw(&results, &plot(PlotKind::Bars, &[Measure::BrokerCpu], None)).unwrap();
    for text in ["Kera,", "partitions 1", "partitions 16"] {
        assert!(
            texts(&all).contains(&text),
            "{text} is not among {:?}",
            texts(&all)
        );
    }
    // What goes along with the place is no series of its own.
    results.cases[1].case.linger_ms = 7.0;
    let svg = draw(&results, &lines()).unwrap();
    assert!(
        texts(&svg).contains(&"Kera") && !svg.contains("linger"),
        "{svg}"
    );
}

#[test]
fn nothing_has_no_place_on_a_logarithmic_axis() {
    let mut results = results();
    for run in &mut results.cases[0].runs {
        run.taken.as_mut().unwrap().broker_cpu_seconds = 0.0;
    }
    let log = Plot {
        log: vec![Axis::Y],
        ..lines()
    };
    assert!(problem(&results, &log).contains("logarithmic"));
    assert!(draw(&results, &lines()).is_ok());
}
