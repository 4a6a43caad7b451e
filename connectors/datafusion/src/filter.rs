//! Conditions on where records are and on their time, which reading keeps to exactly. DataFusion evaluates all others.

use std::ops::Range;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use crate::columns::Column;
use crate::layout::{Layout, Slot};

/// A number of a record that conditions are about. None of them is ever null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Streamlet,
    Lane,
    Ordinal,
    Timestamp,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Compare(Comparison),
    And(Vec<Condition>),
    Or(Vec<Condition>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    number: Number,
    /// The other side may be beyond what the number can be.
    operator: Compare,
    with: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What is known of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) streamlet: u32,
    pub(crate) lane: u32,
    /// Ordinal and time; not known of a lane as a whole.
    pub(crate) record: Option<(u64, i64)>,
}

impl Condition {
    /// The condition of an expression; `None` if it is not one that can be kept to exactly.
    pub(crate) fn of(expression: &Expr, layout: &Layout) -> Option<Self> {
        match expression {
            Expr::Alias(alias) => Self::of(&alias.expr, layout),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
                Operator::And => Some(Self::And(vec![
                    Self::of(left, layout)?,
                    Self::of(right, layout)?,
                ])),
                Operator::Or => Some(Self::Or(vec![
                    Self::of(left, layout)?,
                    Self::of(right, layout)?,
                ])),
                _ => {
                    let operator = Compare::of(*op)?;
                    if let Some(number) = number(left, layout) {
                        let with = constant(number, right)?;
                        return Some(Self::compare(number, operator, with));
                    }
                    let number = number(right, layout)?;
                    let with = constant(number, left)?;
                    Some(Self::compare(number, operator.mirrored(), with))
                }
            },
            Expr::Between(between) => {
                let number = number(&between.expr, layout)?;
                let low = constant(number, &between.low)?;
                let high = constant(number, &between.high)?;
                Some(match between.negated {
                    false => Self::And(vec![
                        Self::compare(number, Compare::GreaterOrEqual, low),
                        Self::compare(number, Compare::LessOrEqual, high),
                    ]),
                    true => Self::Or(vec![
                        Self::compare(number, Compare::Less, low),
                        Self::compare(number, Compare::Greater, high),
                    ]),
                })
            }
            Expr::InList(InList {
                expr,
                list,
                negated,
            }) => {
                let number = number(expr, layout)?;
                let operator = match negated {
                    false => Compare::Equal,
                    true => Compare::NotEqual,
                };
                let each = list.iter().map(|one| {
                    let with = constant(number, one)?;
                    Some(Self::compare(number, operator, with))
                });
                let each = each.collect::<Option<Vec<_>>>()?;
                Some(match negated {
                    false => Self::Or(each),
                    true => Self::And(each),
                })
            }
            _ => None,
        }
    }

    fn compare(number: Number, operator: Compare, with: i128) -> Self {
        Self::Compare(Comparison {
            number,
            operator,
            with,
        })
    }

    /// Whether it holds; `None` if that depends on what is not known.
    pub(crate) fn holds(&self, known: Known) -> Option<bool> {
        match self {
            Self::Compare(comparison) => comparison.holds(known),
            Self::And(all) => {
                let mut sure = true;
                for one in all {
                    match one.holds(known) {
                        Some(false) => return Some(false),
                        Some(true) => {}
                        None => sure = false,
                    }
                }
                sure.then_some(true)
            }
            Self::Or(any) => {
                let mut sure = true;
                for one in any {
                    match one.holds(known) {
                        Some(true) => return Some(true),
                        Some(false) => {}
                        None => sure = false,
                    }
                }
                sure.then_some(false)
            }
        }
    }

    /// The ordinals of a lane outside of which it does not hold.
    pub(crate) fn ordinals(&self, streamlet: u32, lane: u32) -> Range<u64> {
        let least = self.least(Number::Ordinal, streamlet, lane);
        let most = self.most(Number::Ordinal, streamlet, lane);
        let begin = u64::try_from(least.max(0)).unwrap_or(u64::MAX);
        let end = u64::try_from((most + 1).max(0)).unwrap_or(u64::MAX);
        begin..end.max(begin)
    }

    /// A time before which no record is wanted; 0 if there is none.
    pub(crate) fn not_before(&self) -> u64 {
        let least = self.least_of_all(Number::Timestamp).max(0);
        u64::try_from(least).unwrap_or(u64::MAX)
    }

    /// The least value of a number with which it may hold in a lane.
    fn least(&self, of: Number, streamlet: u32, lane: u32) -> i128 {
        let known = Known {
            streamlet,
            lane,
            record: None,
        };
        if self.holds(known) == Some(false) {
            return MOST;
        }
        match self {
            Self::Compare(comparison) => comparison.least(of),
            Self::And(all) => {
                let each = all.iter().map(|one| one.least(of, streamlet, lane));
                each.max().unwrap_or(LEAST)
            }
            Self::Or(any) => {
                let each = any.iter().map(|one| one.least(of, streamlet, lane));
                each.min().unwrap_or(MOST)
            }
        }
    }

    fn most(&self, of: Number, streamlet: u32, lane: u32) -> i128 {
        let known = Known {
            streamlet,
            lane,
            record: None,
        };
        if self.holds(known) == Some(false) {
            return LEAST;
        }
        match self {
            Self::Compare(comparison) => comparison.most(of),
            Self::And(all) => {
                let each = all.iter().map(|one| one.most(of, streamlet, lane));
                each.min().unwrap_or(MOST)
            }
            Self::Or(any) => {
                let each = any.iter().map(|one| one.most(of, streamlet, lane));
                each.max().unwrap_or(LEAST)
            }
        }
    }

    /// As [`least`](Self::least), in any lane.
    fn least_of_all(&self, of: Number) -> i128 {
        match self {
            Self::Compare(comparison) => comparison.least(of),
            Self::And(all) => {
                let each = all.iter().map(|one| one.least_of_all(of));
                each.max().unwrap_or(LEAST)
            }
            Self::Or(any) => {
                let each = any.iter().map(|one| one.least_of_all(of));
                each.min().unwrap_or(MOST)
            }
        }
    }
}

