//! The columns of a table, and those that a query wants.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, StructArray};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::columns::Column;
use crate::error::KeraError;

/// Columns of a record as tables have them: what is written first.
const COLUMNS: [Column; 7] = [
    Column::Key,
    Column::Value,
    Column::Headers,
    Column::Timestamp,
    Column::Streamlet,
    Column::Lane,
    Column::Ordinal,
];

/// The type of a header where anything may be null, though nothing but a value is: lists that a query makes are of this type, and DataFusion
/// does not bring them into a narrower one.
fn header() -> FieldRef {
    let fields = Fields::from(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ]);
    Arc::new(Field::new("item", DataType::Struct(fields), true))
}

/// Headers of records in the type that tables have.
pub(crate) fn widened(headers: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let lists = headers.as_list::<i32>();
    let of_one = lists.values().as_struct();
    let item = header();
    let DataType::Struct(fields) = item.data_type() else {
        return Ok(headers.clone());
    };
    let nulls = of_one.nulls().cloned();
    let wide = StructArray::try_new(fields.clone(), of_one.columns().to_vec(), nulls)?;
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    Ok(Arc::new(ListArray::try_new(
        item,
        offsets,
        Arc::new(wide),
        nulls,
    )?))
}

/// What a column of a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The record's own.
    Own(Column),
    /// A field of values in JSON, by its place in their schema.
    Json(usize),
}

/// All columns of a table.
#[derive(Debug)]
pub(crate) struct Layout {
    schema: SchemaRef,
    slots: Vec<Slot>,
    json: Option<SchemaRef>,
}

impl Layout {
    /// With values as they are, or taken apart by a schema; `prefix` goes before the names of the records' own columns.
    pub(crate) fn new(json: Option<SchemaRef>, prefix: &str) -> Result<Self, KeraError> {
        let mut fields: Vec<FieldRef> = Vec::new();
        let mut slots = Vec::new();
        // A value may lack any field.
        let json = json.map(|json| {
            let nullable = |field: &FieldRef| field.as_ref().clone().with_nullable(true);
            Arc::new(Schema::new(
                json.fields().iter().map(nullable).collect::<Vec<_>>(),
            ))
        });
        for (index, field) in json.iter().flat_map(|json| json.fields()).enumerate() {
            fields.push(field.clone());
            slots.push(Slot::Json(index));
        }
        for column in COLUMNS {
            if json.is_some() && column == Column::Value {
                continue;
            }
            let mut field = column.field();
            if column == Column::Headers {
                field = field.with_data_type(DataType::List(header()));
            }
            let name = format!("{prefix}{}", field.name());
            fields.push(Arc::new(field.with_name(name)));
            slots.push(Slot::Own(column));
        }
        let mut names = HashSet::new();
        for field in &fields {
            if !names.insert(field.name()) {
                let name = field.name().clone();
                return Err(KeraError::Collision { name });
            }
        }
        Ok(Self {
            schema: Arc::new(Schema::new(fields)),
            slots,
            json,
        })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What the column of a name is.
    pub(crate) fn named(&self, name: &str) -> Option<(Slot, &Field)> {
        let (index, field) = self.schema.column_with_name(name)?;
        Some((self.slots[index], field))
    }

    /// The columns at these places; all if there are none.
    pub(crate) fn select(&self, projection: Option<&Vec<usize>>) -> Selection {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        let projection = projection.unwrap_or(&all);
        let slots: Vec<Slot> = projection.iter().map(|&index| self.slots[index]).collect();
        let fields = projection.iter().map(|&index| self.schema.field(index));
        let schema = Schema::new(fields.cloned().collect::<Vec<_>>());

        let mut json = Vec::new();
        let mut made = Vec::new();
        let mut places = Vec::new();
        for slot in &slots {
            match *slot {
                Slot::Own(column) => places.push(Place::Own(place(&mut made, column))),
                Slot::Json(index) => places.push(Place::Json(place(&mut json, index))),
            }
        }
        let fields = self.json.iter().flat_map(|all| {
            let wanted = json.iter().map(|&index| all.field(index).clone());
            wanted.collect::<Vec<_>>()
        });
        let fields: Vec<Field> = fields.collect();
        let json = (!fields.is_empty()).then(|| Json {
            schema: Arc::new(Schema::new(fields)),
            values: place(&mut made, Column::Value),
            // A value that does not fit is told by it.
            ordinals: place(&mut made, Column::Ordinal),
        });
        Selection {
            schema: Arc::new(schema),
            made,
            places,
            json,
        }
    }
}

/// Where `wanted` is in a list, which it is added to if need be.
fn place<T: PartialEq>(list: &mut Vec<T>, wanted: T) -> usize {
    let found = list.iter().position(|one| *one == wanted);
    found.unwrap_or_else(|| {
        list.push(wanted);
        list.len() - 1
    })
}

/// Where the array of a column comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The arrays made of records.
    Own(usize),
    /// The arrays decoded from values.
    Json(usize),
}

/// The columns of a query.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) schema: SchemaRef,
    /// The columns that are made of records: no others.
    pub(crate) made: Vec<Column>,
    /// For each column of the schema.
    pub(crate) places: Vec<Place>,
    pub(crate) json: Option<Json>,
}

/// The fields that are decoded.
#[derive(Debug)]
pub(crate) struct Json {
    pub(crate) schema: SchemaRef,
    /// Where values and ordinals are among the columns that are made.
    pub(crate) values: usize,
    pub(crate) ordinals: usize,
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    fn flights() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("delay", DataType::Float64, true),
        ]))
    }

    fn names(schema: &Schema) -> Vec<&str> {
        schema.fields().iter().map(|f| f.name().as_str()).collect()
    }

    #[test]
    fn fields_of_values_come_first_and_the_value_itself_is_left_out() {
        let raw = Layout::new(None, "").unwrap();
        let own = [
            "key",
            "value",
            "headers",
            "timestamp",
            "streamlet",
            "lane",
            "ordinal",
        ];
        assert_eq!(names(raw.schema()), own);
        let json = Layout::new(Some(flights()), "kera_").unwrap();
        assert_eq!(
            names(json.schema()),
            [
                "id",
                "delay",
                "kera_key",
                "kera_headers",
                "kera_timestamp",
                "kera_streamlet",
                "kera_lane",
                "kera_ordinal",
            ]
        );
        assert!(json.schema().field(0).is_nullable());
    }

    #[test]
    fn names_that_collide_are_refused_with_words() {
        let field = Field::new("timestamp", DataType::Utf8, true);
        let error = Layout::new(Some(Arc::new(Schema::new(vec![field]))), "").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("column timestamp") && error.contains("metadata.prefix"),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_asked_for_is_not_made() {
        let raw = Layout::new(None, "").unwrap();
        let some = raw.select(Some(&vec![6, 0]));
        assert_eq!(some.made, [Column::Ordinal, Column::Key]);
        assert_eq!(names(&some.schema), ["ordinal", "key"]);
        assert!(raw.select(Some(&Vec::new())).made.is_empty());
        assert_eq!(raw.select(None).made, COLUMNS);

        let json = Layout::new(Some(flights()), "").unwrap();
        let some = json.select(Some(&vec![1, 6]));
        assert_eq!(
            some.made,
            [Column::Lane, Column::Value, Column::Ordinal],
            "a field needs the value"
        );
        assert_eq!(names(&some.json.unwrap().schema), ["delay"]);
        assert_eq!(some.places, [Place::Json(0), Place::Own(0)]);
        let own = json.select(Some(&vec![2]));
        assert!(own.json.is_none() && own.made == [Column::Key]);
    }
}
