//! Says in words what an admission filter that learns lets in.

use std::fmt::Write;

use haversack_admission::{CategoryFigures, Figures, Op};

use super::size;

/// Categories that are named of those that enter, and of those that do not: the most frequent.
const MOST_NAMED: usize = 4;
/// Samples below which nothing is said of a category.
const LEAST_SAMPLES: f32 = 10.0;

/// Says what a filter lets in at present, and why.
pub fn admission(figures: &Figures) -> String {
    let Some(stay) = figures.stay else {
        return "Nothing had been evicted when admission was last asked, so every block enters.\n".into();
    };
    let prices = &figures.prices;
    let mut text = format!(
        "A block stays for {} of accesses to the pool after its last use. A read from the origin takes \
         {:.1} ms, a write {:.1} ms; a block written to flash must save {:.1} ms.\n",
        size(stay),
        prices.read_us / 1e3,
        prices.write_us / 1e3,
        prices.flash_write_us / 1e3,
    );
    if (prices.strictness - 1.0).abs() > 0.01 {
        let than = if prices.strictness < 1.0 {
            "blocks that were kept out would have saved more than those that were evicted"
        } else {
            "blocks that were evicted would have saved more than those that were kept out"
        };
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "The bounds for space are at {:.0} %, since {than}.", prices.strictness * 100.0);
    }
    let mut known: Vec<&CategoryFigures> = figures.categories.iter().collect();
    known.retain(|category| category.samples >= LEAST_SAMPLES);
    known.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    for (admitted, what) in [(true, "Let in"), (false, "Kept out")] {
        let of_these = || known.iter().filter(|category| category.admitted == admitted);
        let count = of_these().count();
        if count == 0 {
            let _ = writeln!(text, "{what}: nothing that was seen often enough.");
            continue;
        }
        let kinds = if count == 1 { "kind of access" } else { "kinds of access, the most frequent first" };
        let _ = writeln!(text, "{what}, {count} {kinds}:");
        for category in of_these().take(MOST_NAMED) {
            let _ = writeln!(
                text,
                "  {}: {:.0} % used again within a stay, which saves {:.2} ms a block",
                kind(category),
                category.ratio * 100.0,
                category.value_us / 1e3,
            );
        }
    }
    text
}

/// Names a category: `reads of 4 KiB, blocks that it does not remember`.
fn kind(category: &CategoryFigures) -> String {
    let op = match category.op {
        Op::Read => "reads",
        Op::Write => "writes",
    };
    let blocks = match category.most_blocks {
        1 => "4 KiB".to_owned(),
        u32::MAX => "more than 64 KiB".to_owned(),
        most => format!("up to {} KiB", most * 4),
    };
    let continues = if category.continues { " in a run" } else { "" };
    let seen = match category.age {
        None => "blocks that it does not remember".to_owned(),
        Some((from, to)) if to.is_infinite() => format!("blocks last used more than {from} stays ago"),
        Some((from, to)) => format!("blocks last used {from} to {to} stays ago"),
    };
    let often = match category.earlier {
        0 => "",
        1 => ", once before",
        _ => ", more than once before",
    };
    format!("{op} of {blocks}{continues}, {seen}{often}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_admission::Prices;

    fn category(op: Op, samples: f32, ratio: f32, admitted: bool) -> CategoryFigures {
        CategoryFigures {
            op,
            age: Some((0.5, 1.0)),
            earlier: 1,
            most_blocks: 4,
            continues: false,
            samples,
            ratio,
            value_us: ratio * 3000.0,
            admitted,
        }
    }

    #[test]
    fn while_nothing_was_evicted_everything_enters() {
        assert!(admission(&Figures::default()).contains("every block enters"));
    }

    #[test]
    fn what_is_let_in_and_what_is_not_is_named_with_the_reason() {
        let large = CategoryFigures {
            age: None,
            earlier: 0,
            most_blocks: u32::MAX,
            continues: true,
            ..category(Op::Read, 400.0, 0.02, false)
        };
        let figures = Figures {
            prices: Prices { read_us: 3000.0, write_us: 900.0, strictness: 0.6, ..Prices::default() },
            stay: Some(2048),
            categories: vec![category(Op::Write, 20.0, 0.5, true), category(Op::Read, 5.0, 0.9, true), large],
        };
        let expected = "\
A block stays for 2048 blocks (8.0 MiB) of accesses to the pool after its last use. A read from the origin \
takes 3.0 ms, a write 0.9 ms; a block written to flash must save 0.5 ms.
The bounds for space are at 60 %, since blocks that were kept out would have saved more than those that were evicted.
Let in, 1 kind of access:
  writes of up to 16 KiB, blocks last used 0.5 to 1 stays ago, once before: 50 % used again within a stay, which saves 1.50 ms a block
Kept out, 1 kind of access:
  reads of more than 64 KiB in a run, blocks that it does not remember: 2 % used again within a stay, which saves 0.06 ms a block
";
        assert_eq!(admission(&figures), expected);
    }
}