/// Beyond all values, and far enough from the ends that one more or less fits.
const LEAST: i128 = -(1 << 100);
const MOST: i128 = 1 << 100;

impl Comparison {
    fn holds(&self, known: Known) -> Option<bool> {
        let value = match self.number {
            Number::Streamlet => i128::from(known.streamlet),
            Number::Lane => i128::from(known.lane),
            Number::Ordinal => i128::from(known.record?.0),
            Number::Timestamp => i128::from(known.record?.1),
        };
        Some(match self.operator {
            Compare::Equal => value == self.with,
            Compare::NotEqual => value != self.with,
            Compare::Less => value < self.with,
            Compare::LessOrEqual => value <= self.with,
            Compare::Greater => value > self.with,
            Compare::GreaterOrEqual => value >= self.with,
        })
    }

    fn least(&self, of: Number) -> i128 {
        match self.operator {
            Compare::Equal | Compare::GreaterOrEqual if of == self.number => self.with,
            Compare::Greater if of == self.number => self.with + 1,
            _ => LEAST,
        }
    }

    fn most(&self, of: Number) -> i128 {
        match self.operator {
            Compare::Equal | Compare::LessOrEqual if of == self.number => self.with,
            Compare::Less if of == self.number => self.with - 1,
            _ => MOST,
        }
    }
}

