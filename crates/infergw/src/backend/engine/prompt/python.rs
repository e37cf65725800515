//! The template language in the reference's settings: Jinja2 with blocks trimmed, and with the filters, functions and ways of
//! writing values that templates expect of Python.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;

/// Steps that a template may take: about a second's. Ten thousand messages through a long template are a tenth of it.
const MAX_STEPS: u64 = 20_000_000;

/// Widest margin that a template can ask for.
const MAX_INDENT: usize = 256;

/// An environment for templates.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_fuel(Some(MAX_STEPS));
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", to_json);
    env.add_filter("indent", indent);
    env.add_filter("string", |value: &Value| python_number(value).unwrap_or_else(|| value.to_string()));
    env.set_formatter(|out, state, value| match python_number(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    // Nothing has no items in Python.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    Ok(env)
}

/// Jinja's `indent(width=4, first=False, blank=False)`: what ends with a newline keeps it.
fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = width.or(args.get::<Option<Value>>("width")?);
    let first = first.or(args.get::<Option<bool>>("first")?).unwrap_or(false);
    let blank = blank.or(args.get::<Option<bool>>("blank")?).unwrap_or(false);
    args.assert_all_used()?;
    let margin = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(margin) => margin.to_owned(),
            None => " ".repeat(usize::try_from(width)?.min(MAX_INDENT)),
        },
    };
    let text = text.replace("\r\n", "\n");
    let mut out = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if (at == 0 && first) || (at > 0 && (blank || !line.is_empty())) {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// A float as Python writes it.
fn python_float(value: f64) -> String {
    // Rust's debug form switches to an exponent where Python does, but writes it without sign and padding.
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// The text of a float; `None` for everything else, which prints as in Python anyway.
fn python_number(value: &Value) -> Option<String> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    if float { f64::try_from(value.clone()).ok().map(python_float) } else { None }
}

/// `json.dumps(value, ensure_ascii=False, indent=..., separators=..., sort_keys=...)`.
fn to_json(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|value| !value.is_none()) {
        Some(value) => Some(usize::try_from(value)?.min(16)),
        None => None,
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    args.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => ((if indent.is_some() { "," } else { ", " }).into(), ": ".into()),
    };
    let mut json = serde_json::to_value(value).map_err(not_json)?;
    if sort_keys {
        json.sort_all_objects();
    }
    let mut out = Vec::new();
    let style = PythonStyle { item, key, indent, ascii, depth: 0, filled: false };
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(not_json)?;
    let text = String::from_utf8(out).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "cannot serialize to JSON").with_source(error)
}

/// Python's separators, indentation and floats.
struct PythonStyle {
    item: String,
    key: String,
    indent: Option<usize>,
    /// Other characters than ASCII are escaped.
    ascii: bool,
    depth: usize,
    filled: bool,
}

impl PythonStyle {
    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }

    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }
}

impl serde_json::ser::Formatter for PythonStyle {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii || fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit).ok().filter(u8::is_ascii) {
                Some(byte) => writer.write_all(&[byte])?,
                None => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}
