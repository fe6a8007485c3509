//! Parquet files with flat columns, named as those of tables (see `csv`).
//!
//! Whole numbers, floating-point times, and text for operations and volumes are accepted; a timestamp column's type
//! gives its unit. A row without a required value is damaged. Parquet is read from its end, so the input must be a
//! file that is not compressed as a whole.
//!
//! Source: Apache Parquet's format, by the crate `parquet`.

use std::fs::File;
use std::path::PathBuf;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::access;
use super::csv::{Column, WHOLE_TIMES};
use crate::access::{Access, Op, VolumeNo};
use crate::error::{BadLine, Damage, TraceError};
use crate::fields;
use crate::open::OpenOptions;
use crate::source::{BATCH, Source};
use crate::unwind;
use crate::volumes::Volumes;

const EXPECTED: &str = "a row with an offset, a length and what else the file has columns for";

/// A value.
enum Cell {
    Null,
    Whole(i64),
    Real(f64),
    Text(Vec<u8>),
}

impl Cell {
    fn number(&self) -> Option<u64> {
        match self {
            Cell::Whole(number) => u64::try_from(*number).ok(),
            Cell::Text(text) => fields::number(text),
            Cell::Null | Cell::Real(_) => None,
        }
    }

    fn time(&self, unit_ns: u64) -> Option<u64> {
        match self {
            Cell::Whole(number) => u64::try_from(*number).ok()?.checked_mul(unit_ns),
            Cell::Real(number) => {
                let ns = number * unit_ns as f64;
                (ns >= 0.0 && ns < u64::MAX as f64).then_some(ns as u64)
            }
            Cell::Text(text) => fields::time(text, unit_ns),
            Cell::Null => None,
        }
    }

    fn op(&self) -> Option<Op> {
        match self {
            Cell::Text(text) => fields::op(text),
            _ => None,
        }
    }

    /// The value that identifies a volume.
    fn key(&self) -> Option<Vec<u8>> {
        match self {
            Cell::Text(text) => Some(text.clone()),
            Cell::Whole(number) => Some(number.to_string().into_bytes()),
            Cell::Null | Cell::Real(_) => None,
        }
    }
}

/// A column with a known meaning.
struct Known {
    column: Column,
    place: usize,
    /// Whether values may be missing.
    optional: bool,
}

/// Accesses of a Parquet file.
pub(crate) struct ParquetSource {
    path: PathBuf,
    name: String,
    file: SerializedFileReader<File>,
    known: Vec<Known>,
    /// The next row group, and readers of the columns of the current one.
    next_group: usize,
    readers: Vec<ColumnReader>,
    rows: u64,
    count: u64,
    volumes: Volumes,
    damage: Damage,
    strict: bool,
}

impl ParquetSource {
    /// Opens a file. If it has no volume column, it is one volume with the given name.
    ///
    /// # Errors
    /// The file cannot be read, or has no columns for offset and length.
    pub fn open(path: PathBuf, name: String, options: &OpenOptions) -> Result<Self, TraceError> {
        let in_file = |error| TraceError::Io { path: path.clone(), error };
        let file = File::open(&path).map_err(in_file)?;
        let bytes = file.metadata().map_err(in_file)?.len();
        let file = SerializedFileReader::new(file).map_err(|error| damaged(&path, &error))?;
        check_places(file.metadata(), bytes).map_err(|error| damaged(&path, &error))?;
        let schema = file.metadata().file_metadata().schema_descr_ptr();
        let mut known = Vec::new();
        for (place, described) in schema.columns().iter().enumerate() {
            let mut column = Column::named(described.name(), options.time_unit_ns);
            if let Some(unit_ns) = timestamp_unit_ns(described).filter(|_| column.is_time()) {
                column = Column::Time(unit_ns);
            }
            let is_real = matches!(described.physical_type(), PhysicalType::FLOAT | PhysicalType::DOUBLE);
            if column == Column::TimeWithoutUnit && is_real {
                let found = format!("column {} of floating-point numbers", described.name());
                return Err(TraceError::Binary { path, offset_bytes: 0, expected: WHOLE_TIMES, found });
            }
            if column != Column::Other && described.max_rep_level() == 0 {
                known.push(Known { column, place, optional: described.max_def_level() > 0 });
            }
        }
        let has = |is: fn(&Column) -> bool| known.iter().filter(|known| is(&known.column)).count() == 1;
        if !has(|c| matches!(c, Column::Offset(_))) || !has(|c| matches!(c, Column::Length(_))) {
            let names: Vec<_> = schema.columns().iter().map(|column| column.name()).collect();
            let expected = "one column for the offset and one for the length";
            return Err(TraceError::Binary { path, offset_bytes: 0, expected, found: names.join(", ") });
        }
        Ok(ParquetSource {
            path,
            name,
            file,
            known,
            next_group: 0,
            readers: Vec::new(),
            rows: 0,
            count: 0,
            volumes: Volumes::default(),
            damage: Damage::default(),
            strict: options.strict,
        })
    }

    /// Reads the next rows, by columns; none at the end.
    fn cells(&mut self) -> Result<Vec<Vec<Cell>>, ParquetError> {
        loop {
            if self.readers.is_empty() {
                if self.next_group == self.file.num_row_groups() {
                    return Ok(Vec::new());
                }
                let group = self.file.get_row_group(self.next_group)?;
                let readers = self.known.iter().map(|known| group.get_column_reader(known.place));
                self.readers = readers.collect::<Result<_, _>>()?;
                self.next_group += 1;
            }
            let columns =
                self.readers.iter_mut().zip(&self.known).map(|(reader, known)| read(reader, known.optional));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            if columns.iter().any(|column| column.len() != columns[0].len()) {
                return Err(ParquetError::General("columns of one length were expected".into()));
            }
            if !columns[0].is_empty() {
                return Ok(columns);
            }
            self.readers.clear();
        }
    }