impl Compare {
    fn of(operator: Operator) -> Option<Self> {
        Some(match operator {
            Operator::Eq => Self::Equal,
            Operator::NotEq => Self::NotEqual,
            Operator::Lt => Self::Less,
            Operator::LtEq => Self::LessOrEqual,
            Operator::Gt => Self::Greater,
            Operator::GtEq => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    /// The same with its sides exchanged.
    fn mirrored(self) -> Self {
        match self {
            Self::Equal | Self::NotEqual => self,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }
}

fn number(expression: &Expr, layout: &Layout) -> Option<Number> {
    let Expr::Column(column) = expression else {
        return None;
    };
    match layout.named(&column.name)?.0 {
        Slot::Own(Column::Streamlet) => Some(Number::Streamlet),
        Slot::Own(Column::Lane) => Some(Number::Lane),
        Slot::Own(Column::Ordinal) => Some(Number::Ordinal),
        Slot::Own(Column::Timestamp) => Some(Number::Timestamp),
        _ => None,
    }
}

/// A constant that `number` is compared with, in the number's unit.
fn constant(number: Number, expression: &Expr) -> Option<i128> {
    let Expr::Literal(value, _) = expression else {
        return None;
    };
    if number == Number::Timestamp {
        // DataFusion brings others into this form. One without a zone is no instant.
        return match value {
            ScalarValue::TimestampMillisecond(Some(time), Some(_)) => Some(i128::from(*time)),
            _ => None,
        };
    }
    match *value {
        ScalarValue::Int8(value) => value.map(i128::from),
        ScalarValue::Int16(value) => value.map(i128::from),
        ScalarValue::Int32(value) => value.map(i128::from),
        ScalarValue::Int64(value) => value.map(i128::from),
        ScalarValue::UInt8(value) => value.map(i128::from),
        ScalarValue::UInt16(value) => value.map(i128::from),
        ScalarValue::UInt32(value) => value.map(i128::from),
        ScalarValue::UInt64(value) => value.map(i128::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{col, lit};

    use super::*;

    fn condition(expression: &Expr) -> Option<Condition> {
        Condition::of(expression, &Layout::new(None, "").unwrap())
    }

    fn known(streamlet: u32, lane: u32, record: Option<(u64, i64)>) -> Known {
        Known {
            streamlet,
            lane,
            record,
        }
    }

    fn time(millis: i64) -> Expr {
        lit(ScalarValue::TimestampMillisecond(
            Some(millis),
            Some("UTC".into()),
        ))
    }

    #[test]
    fn conditions_on_lanes_are_decided_before_anything_is_read() {
        let one = condition(
            &col("lane")
                .eq(lit(3_u32))
                .and(lit(1_u32).gt(col("streamlet"))),
        );
        let one = one.unwrap();
        assert_eq!(one.holds(known(0, 3, None)), Some(true));
        assert_eq!(one.holds(known(0, 2, None)), Some(false));
        assert_eq!(one.holds(known(1, 3, None)), Some(false));
        let listed = condition(&col("lane").in_list(vec![lit(1), lit(5)], true)).unwrap();
        assert_eq!(listed.holds(known(0, 5, None)), Some(false));
        assert_eq!(listed.holds(known(0, 2, None)), Some(true));
    }

    #[test]
    fn ordinals_bound_what_is_read_of_a_lane() {
        let both = condition(
            &col("ordinal")
                .gt(lit(5_u64))
                .and(col("ordinal").lt_eq(lit(9_u64))),
        );
        assert_eq!(both.unwrap().ordinals(0, 0), 6..10);
        let by_lane = condition(
            &col("lane")
                .eq(lit(0_u32))
                .and(col("ordinal").gt_eq(lit(7_u64)))
                .or(col("lane")
                    .eq(lit(1_u32))
                    .and(col("ordinal").eq(lit(3_u64)))),
        );
        let by_lane = by_lane.unwrap();
        assert_eq!(by_lane.ordinals(0, 0), 7..u64::MAX);
        assert_eq!(by_lane.ordinals(0, 1), 3..4);
        assert!(by_lane.ordinals(0, 2).is_empty());
        assert_eq!(by_lane.holds(known(0, 0, None)), None);
        assert_eq!(by_lane.holds(known(0, 1, Some((3, 0)))), Some(true));
        assert_eq!(by_lane.holds(known(0, 1, Some((7, 0)))), Some(false));
        // Beyond what there can be.
        let none = condition(&col("ordinal").lt(lit(0_u64))).unwrap();
        assert!(none.ordinals(0, 0).is_empty());
        let none = condition(&col("ordinal").gt(lit(u64::MAX))).unwrap();
        assert!(none.ordinals(0, 0).is_empty());
        assert!(condition(&col("ordinal").gt(lit(-1))).is_some());
    }

    #[test]
    fn times_bound_where_reading_begins_and_each_record_is_judged() {
        let late = condition(&col("timestamp").between(time(5_000), time(7_000))).unwrap();
        assert_eq!(late.not_before(), 5_000);
        assert_eq!(late.ordinals(0, 0), 0..u64::MAX);
        assert_eq!(late.holds(known(0, 0, Some((1, 7_000)))), Some(true));
        assert_eq!(late.holds(known(0, 0, Some((1, 7_001)))), Some(false));
        let either = late_or_lane();
        assert_eq!(either.not_before(), 0, "the lane has all of its records");
    }

    fn late_or_lane() -> Condition {
        let late = col("timestamp").gt(time(5_000));
        condition(&late.or(col("lane").eq(lit(1_u32)))).unwrap()
    }

    #[test]
    fn what_cannot_be_kept_to_exactly_is_left_to_datafusion() {
        let without_zone = ScalarValue::TimestampMillisecond(Some(1), None);
        for other in [
            col("key").eq(lit("a")),
            col("lane").eq(col("streamlet")),
            col("lane").eq(lit(ScalarValue::UInt32(None))),
            col("lane").eq(lit(1.5)),
            col("timestamp").gt(lit(without_zone)),
            col("lane").eq(lit(1_u32)).and(col("key").is_null()),
            col("nothing").eq(lit(1_u32)),
        ] {
            assert_eq!(condition(&other), None, "{other}");
        }
    }
}
