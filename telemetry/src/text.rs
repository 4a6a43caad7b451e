//! Metrics in the form of OTLP, from the text that `/metrics` serves, so that both tell the same numbers by the same
//! names.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

use crate::exporter::attribute;

/// From when to when a text counts, nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) began: u64,
    pub(crate) now: u64,
}

/// The metrics of a text of OpenMetrics. Lines that are none are passed over.
pub(crate) fn metrics_of(text: &str, span: Span) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            note(comment, &mut metrics);
        } else if let (Some(metric), Some(sample)) = (metrics.last_mut(), Sample::of(line)) {
            add(metric, sample, span);
        }
    }
    metrics.retain(|metric| match &metric.data {
        Some(Data::Gauge(gauge)) => !gauge.data_points.is_empty(),
        Some(Data::Sum(sum)) => !sum.data_points.is_empty(),
        Some(Data::Histogram(histogram)) => !histogram.data_points.is_empty(),
        _ => false,
    });
    for metric in &mut metrics {
        if let Some(Data::Histogram(histogram)) = &mut metric.data {
            histogram.data_points.iter_mut().for_each(apart);
        }
    }
    metrics
}

/// `HELP`, `TYPE`: the first begins a metric.
fn note(comment: &str, metrics: &mut Vec<Metric>) {
    let mut words = comment.splitn(3, ' ');
    let (Some(what), Some(name), rest) = (words.next(), words.next(), words.next()) else {
        return;
    };
    let is_new = metrics.last().is_none_or(|metric| metric.name != name);
    if is_new {
        metrics.push(Metric {
            name: name.to_owned(),
            unit: unit_of(name).to_owned(),
            ..Metric::default()
        });
    }
    let Some(metric) = metrics.last_mut() else {
        return;
    };
    let rest = rest.unwrap_or_default();
    let cumulative = AggregationTemporality::Cumulative as i32;
    match (what, rest) {
        ("HELP", help) => metric.description = help.trim_end_matches('.').to_owned(),
        ("TYPE", "counter") => {
            metric.data = Some(Data::Sum(Sum {
                aggregation_temporality: cumulative,
                is_monotonic: true,
                ..Sum::default()
            }));
        }
        ("TYPE", "histogram") => {
            metric.data = Some(Data::Histogram(Histogram {
                aggregation_temporality: cumulative,
                ..Histogram::default()
            }));
        }
        ("TYPE", _) => metric.data = Some(Data::Gauge(Gauge::default())),
        _ => {}
    }
}

/// The unit that the end of a name tells, in the code that OpenTelemetry takes.
fn unit_of(name: &str) -> &'static str {
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("milliseconds") => "ms",
        Some("bytes") => "By",
        _ => "",
    }
}