    fn access(&mut self, columns: &[Vec<Cell>], row: usize) -> Option<Access> {
        let (mut time_ns, mut op, mut offset, mut length) = (self.count, Op::Read, 0, 0);
        let mut volume = None;
        for (known, cells) in self.known.iter().zip(columns) {
            let cell = &cells[row];
            match known.column {
                Column::Time(unit_ns) => time_ns = cell.time(unit_ns)?,
                Column::TimeWithoutUnit => time_ns = cell.number()?,
                Column::Op => op = cell.op()?,
                Column::Offset(unit) => offset = cell.number()?.checked_mul(unit)?,
                Column::Length(unit) => length = cell.number()?.checked_mul(unit)?,
                Column::Volume => volume = Some(cell.key()?),
                Column::Other => {}
            }
        }
        let mut access = access(time_ns, VolumeNo(0), op, offset, length)?;
        access.volume = match volume {
            Some(key) => self.volumes.named(&key),
            None => self.volumes.only(&self.name),
        };
        self.count += 1;
        Some(access)
    }
}

/// The unit of a column of timestamps. Older files have only the converted type.
fn timestamp_unit_ns(column: &ColumnDescriptor) -> Option<u64> {
    match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Timestamp(of)), _) => Some(match of.unit {
            TimeUnit::MILLIS => 1_000_000,
            TimeUnit::MICROS => 1000,
            TimeUnit::NANOS => 1,
        }),
        (_, ConvertedType::TIMESTAMP_MILLIS) => Some(1_000_000),
        (_, ConvertedType::TIMESTAMP_MICROS) => Some(1000),
        _ => None,
    }
}

/// Reads the next cells of a column.
fn read(reader: &mut ColumnReader, optional: bool) -> Result<Vec<Cell>, ParquetError> {
    match reader {
        ColumnReader::Int32ColumnReader(reader) => cells(reader, optional, |v| Cell::Whole(i64::from(v))),
        ColumnReader::Int64ColumnReader(reader) => cells(reader, optional, Cell::Whole),
        ColumnReader::FloatColumnReader(reader) => cells(reader, optional, |v| Cell::Real(f64::from(v))),
        ColumnReader::DoubleColumnReader(reader) => cells(reader, optional, Cell::Real),
        ColumnReader::ByteArrayColumnReader(reader) => {
            cells(reader, optional, |v| Cell::Text(v.data().to_vec()))
        }
        _ => Err(ParquetError::General(
            "a column of whole numbers, floating-point numbers or text was expected".into(),
        )),
    }
}

fn cells<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    optional: bool,
    cell: fn(T::T) -> Cell,
) -> Result<Vec<Cell>, ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    reader.read_records(BATCH, optional.then_some(&mut levels), None, &mut values)?;
    let mut values = values.into_iter().map(cell);
    if !optional {
        return Ok(values.collect());
    }
    // Flat columns have one level: the value is present or missing.
    let present = levels.into_iter().map(|level| if level > 0 { values.next() } else { None });
    Ok(present.map(|value| value.unwrap_or(Cell::Null)).collect())
}

/// Refuses columns whose position is outside the file: the crate does not check this.
fn check_places(file: &ParquetMetaData, file_bytes: u64) -> Result<(), ParquetError> {
    let inside = |offset: i64, len: i64| {
        let end =
            u64::try_from(offset).ok().zip(u64::try_from(len).ok()).and_then(|(at, len)| at.checked_add(len));
        end.is_some_and(|end| end <= file_bytes)
    };
    for column in file.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        if !inside(start, column.compressed_size()) || !inside(column.data_page_offset(), 0) {
            let place = format!("{} bytes at {start}", column.compressed_size());
            return Err(ParquetError::General(format!("column {} in {place}", column.column_path())));
        }
    }
    Ok(())
}

fn damaged(path: &std::path::Path, error: &ParquetError) -> TraceError {
    let (expected, found) = ("a Parquet file", error.to_string());
    TraceError::Binary { path: path.to_path_buf(), offset_bytes: 0, expected, found }
}

impl Source for ParquetSource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() == before {
            let columns = unwind::caught(|| self.cells())
                .unwrap_or_else(|| Err(ParquetError::General("damaged pages".into())))
                .map_err(|error| damaged(&self.path, &error))?;
            for row in 0..columns.first().map_or(0, Vec::len) {
                self.rows += 1;
                if let Some(access) = self.access(&columns, row) {
                    into.push(access);
                    continue;
                }
                let (line, found) = (self.rows, format!("row {} of a Parquet file", self.rows));
                let bad = BadLine { path: self.path.clone(), line, expected: EXPECTED, found };
                if self.strict {
                    into.truncate(before);
                    return Err(TraceError::Line(bad));
                }
                self.damage.add(|| bad);
            }
            if columns.is_empty() {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }

    fn progress(&self) -> Option<f64> {
        let rows = self.file.metadata().file_metadata().num_rows();
        Some(self.rows as f64 / rows.max(1) as f64)
    }

    fn is_timed(&self) -> bool {
        self.known.iter().any(|known| known.column.is_time())
    }

    fn damage(&self) -> Damage {
        self.damage.clone()
    }
}
