//! Results as Parquet: a row for each object, a column for each of its figures.
//!
//! Nested objects become columns of their own, named `object_figure`; lists are left out. A column has
//! integers, floating-point numbers, booleans or text, depending on its values, and any value may be missing.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use serde::Serialize;
use serde_json::Value;

use crate::error::{CliError, Result};

/// A row: values by column.
type Row = BTreeMap<String, Value>;

/// Writes rows to a file, if one is given.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: Option<&Path>, rows: impl IntoIterator<Item = impl Serialize>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let failed = |error: &dyn std::fmt::Display| {
        CliError::Failed(format!("{}: cannot be written as Parquet: {error}", path.display()))
    };
    let rows = rows.into_iter().map(|row| serde_json::to_value(row).map(|value| flat(&value)));
    let rows: Vec<Row> = rows.collect::<std::result::Result<_, _>>().map_err(|error| failed(&error))?;
    let file = File::create(path).map_err(|error| failed(&error))?;
    write_rows(file, &rows).map_err(|error| failed(&error))
}

/// Returns an object's figures, including those of nested objects.
fn flat(value: &Value) -> Row {
    let mut row = Row::new();
    flatten("", value, &mut row);
    row
}

fn flatten(name: &str, value: &Value, into: &mut Row) {
    match value {
        Value::Object(inside) => {
            for (key, value) in inside {
                let name = if name.is_empty() { key.clone() } else { format!("{name}_{key}") };
                flatten(&name, value, into);
            }
        }
        Value::Array(_) => {}
        value => drop(into.insert(name.to_owned(), value.clone())),
    }
}

/// Returns the columns that any row has, and their types.
fn columns(rows: &[Row]) -> BTreeMap<&str, Physical> {
    let mut columns = BTreeMap::new();
    for (name, value) in rows.iter().flatten() {
        let physical = match value {
            Value::Null => continue,
            Value::String(_) => Physical::BYTE_ARRAY,
            Value::Bool(_) => Physical::BOOLEAN,
            number if number.is_u64() || number.is_i64() => Physical::INT64,
            _ => Physical::DOUBLE,
        };
        columns.insert(name.as_str(), physical);
    }
    columns
}

fn schema(columns: &BTreeMap<&str, Physical>) -> parquet::errors::Result<TypePtr> {
    let field = |(name, physical): (&&str, &Physical)| {
        let text = (*physical == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let field = Type::primitive_type_builder(name, *physical);
        field.with_repetition(Repetition::OPTIONAL).with_logical_type(text).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<std::result::Result<Vec<_>, _>>()?;
    Type::group_type_builder("haversack").with_fields(fields).build().map(Arc::new)
}

fn write_rows(file: File, rows: &[Row]) -> std::result::Result<(), ParquetError> {
    let columns = columns(rows);
    let properties =
        WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = SerializedFileWriter::new(file, schema(&columns)?, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (name, physical) in &columns {
        let cells = || rows.iter().map(|row| row.get(*name));
        match physical {
            Physical::INT64 => column::<Int64Type>(&mut group, cells(), |v| v.as_i64())?,
            Physical::BOOLEAN => column::<BoolType>(&mut group, cells(), |v| v.as_bool())?,
            Physical::BYTE_ARRAY => {
                column::<ByteArrayType>(&mut group, cells(), |v| v.as_str().map(ByteArray::from))?;
            }
            _ => column::<DoubleType>(&mut group, cells(), |v| v.as_f64())?,
        }
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

fn column<'a, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    cells: impl Iterator<Item = Option<&'a Value>>,
    value: fn(&Value) -> Option<T::T>,
) -> std::result::Result<(), ParquetError> {
    let cells: Vec<Option<T::T>> = cells.map(|cell| cell.and_then(value)).collect();
    let levels: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    let missing = || ParquetError::General("a column of the schema was expected".into());
    let mut writer = group.next_column()?.ok_or_else(missing)?;
    writer.typed::<T>().write_batch(&values, Some(&levels), None)?;
    writer.close()
}
