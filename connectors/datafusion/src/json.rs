//! Values in JSON: taken apart into columns, and made of columns.

use arrow_array::{BinaryArray, RecordBatch};
use arrow_json::writer::{LineDelimited, WriterBuilder};
use arrow_json::{ReaderBuilder, reader::Decoder};
use arrow_schema::{ArrowError, SchemaRef};

/// What becomes of a record whose value is no JSON object of the table's schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadJson {
    /// The query fails, and names the record.
    #[default]
    Fail,
    /// All fields are null, as for a record without a value.
    Null,
}

/// A value that does not fit.
#[derive(Debug)]
pub(crate) struct BadValue {
    pub(crate) row: usize,
    pub(crate) reason: String,
}

/// One row for each value; fields of the schema may be null.
pub(crate) fn decode(
    schema: &SchemaRef,
    values: &BinaryArray,
    on_bad: OnBadJson,
) -> Result<RecordBatch, BadValue> {
    let values: Vec<Option<&[u8]>> = values.iter().collect();
    if let Ok(batch) = rows(schema, &values) {
        return Ok(batch);
    }
    // The decoder does not tell which value it was.
    let mut usable = values.clone();
    for (row, value) in values.into_iter().enumerate() {
        if let Err(error) = rows(schema, &[value]) {
            if on_bad == OnBadJson::Fail {
                let reason = reason(&error);
                return Err(BadValue { row, reason });
            }
            usable[row] = None;
        }
    }
    rows(schema, &usable).map_err(|error| BadValue {
        row: 0,
        reason: reason(&error),
    })
}

fn reason(error: &ArrowError) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("Json error: ").unwrap_or(&text);
    text.to_owned()
}

/// Whether values can be decoded by a schema at all.
pub(crate) fn check(schema: &SchemaRef) -> Result<(), ArrowError> {
    ReaderBuilder::new(schema.clone()).build_decoder().map(drop)
}

fn rows(schema: &SchemaRef, values: &[Option<&[u8]>]) -> Result<RecordBatch, ArrowError> {
    // With a size that is reached the decoder stands behind the last object, and does not see what follows it.
    let reader = ReaderBuilder::new(schema.clone()).with_batch_size(values.len() + 1);
    let mut decoder = reader.build_decoder()?;
    for (row, value) in values.iter().enumerate() {
        feed(&mut decoder, value.unwrap_or(b"{}"), row)?;
    }
    let batch = decoder.flush()?;
    let batch = batch.unwrap_or_else(|| RecordBatch::new_empty(schema.clone()));
    match batch.num_rows() == values.len() {
        true => Ok(batch),
        false => Err(not_one("it is not one JSON object")),
    }
}

fn not_one(text: &str) -> ArrowError {
    ArrowError::JsonError(text.to_owned())
}

fn feed(decoder: &mut Decoder, value: &[u8], row: usize) -> Result<(), ArrowError> {
    let read = decoder.decode(value)?;
    if decoder.has_partial_record() {
        return Err(not_one("it ends within a JSON value, or is no object"));
    }
    match decoder.len().cmp(&(row + 1)) {
        std::cmp::Ordering::Less => Err(not_one("it is empty")),
        std::cmp::Ordering::Greater => Err(not_one("it has more than one JSON value")),
        std::cmp::Ordering::Equal if read < value.len() => {
            Err(not_one("something follows the JSON object"))
        }
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// An object for each row, which lacks what is null, and the ends of the objects in the text.
pub(crate) fn encode(batch: &RecordBatch) -> Result<(Vec<u8>, Vec<usize>), ArrowError> {
    let mut writer = WriterBuilder::new().build::<_, LineDelimited>(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    let text = writer.into_inner();
    // Lines end behind objects only: within text a line's end is written as \n.
    let ends: Vec<usize> = (0..text.len()).filter(|&at| text[at] == b'\n').collect();
    match ends.len() == batch.num_rows() {
        true => Ok((text, ends)),
        false => Err(not_one("rows and lines are not as many")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("to", DataType::Utf8, true),
        ]))
    }

    fn values(texts: &[Option<&str>]) -> BinaryArray {
        texts.iter().map(|text| text.map(str::as_bytes)).collect()
    }

    fn ids(texts: &[Option<&str>], on_bad: OnBadJson) -> Result<Vec<Option<i64>>, BadValue> {
        let batch = decode(&schema(), &values(texts), on_bad)?;
        Ok(batch.column(0).as_primitive::<Int64Type>().iter().collect())
    }

    #[test]
    fn each_value_is_a_row_and_what_it_lacks_is_null() {
        let texts = [
            Some(r#"{"id": 1, "to": "ZRH", "more": [1]}"#),
            None,
            Some(" {\"to\": \"BRN\"}\n"),
            Some(r#"{"id": 4}"#),
        ];
        let found = ids(&texts, OnBadJson::Fail).unwrap();
        assert_eq!(found, [Some(1), None, None, Some(4)]);
        assert!(ids(&[], OnBadJson::Fail).unwrap().is_empty());
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_or_null() {
        for bad in [
            "",
            "  ",
            "3",
            "[1]",
            "{",
            "null",
            r#"{"id": "one"}"#,
            r#"{"id": 1} x"#,
            r#"{"id": 1}{"id": 2}"#,
            r#"}"#,
            "\u{0}",
        ] {
            let texts = [Some(r#"{"id": 7}"#), Some(bad), Some(r#"{"id": 8}"#)];
            let error = ids(&texts, OnBadJson::Fail).unwrap_err();
            assert_eq!(error.row, 1, "{bad}");
            assert!(!error.reason.is_empty());
            let found = ids(&texts, OnBadJson::Null).unwrap();
            assert_eq!(found, [Some(7), None, Some(8)], "{bad}");
        }
    }

    #[test]
    fn rows_become_objects_and_objects_rows() {
        let ids: Int64Array = [Some(1), None, Some(3)].into_iter().collect();
        let to: StringArray = [Some("two\nlines \"here\""), None, Some("x")]
            .into_iter()
            .collect();
        let batch = RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(to)]).unwrap();
        let (text, ends) = encode(&batch).unwrap();
        let mut begin = 0;
        let mut objects = Vec::new();
        for end in ends {
            objects.push(Some(&text[begin..end]));
            begin = end + 1;
        }
        assert_eq!(objects[1], Some(&b"{}"[..]));
        let again: BinaryArray = objects.into_iter().collect();
        assert_eq!(decode(&schema(), &again, OnBadJson::Fail).unwrap(), batch);
    }
}
