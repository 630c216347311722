//! Text in columns, and numbers as people read them.

/// A table that reads well on a terminal and is Markdown too.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let wide = |cell: &str| cell.chars().count();
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(at, title)| rows.iter().map(|row| wide(&row[at])).fold(wide(title), usize::max))
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!(" {cell:width$} |"));
        format!("|{}\n", padded.collect::<String>())
    };
    let mut text = line(&mut head.iter().copied());
    let rule = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2)));
    text.push_str(&format!("|{}\n", rule.collect::<String>()));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// `23,204`, and `3.21` where the digits behind the point say something.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return "?".to_owned();
    }
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    count(value.round() as usize)
}

pub(crate) fn count(value: usize) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds of CPU time, if they are known. The kernel counts in ticks of 10 ms, so that a short
/// phase may have none.
pub(crate) fn micros(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "no tick".to_owned(),
        Some(micros) => format!("{} µs", number(micros)),
    }
}
