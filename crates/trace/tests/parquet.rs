//! Parquet files, as other tools write them.
#![cfg(feature = "parquet")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use haversack_trace::{Access, Op, OpenOptions, TraceError, VolumeNo, open};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Writes two groups of rows; the last length is missing.
fn write(path: &Path) {
    write_with(path, "REQUIRED INT64 time (TIMESTAMP(MICROS,true))");
}

fn write_with(path: &Path, time: &str) {
    let schema = "message trace {
        TIME;
        REQUIRED BYTE_ARRAY op (STRING);
        REQUIRED INT32 disk;
        REQUIRED BYTE_ARRAY comment (STRING);
        REQUIRED INT64 lba;
        OPTIONAL INT32 size;
    }";
    let schema = Arc::new(parse_message_type(&schema.replace("TIME;", &format!("{time};"))).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for group in 0..2i64 {
        let mut rows = file.next_row_group().unwrap();
        let text = |text: &'static str| [ByteArray::from(text), ByteArray::from(text)];
        let mut longs = [vec![group * 10 + 1, group * 10 + 2], vec![8, 16]].into_iter();
        let mut texts = [text("R"), text("of no meaning")].into_iter();
        for column in 0..6 {
            let mut writer = rows.next_column().unwrap().unwrap();
            match column {
                0 | 4 => {
                    let values = longs.next().unwrap();
                    writer.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                }
                1 | 3 => {
                    let values = texts.next().unwrap();
                    writer.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
                }
                2 => {
                    writer.typed::<Int32Type>().write_batch(&[7, 9], None, None).unwrap();
                }
                _ => {
                    let (values, levels): (&[i32], _) =
                        if group == 0 { (&[512, 4096], [1, 1]) } else { (&[512], [1, 0]) };
                    writer.typed::<Int32Type>().write_batch(values, Some(&levels), None).unwrap();
                }
            }
            writer.close().unwrap();
        }
        rows.close().unwrap();
    }
    file.close().unwrap();
}

#[test]
fn columns_are_found_by_name_and_missing_values_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path);
    let mut source = open(&path, &OpenOptions::default()).unwrap();
    let mut accesses = Vec::new();
    while source.read(&mut accesses).unwrap() > 0 {}
    let access = |time_us: u64, volume, sector: u64, length_bytes| Access {
        time_ns: time_us * 1000,
        offset_bytes: sector * 512,
        length_bytes,
        volume: VolumeNo(volume),
        op: Op::Read,
    };
    assert_eq!(accesses, [access(1, 0, 8, 512), access(2, 1, 16, 4096), access(11, 0, 8, 512)]);
    assert_eq!(source.volumes(), ["7", "9"]);
    assert_eq!((source.damage().lines, source.damage().examples[0].line), (1, 4));

    let strict = OpenOptions { strict: true, ..OpenOptions::default() };
    let mut source = open(&path, &strict).unwrap();
    let mut accesses = Vec::new();
    let error = loop {
        match source.read(&mut accesses) {
            Ok(read) => assert!(read > 0),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TraceError::Line(bad) if bad.line == 4));
}

/// Files of older writers give the unit by the converted type alone.
#[test]
fn timestamps_have_the_unit_of_their_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    for (time, unit_ns) in [
        ("REQUIRED INT64 time (TIMESTAMP_MILLIS)", 1_000_000),
        ("REQUIRED INT64 time (TIMESTAMP_MICROS)", 1000),
        ("REQUIRED INT64 time (TIMESTAMP(NANOS,true))", 1),
        ("REQUIRED INT64 time", 1),
    ] {
        write_with(&path, time);
        let mut source = open(&path, &OpenOptions::default()).unwrap();
        let mut accesses = Vec::new();
        source.read(&mut accesses).unwrap();
        assert_eq!(accesses[0].time_ns, unit_ns, "{time}");
    }
}

#[test]
fn damage_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path);
    let bytes = std::fs::read(&path).unwrap();
    for end in [4, 20, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..end]).unwrap();
        assert!(
            matches!(open(&path, &OpenOptions::default()), Err(TraceError::Binary { .. })),
            "cut at {end}"
        );
    }
}