fn add(metric: &mut Metric, sample: Sample<'_>, span: Span) {
    let began = span.began;
    match &mut metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.push(sample.number(0, span.now)),
        Some(Data::Sum(sum)) => sum.data_points.push(sample.number(began, span.now)),
        Some(Data::Histogram(histogram)) => {
            let Some(part) = sample.name.strip_prefix(metric.name.as_str()) else {
                return;
            };
            let bound = sample.bound;
            let attributes = sample.attributes;
            let points = &mut histogram.data_points;
            if points
                .last()
                .is_none_or(|last| last.attributes != attributes)
            {
                points.push(HistogramDataPoint {
                    attributes,
                    start_time_unix_nano: began,
                    time_unix_nano: span.now,
                    ..HistogramDataPoint::default()
                });
            }
            let Some(point) = points.last_mut() else {
                return;
            };
            match (part, bound) {
                ("_sum", _) => point.sum = Some(sample.value),
                ("_count", _) => point.count = sample.value as u64,
                ("_bucket", Some(bound)) => {
                    point.bucket_counts.push(sample.value as u64);
                    if bound.is_finite() {
                        point.explicit_bounds.push(bound);
                    }
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// Counts of all values up to each bound become counts of those between two bounds.
fn apart(point: &mut HistogramDataPoint) {
    let mut below = 0;
    for count in &mut point.bucket_counts {
        let of_all = *count;
        *count = of_all.saturating_sub(below);
        below = of_all;
    }
}

/// A line with a value.
struct Sample<'a> {
    name: &'a str,
    attributes: Vec<KeyValue>,
    /// The label `le`.
    bound: Option<f64>,
    value: f64,
    /// As it was written: a whole number is told as one.
    whole: Option<i64>,
}

impl<'a> Sample<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (head, value) = line.rsplit_once(' ')?;
        let (name, labels) = match head.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (head, ""),
        };
        let mut sample = Self {
            name,
            attributes: Vec::new(),
            bound: None,
            value: value.parse().ok()?,
            whole: value.parse().ok(),
        };
        let mut rest = labels;
        while !rest.is_empty() {
            let (label, text, after) = label_of(rest)?;
            if label == "le" {
                sample.bound = Some(text.parse().ok()?);
            } else {
                sample.attributes.push(attribute(label, text));
            }
            rest = after;
        }
        Some(sample)
    }

    fn number(self, began: u64, now: u64) -> NumberDataPoint {
        let value = match self.whole {
            Some(whole) => Value::AsInt(whole),
            None => Value::AsDouble(self.value),
        };
        NumberDataPoint {
            attributes: self.attributes,
            start_time_unix_nano: began,
            time_unix_nano: now,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    }
}

/// The first of labels: its name, its value, and what comes after it.
fn label_of(labels: &str) -> Option<(&str, String, &str)> {
    let (label, rest) = labels.split_once("=\"")?;
    let mut text = String::new();
    let mut characters = rest.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                let after = &rest[at + 1..];
                return Some((label, text, after.strip_prefix(',').unwrap_or(after)));
            }
            '\\' => match characters.next()?.1 {
                'n' => text.push('\n'),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { began: 5, now: 9 };

    fn one(text: &str) -> Metric {
        let mut metrics = metrics_of(text, SPAN);
        assert_eq!(metrics.len(), 1, "{metrics:?}");
        metrics.remove(0)
    }

    #[test]
    fn a_counter_is_a_sum_by_the_name_of_its_family() {
        let text = "# HELP kera_appended_bytes Bytes of batches appended.\n# TYPE kera_appended_bytes counter\nkera_appended_bytes_total 17\n# EOF\n";
        let metric = one(text);
        assert_eq!(
            (metric.name.as_str(), metric.unit.as_str()),
            ("kera_appended_bytes", "By")
        );
        assert_eq!(metric.description, "Bytes of batches appended");
        let Some(Data::Sum(sum)) = metric.data else {
            panic!("{metric:?}");
        };
        assert!(sum.is_monotonic);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (5, 9));
        assert_eq!(point.value, Some(Value::AsInt(17)));
    }

    #[test]
    fn a_gauge_has_a_value_for_each_of_its_labels() {
        let text = "# TYPE kera_lag gauge\nkera_lag{group=\"a\\\"b\\\\\",stream=\"x,y=\\n\"} -2\nkera_lag 0.5\n";
        let Some(Data::Gauge(gauge)) = one(text).data else {
            panic!("no gauge");
        };
        let first = &gauge.data_points[0];
        let labels = vec![attribute("group", "a\"b\\"), attribute("stream", "x,y=\n")];
        assert_eq!(
            (&first.attributes, first.value),
            (&labels, Some(Value::AsInt(-2)))
        );
        assert_eq!(gauge.data_points[1].value, Some(Value::AsDouble(0.5)));
    }

    #[test]
    fn buckets_of_a_histogram_are_told_apart() {
        let mut text = "# TYPE kera_s histogram\n".to_owned();
        for api in ["a", "b"] {
            text += &format!(
                "kera_s_sum{{api=\"{api}\"}} 1.5\nkera_s_count{{api=\"{api}\"}} 6\nkera_s_bucket{{le=\"0.1\",api=\"{api}\"}} 2\nkera_s_bucket{{le=\"0.2\",api=\"{api}\"}} 5\nkera_s_bucket{{le=\"+Inf\",api=\"{api}\"}} 6\n"
            );
        }
        let Some(Data::Histogram(histogram)) = one(&text).data else {
            panic!("no histogram");
        };
        assert_eq!(histogram.data_points.len(), 2);
        for (point, api) in histogram.data_points.iter().zip(["a", "b"]) {
            assert_eq!(point.attributes, [attribute("api", api)]);
            assert_eq!((point.count, point.sum), (6, Some(1.5)));
            assert_eq!(point.bucket_counts, [2, 3, 1]);
            assert_eq!(point.explicit_bounds, [0.1, 0.2]);
        }
    }

    #[test]
    fn what_is_no_line_of_a_metric_is_passed_over() {
        for text in [
            "",
            "x 1",
            "# TYPE x gauge\nx",
            "# TYPE x gauge\nx{a=\"b 1",
            "# TYPE x gauge\nx{a 1",
            "# TYPE x gauge\nx one",
            "# TYPE",
            "# HELP x y\nx 1",
        ] {
            assert_eq!(metrics_of(text, SPAN), [], "{text:?}");
        }
    }
}
