//! The caller's local time, and `strftime` over it. Reading a clock is the caller's.

/// A moment as the user's clock shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LocalTime {
    /// Gregorian year.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A conversion's result: a number with its usual padding, or text.
enum Field {
    Number(i64, usize, char),
    Text(String),
}

impl LocalTime {
    /// Python's `strftime` in the C locale, with glibc's `-`, `_` and `0` flags. What isn't a conversion stays.
    #[must_use]
    pub fn strftime(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() * 2);
        let mut rest = format;
        while let Some(percent) = rest.find('%') {
            out.push_str(&rest[..percent]);
            let after = &rest[percent + 1..];
            let flag = after.chars().next().filter(|c| matches!(c, '-' | '_' | '0'));
            let conversion = &after[flag.map_or(0, char::len_utf8)..];
            let Some(letter) = conversion.chars().next() else {
                out.push_str(&rest[percent..]);
                return out;
            };
            let used = percent + 1 + flag.map_or(0, char::len_utf8) + letter.len_utf8();
            match self.field(letter) {
                Some(Field::Text(text)) => out.push_str(&text),
                Some(Field::Number(number, width, usual)) => {
                    push_number(&mut out, number, width, flag.unwrap_or(usual))
                }
                None => out.push_str(&rest[percent..used]),
            }
            rest = &rest[used..];
        }
        out.push_str(rest);
        out
    }

    fn field(&self, letter: char) -> Option<Field> {
        let number = |value: i64, width| Some(Field::Number(value, width, '0'));
        let spaced = |value: i64| Some(Field::Number(value, 2, '_'));
        let text = |text: &str| Some(Field::Text(text.to_owned()));
        let nested = |format: &str| Some(Field::Text(self.strftime(format)));
        let (hour, year) = (i64::from(self.hour), i64::from(self.year));
        let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
        let (weekday, yearday) = (self.weekday(), self.yearday());
        let day_name = usize::try_from(weekday).ok().and_then(|day| DAYS.get(day)).copied().unwrap_or("?");
        let month_name = usize::from(self.month).checked_sub(1).and_then(|at| MONTHS.get(at)).copied().unwrap_or("?");
        match letter {
            'Y' => number(year, 1),
            'C' => number(year.div_euclid(100), 2),
            'y' => number(year.rem_euclid(100), 2),
            'G' => number(self.iso_week().0, 1),
            'g' => number(self.iso_week().0.rem_euclid(100), 2),
            'V' => number(self.iso_week().1, 2),
            'm' => number(self.month.into(), 2),
            'd' => number(self.day.into(), 2),
            'e' => spaced(self.day.into()),
            'H' => number(hour, 2),
            'I' => number(twelve, 2),
            'k' => spaced(hour),
            'l' => spaced(twelve),
            'M' => number(self.minute.into(), 2),
            'S' => number(self.second.into(), 2),
            'f' => text("000000"),
            'j' => number(yearday + 1, 3),
            'u' => number(if weekday == 0 { 7 } else { weekday }, 1),
            'w' => number(weekday, 1),
            'U' => number((yearday + 7 - weekday) / 7, 2),
            'W' => number((yearday + 7 - (weekday + 6) % 7) / 7, 2),
            'A' => text(day_name),
            'a' => text(day_name.get(..3).unwrap_or(day_name)),
            'B' => text(month_name),
            'b' | 'h' => text(month_name.get(..3).unwrap_or(month_name)),
            'p' => text(if hour < 12 { "AM" } else { "PM" }),
            'P' => text(if hour < 12 { "am" } else { "pm" }),
            'D' | 'x' => nested("%m/%d/%y"),
            'F' => nested("%Y-%m-%d"),
            'R' => nested("%H:%M"),
            'T' | 'X' => nested("%H:%M:%S"),
            'r' => nested("%I:%M:%S %p"),
            'c' => nested("%a %b %e %H:%M:%S %Y"),
            // A time without a zone has no zone to tell.
            'z' | 'Z' => text(""),
            'n' => text("\n"),
            't' => text("\t"),
            '%' => text("%"),
            _ => None,
        }
    }

    /// Days since 1970-01-01 in the proleptic Gregorian calendar.
    fn days(&self) -> i64 {
        // Years that begin in March have their leap day last.
        let month = i64::from(self.month);
        let year = i64::from(self.year) - i64::from(month <= 2);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(self.day) - 1;
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
    }

    /// 0 is Sunday.
    fn weekday(&self) -> i64 {
        (self.days() + 4).rem_euclid(7)
    }

    /// 0 is January 1.
    fn yearday(&self) -> i64 {
        self.days() - Self { month: 1, day: 1, ..*self }.days()
    }

    /// ISO 8601 year and week: the week belongs to the year that its Thursday is in.
    fn iso_week(&self) -> (i64, i64) {
        let thursday = self.yearday() + 3 - (self.weekday() + 6) % 7;
        let length = |year: i32| {
            Self { year: year.saturating_add(1), month: 1, day: 1, ..*self }.days()
                - Self { year, month: 1, day: 1, ..*self }.days()
        };
        if thursday < 0 {
            let before = self.year.saturating_sub(1);
            return (before.into(), (thursday + length(before)) / 7 + 1);
        }
        let own = length(self.year);
        if thursday >= own {
            return (self.year.saturating_add(1).into(), (thursday - own) / 7 + 1);
        }
        (self.year.into(), thursday / 7 + 1)
    }
}

fn push_number(out: &mut String, number: i64, width: usize, pad: char) {
    out.push_str(&match pad {
        '-' => number.to_string(),
        '_' => format!("{number:width$}"),
        _ => format!("{number:0width$}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: i32, month: u8, day: u8) -> LocalTime {
        LocalTime { year, month, day, hour: 14, minute: 5, second: 9 }
    }

    #[test]
    fn conversions_are_those_of_the_c_locale() {
        let now = at(2024, 7, 6);
        for (format, want) in [
            ("%d %b %Y", "06 Jul 2024"),
            ("%B %-d, %Y", "July 6, 2024"),
            ("%A %e %_m %I:%M:%S %p", "Saturday  6  7 02:05:09 PM"),
            ("%Y-%m-%dT%H:%M:%S%z", "2024-07-06T14:05:09"),
            (
                "%c | %x %X | %D %F %R %T %r",
                "Sat Jul  6 14:05:09 2024 | 07/06/24 14:05:09 | 07/06/24 2024-07-06 14:05 14:05:09 02:05:09 PM",
            ),
            ("%j %U %W %V %u %w %C %y", "188 26 27 27 6 6 20 24"),
            ("100%% %Q é%", "100% %Q é%"),
            ("%-", "%-"),
        ] {
            assert_eq!(now.strftime(format), want);
        }
    }

    #[test]
    fn weeks_at_the_turn_of_the_year() {
        for (year, month, day, want) in [
            (2021, 1, 3, "2020-W53-7"),
            (2020, 12, 31, "2020-W53-4"),
            (2024, 12, 30, "2025-W01-1"),
            (2023, 1, 1, "2022-W52-7"),
            (2000, 2, 29, "2000-W09-2"),
        ] {
            assert_eq!(at(year, month, day).strftime("%G-W%V-%u"), want);
        }
    }

    #[test]
    fn absurd_clocks_do_not_panic() {
        for year in [i32::MIN, -1, 0, i32::MAX] {
            for month in [0, 13, 255] {
                let clock = LocalTime { year, month, day: 255, hour: 255, minute: 255, second: 255 };
                assert!(!clock.strftime("%c %j %U %W %V %G %B %A").is_empty());
            }
        }
    }
}
