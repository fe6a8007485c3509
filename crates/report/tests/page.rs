//! Pages: their contents, and that external text cannot break out of its place.

use haversack_report::{Axis, Bars, LineChart, Page, Section, StackedArea, Table, Unit};

const EVIL: &str = "</script><b>\"x\" & 'y'\u{1}";

fn page(name: &str) -> String {
    let line = LineChart::new(name, Axis::log(name, Unit::Bytes), Axis::share(name))
        .line(name, vec![(4096.0, 1.0), (8192.0, 0.5)])
        .dashed("bound", vec![(4096.0, 0.5), (0.0, 0.1), (f64::NAN, 0.1)])
        .mark(4096.0, 1.0, name);
    let area = StackedArea::new(name, Axis::time(name), Axis::linear(name, Unit::Bytes), vec![0.0, 1.0, 2.0])
        .layer(name, vec![1.0, 2.0])
        .layer("other", vec![f64::NAN, 2.0, 3.0]);
    let mut table = Table::new([name, "value"]).caption(name);
    table.marked_row([name, "1"]);
    let section = Section::new(name).text(name).facts([(name, name.to_string())]).chart(line).chart(area);
    let bars = Bars::new(name, Unit::Share).bar(name, 0.5).bar_of("none", f64::NAN, 9);
    Page::new(name).lead(name).section(section.table(table).chart(bars)).to_html()
}

#[test]
fn names_stay_names() {
    let (plain, evil) = (page("plain"), page(EVIL));
    for needle in ["<script", "</script>", "<b>", "<svg", "</svg>", "<figure>", "<td"] {
        assert_eq!(plain.matches(needle).count(), evil.matches(needle).count(), "{needle}");
    }
    assert!(!evil.contains('\u{1}'));
}

#[test]
fn a_page_needs_no_network_and_draws_no_nonsense() {
    let html = page("plain");
    assert!(!html.contains("NaN") && !html.contains("inf"));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_eq!(html.replace("http://www.w3.org/2000/svg", "").matches("http").count(), 0);
    assert_eq!(html, page("plain"), "equal input gives equal bytes");
}

#[test]
fn a_chart_without_points_is_a_sentence() {
    let empty = LineChart::new("t", Axis::log("x", Unit::Bytes), Axis::share("y")).line("a", vec![]);
    assert!(empty.to_svg().contains("There is nothing to draw") && empty.to_svg().ends_with("</svg>"));
    let nothing = StackedArea::new("t", Axis::time("x"), Axis::linear("y", Unit::Count), vec![]);
    assert!(nothing.to_svg().contains("<style>"));
    assert!(Bars::new("t", Unit::Count).to_svg().ends_with("</svg>"));
    let page = Page::new("t").section(Section::new("s").chart(empty).chart(nothing)).to_html();
    assert_eq!(page.matches("There is nothing to draw").count(), 2);
}
